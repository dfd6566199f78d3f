"""Sphinx extension of the reference pages: commands from the app, API from docstrings, definitions on hover.

Everything is made when the book is built, so that a page cannot describe what the code no longer does.
"""

from __future__ import annotations

import html
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

from companion.book import runs

COMMANDS = "book/commands"
GLOSSARY = "book/glossary"
CITE = "book/cite"
API = "book/api/"
DATA = "book/data"
METHODS = "book/methods"
#: Pages made from code or data rather than from their own text: read again in every build.
LIVING = (COMMANDS, CITE, DATA, METHODS)
_COMMANDS_MARK, _CITATION_MARK, _CORPORA_MARK = "<!-- commands -->", "<!-- citation -->", "<!-- corpora -->"
_ARMS_MARK, _CHANNELS_MARK = "<!-- arms -->", "<!-- channels -->"
_DEMO_MARK, _PUBLISHED_MARK = "<!-- demo -->", "<!-- published -->"
_MODULES_MARK = re.compile(r"<!-- modules: (.*?) -->")
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
    lines = [line if line.startswith(("```", "companion")) else _escaped(line) for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def _escaped(line: str) -> str:
    """Escape angle brackets where they would be HTML; in code, every second part, a backslash would be shown."""
    parts = line.split("`")
    return "`".join(part if place % 2 else part.replace("<", "\\<") for place, part in enumerate(parts))


def citation() -> str:
    """Return the companion's own part of ``CITATION.cff``, without the paper that it prefers."""
    from companion.paths import project_root

    text = (project_root() / "CITATION.cff").read_text(encoding="utf-8")
    return "```yaml\n" + text.partition("preferred-citation:")[0] + "```\n"


def corpora_table() -> str:
    """Return the frozen runs: a table with origin, revision, licence and counts, and the commands that made them."""
    import pandas as pd

    from companion import book as figures
    from companion.corpora.frozen import frozen, frozen_meta

    rows, commands = [], []
    for name in frozen():
        meta = frozen_meta(name)
        counts = {key: meta["counts"][key] for key in ("memories", "queries", "namespaces")}
        rows.append(
            {
                "corpus": name,
                **counts,
                "licence": meta["licence"],
                "origin": str(meta["origin"]).partition(" ")[0].removeprefix("https://"),
                "revision": str(meta["revision"])[:12]
                + (" (unconfirmed)" if "no revision confirmed" in meta["origin"] else ""),
            }
        )
        commands.append(str(meta["command"]))
    if not rows:
        return "This checkout holds no frozen runs.\n"
    caption = "Frozen runs on public corpora in this checkout."
    made = "\nThey were made with\n\n```sh\n" + "\n".join(commands).replace(" --", " \\\n  --") + "\n```\n"
    return str(figures.table(pd.DataFrame(rows), name="frozen-runs", caption=caption).data["text/html"]) + "\n" + made


def arms_table() -> str:
    """Return the retrieval arms as an HTML table: what each does, parameters, kind and repetitions."""
    import pandas as pd

    from companion import book as figures
    from companion import retrieval

    rows = [
        {
            "arm": spec.name,
            "what it does": spec.description,
            "parameters": ", ".join(f"{key} {_plain(value)}" for key, value in spec.params.items()),
            "kind": f"{spec.role}, {spec.seeds} seeds" if spec.seeds else spec.role,
        }
        for spec in retrieval.known_arms().values()
    ]
    caption = "Every arm with its parameters. A control or diagnostic is no method: it shows what a method must beat."
    return str(figures.table(pd.DataFrame(rows), name="arms", caption=caption).data["text/html"]) + "\n"


def _plain(value: Any) -> str:
    return " and ".join(value) if isinstance(value, (list, tuple)) else str(value)


def channels_table() -> str:
    """Return the channels of metadata corruption as an HTML table."""
    import pandas as pd

    from companion import book as figures
    from companion.stages import corruption

    rows = [
        {
            "channel": channel.name,
            "the filter reads": channel.error,
            "candidates": {"both": "removes and admits"}.get(channel.direction, channel.direction),
            "held against": channel.reference,
        }
        for channel in corruption.CHANNELS.values()
    ]
    caption = "Channels of corruption, what the filter reads wrongly, and the unfiltered route that it is held against."
    return str(figures.table(pd.DataFrame(rows), name="channels", caption=caption).data["text/html"]) + "\n"


def demo_counts() -> str:
    """Return what our own corpus holds, counted when the page is built."""
    from companion import corpora, logic

    demo = corpora.load("demo")
    axes = demo.labels[list(logic.AXES)]
    open_pairs = axes.isna().any(axis=1).mean()
    return (
        f"{len(demo.memories):,} memories, {len(demo.queries):,} questions and {len(demo.labels):,} labelled pairs of "
        f"{demo.memories['namespace'].nunique()} principals in {demo.memories['source'].nunique()} settings. In "
        f"{open_pairs:.0%} of the labelled pairs at least one of {', '.join(logic.AXES)} is left open"
    )


def published_counts() -> str:
    """Return how much of the paper's evidence is committed, counted when the page is built."""
    from companion.stages import published

    figures, outcomes = published.figures(), published.table("exposure_outcomes")
    return (
        f"{len(figures):,} figures, {int(figures['published_low'].notna().sum())} of them with intervals, and "
        f"{len(outcomes):,} outcomes of paired units from {outcomes['reader'].nunique()} readers"
    )


def public_modules() -> list[str]:
    """Return the names of the package's public modules below ``companion``, in alphabetical order."""
    import companion

    found = pkgutil.walk_packages(companion.__path__, "companion.")
    names = [module.name.removeprefix("companion.") for module in found]
    return sorted(
        name for name in names if not name.startswith("cli") and "_" not in {part[0] for part in name.split(".")}
    )


def api_page(wanted: list[str], elsewhere: set[str]) -> str:
    """Return the part of an API page that documents some modules.

    Parameters
    ----------
    wanted : list of str
        Modules and packages below ``companion`` (a package stands for all in it); ``*`` for what no other page has.
    elsewhere : set of str
        What the other pages document.

    Returns
    -------
    str
        Markdown with one section per module.
    """
    names = public_modules()
    if wanted == ["*"]:
        wanted = sorted({name.partition(".")[0] for name in names} - elsewhere)
    parts = []
    for top in wanted:
        parts += [_module(name) for name in names if name == top or name.startswith(f"{top}.")]
    return "\n".join(part for part in parts if part)


def _module(name: str) -> str:
    """Document one module; of a package's inner modules only what the package itself does not offer."""
    full = f"companion.{name}"
    module = importlib.import_module(full)
    inner = "." in name
    options = ":members:"
    if inner:
        offered = set(getattr(importlib.import_module(full.rpartition(".")[0]), "__all__", ()))
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == full]
        listed = [key for key in getattr(module, "__all__", own) if not key.startswith("_") and key not in offered]
        listed = [
            key for key in listed if inspect.isroutine(getattr(module, key)) or inspect.isclass(getattr(module, key))
        ]
        if not listed:
            return ""
        options = f":members: {', '.join(listed)}"
    level = "###" if inner else "##"
    return f"{level} {full}\n\n```{{eval-rst}}\n.. automodule:: {full}\n   {options}\n```\n"


