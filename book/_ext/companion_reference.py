"""Sphinx extension of the reference pages: commands from the app, API from docstrings, definitions on hover.

Everything is made when the book is built, so that a page cannot describe what the code no longer does.
"""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

COMMANDS = "book/commands"
GLOSSARY = "book/glossary"
#: Pages made from code or data rather than from their own text: read again in every build.
LIVING = (COMMANDS, "book/data")
_MARK = "<!-- commands -->"
_TERM = re.compile(r'<a class="reference internal" href="([^"]*)#(term-[^"]+)">')


def commands_page() -> str:
    """Return the commands as Markdown: usage, arguments and options of each, as ``--help`` has them."""
    import typer
    from typer.cli import get_docs_for_click

    from companion.cli import app

    command = typer.main.get_command(app)
    context = type(command).context_class(command, info_name="companion")
    parts = []
    for name in command.list_commands(context):  # type: ignore[attr-defined]
        found = command.get_command(context, name)  # type: ignore[attr-defined]
        inner = type(found).context_class(found, info_name=name, parent=context)
        text = get_docs_for_click(obj=found, ctx=inner, call_prefix="companion", indent=1, title=f"companion {name}")
        parts.append(_tidied(text))
    return "\n".join(parts)


def _tidied(text: str) -> str:
    # A prompt would be copied along with the line; and help texts hold words in angle brackets that are no HTML.
    text = text.replace("```console\n$ ", "```text\n").replace("**Usage**:\n\n", "")
    lines = [line if line.startswith(("```", "companion")) else line.replace("<", "\\<") for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def fill_in(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the commands into their page."""
    if docname == COMMANDS:
        source[0] = source[0].replace(_MARK, commands_page())


def read_again(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Name the pages to read again although their text is the same."""
    if GLOSSARY in changed | added:
        return sorted(env.found_docs)
    return [name for name in LIVING if name in env.found_docs]


def definitions(env: BuildEnvironment) -> dict[str, str]:
    """Return the glossary as plain text by the id of each term."""
    if GLOSSARY not in env.found_docs:
        return {}
    found: dict[str, str] = {}
    for glossary in env.get_doctree(GLOSSARY).findall(addnodes.glossary):
        for item in glossary.findall(nodes.definition_list_item):
            words = " ".join(part.astext() for part in item.findall(nodes.definition))
            for term in item.findall(nodes.term):
                found.update(dict.fromkeys(term["ids"], " ".join(words.split())))
    return found


def explain_terms(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Give links to the glossary their definition: a title without scripts, a tooltip with them."""
    body = context.get("body")
    if not body or pagename == GLOSSARY or "#term-" not in body or app.env is None:
        return
    known = getattr(app, "companion_definitions", None)
    if known is None:
        known = definitions(app.env)
        app.companion_definitions = known  # type: ignore[attr-defined]

    def link(match: re.Match[str]) -> str:
        words = html.escape(known.get(match[2], ""), quote=True)
        if not words:
            return match[0]
        return f'<a class="reference internal companion-term" href="{match[1]}#{match[2]}" title="{words}">'

    context["body"] = _TERM.sub(link, body)


def configure(app: Sphinx, config: Config) -> None:
    """Settle how docstrings are read: numpydoc sections, members in the order of the source, types as written."""
    config.autodoc_typehints = "none"
    config.autodoc_member_order = "bysource"
    config.autodoc_preserve_defaults = True
    config.autodoc_class_signature = "mixed"
    config.autodoc_default_options = {"members": True}
    config.napoleon_google_docstring = False
    config.napoleon_use_rtype = False
    config.napoleon_use_ivar = True
    config.toc_object_entries_show_parents = "hide"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.napoleon")
    app.connect("config-inited", configure)
    app.connect("source-read", fill_in)
    app.connect("env-get-outdated", read_again)
    app.connect("html-page-context", explain_terms)
    app.add_css_file("terms.css")
    app.add_js_file("terms.js", loading_method="defer")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