def _fill_api(env: BuildEnvironment, docname: str, text: str) -> str:
    mark = _MODULES_MARK.search(text)
    if mark is None:
        return text
    elsewhere: set[str] = set()
    for name in env.found_docs:
        if name.startswith(API) and name != docname:
            found = _MODULES_MARK.search(Path(env.doc2path(name)).read_text(encoding="utf-8"))
            elsewhere |= set(found[1].split()) if found else set()
    return text.replace(mark[0], api_page(mark[1].split(), elsewhere))


def fill_in(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put what is made at build time into the pages that have a mark for it."""
    if docname == COMMANDS:
        source[0] = source[0].replace(_COMMANDS_MARK, commands_page())
    elif docname == CITE:
        source[0] = source[0].replace(_CITATION_MARK, citation())
    elif docname == DATA:
        source[0] = source[0].replace(_CORPORA_MARK, corpora_table())
        source[0] = source[0].replace(_DEMO_MARK, demo_counts()).replace(_PUBLISHED_MARK, published_counts())
    elif docname == METHODS:
        source[0] = source[0].replace(_ARMS_MARK, arms_table()).replace(_CHANNELS_MARK, channels_table())
    elif docname.startswith(API):
        source[0] = _fill_api(app.env, docname, source[0])


def read_again(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Name the pages to read again although their text is the same."""
    if GLOSSARY in changed | added:
        return sorted(env.found_docs)
    state = runs.digest(runs.source_hashes())
    same, env.companion_state = getattr(env, "companion_state", "") == state, state
    return [name for name in env.found_docs if name in LIVING or (name.startswith(API) and not same)]


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


_LIVE_CODE = re.compile(
    r'<script type="text/x-thebe-config">.*?</script>\s*(<script>kernelName = .*?</script>)?', re.DOTALL
)


def drop_live_code(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Leave out the settings of live code where none is offered: they name hosts that no page may ask."""
    offered = bool(app.config.html_theme_options.get("launch_buttons", {}).get("thebe"))
    if not offered and "x-thebe-config" in (context.get("body") or ""):
        context["body"] = _LIVE_CODE.sub("", context["body"])


def name_toggles(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Give the sidebar's arrows a name; the theme draws them as bare icons."""
    made = context.get("generate_toctree_html")
    if made is None:
        return

    def named(kind: str, **options: Any) -> Any:
        tree = made(kind=kind, **options)
        for item in tree.select("details > summary") if hasattr(tree, "select") else []:
            link = item.find_parent("li").find("a")
            item["aria-label"] = f"Pages of {link.get_text(strip=True)}" if link else "More pages"
        return tree

    context["generate_toctree_html"] = named


def offer_downloads(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Offer each chapter as text notebook and as .ipynb, whichever of the two the page was made from."""
    if app.builder.format != "html" or not pagename.startswith("notebooks/"):
        return
    for group in context.get("header_buttons", []):
        if group.get("label") != "download-buttons":
            continue
        links = [button for button in group["buttons"] if button.get("type") == "link"]
        if not links:
            continue
        offered = [_download(app, pagename, suffix, context) for suffix in (".md", ".ipynb")]
        others = [button for button in group["buttons"] if button.get("type") != "link"]
        group["buttons"] = [{**links[-1], **found} for found in offered if found] + others


def _download(app: Sphinx, pagename: str, suffix: str, context: dict[str, Any]) -> dict[str, str] | None:
    from companion.paths import project_root

    target = Path(app.outdir) / "_sources" / f"{pagename}{suffix}"
    made_from = Path(app.env.doc2path(pagename)).suffix
    text = project_root() / f"{pagename}.md"
    if suffix != made_from:
        if not text.is_file():
            return None
        content = text.read_text(encoding="utf-8") if suffix == ".md" else _as_notebook(text)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file() or target.read_text(encoding="utf-8") != content:
            target.write_text(content, encoding="utf-8")
    return {
        "url": f"{context['pathto']('_sources', 1)}/{pagename}{suffix}",
        "text": suffix,
        "tooltip": "Download as text notebook" if suffix == ".md" else "Download as Jupyter notebook",
        "label": "download-source-button" if suffix == ".md" else "download-notebook-button",
    }


def _as_notebook(path: Path) -> str:
    import nbformat

    from companion.book import runs

    return str(nbformat.writes(runs.read_notebook(path))) + "\n"


def as_literal(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Show what a module's docstring sets off by indenting (layouts, shapes) as it is written."""
    if what != "module":
        return
    for place in range(len(lines) - 1, -1, -1):
        line, above = lines[place], lines[place - 1].strip() if place else ""
        starts = line.startswith("    ") and not above
        before = next((text for text in reversed(lines[:place]) if text.strip()), "")
        if starts and before and not before.startswith("    ") and not before.endswith("::"):
            lines[place:place] = ["::", ""]


def configure(app: Sphinx, config: Config) -> None:
    """Settle how docstrings are read: numpydoc sections, members in the order of the source, types as written."""
    # The excerpts of search results are fetched from the pages, which a browser refuses to a site opened from disk.
    config.html_show_search_summary = False
    config.autodoc_typehints = "none"
    config.autodoc_member_order = "bysource"
    config.autodoc_preserve_defaults = True
    config.autodoc_class_signature = "mixed"
    config.autodoc_default_options = {"members": True, "no-value": True}
    config.default_role = "literal"
    config.napoleon_google_docstring = False
    config.napoleon_use_rtype = False
    config.napoleon_use_ivar = True
    config.toc_object_entries_show_parents = "hide"
    # Types in docstrings are words; where two classes share a name, either is as good a link.
    config.suppress_warnings = [*config.suppress_warnings, "ref.python"]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.napoleon")
    app.connect("config-inited", configure)
    app.connect("source-read", fill_in)
    app.connect("autodoc-process-docstring", as_literal)
    app.connect("env-get-outdated", read_again)
    app.connect("html-page-context", explain_terms)
    # After every other extension has had its say about the buttons.
    app.connect("html-page-context", offer_downloads, priority=995)
    app.connect("html-page-context", name_toggles, priority=995)
    app.connect("html-page-context", drop_live_code)
    app.add_css_file("terms.css")
    app.add_js_file("terms.js", loading_method="defer")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
