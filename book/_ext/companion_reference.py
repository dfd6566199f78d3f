"""Sphinx extension of the reference pages: commands from the app, API from docstrings, definitions on hover.

Everything is made when the book is built, so that a page cannot describe what the code no longer does. A page says
where with a mark, such as ``<!-- commands -->`` or ``<!-- api: logic tables -->``.
"""

from __future__ import annotations

import html
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

GLOSSARY = "book/glossary"
_MARK = re.compile(r"<!-- (\w+)(?:: ([^>]*?))? -->")
_TERM = re.compile(r'<a class="reference internal" href="([^"]*)#(term-[^"]+)">')
_INLINE_MATH = re.compile(r'<span class="math notranslate nohighlight">\\\((.*?)\\\)</span>', re.DOTALL)
_DISPLAY_MATH = re.compile(r'<div class="math notranslate nohighlight"[^>]*>(.*?)</div>', re.DOTALL)
_ARXIV = re.compile(
    r"(<(?:a|code|pre|script|title)\b.*?</(?:a|code|pre|script|title)>|<[^>]*>)|(arXiv[: ](\d{4}\.\d{5}))", re.DOTALL
)
_ABS = "https://arxiv.org/abs/"
_LIVE_CODE = re.compile(
    r'<script type="text/x-thebe-config">.*?</script>\s*(<script>kernelName = .*?</script>)?', re.DOTALL
)


# --- what stands at a mark -----------------------------------------------------------------------------------------


def commands_page() -> str:
    """Return the commands as Markdown: usage, arguments and options of each, as ``--help`` has them."""
    import typer
    from typer.cli import get_docs_for_click

    from companion.cli import app

    command: Any = typer.main.get_command(app)
    context = type(command).context_class(command, info_name="companion")
    parts = []
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        inner = type(found).context_class(found, info_name=name, parent=context)
        text = get_docs_for_click(obj=found, ctx=inner, call_prefix="companion", indent=1, title=f"companion {name}")
        # A prompt would be copied along with the line.
        text = text.replace("```console\n$ ", "```text\n").replace("**Usage**:\n\n", "")
        parts += [line if line.startswith(("```", "companion")) else _plain(line) for line in text.splitlines()]
    return "\n".join(parts) + "\n"


def _plain(line: str) -> str:
    """Keep angle brackets and options as they are written; in code, every second part, they are kept anyway."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"(?<![\w-])--[a-z][\w-]*", r"`\g<0>`", part.replace("<", "\\<")) for part in parts[::2]]
    return "`".join(parts)


def citation() -> str:
    """Return the companion's own part of ``CITATION.cff``, without the paper that it prefers."""
    from companion.paths import project_root

    text = (project_root() / "CITATION.cff").read_text(encoding="utf-8")
    return "```yaml\n" + text.partition("preferred-citation:")[0] + "```\n"


def _table(rows: list[dict[str, Any]], name: str, caption: str) -> str:
    import pandas as pd

    from companion import book

    return str(book.table(pd.DataFrame(rows), name=name, caption=caption).data["text/html"]) + "\n"


def corpora_table() -> str:
    """Return the frozen runs: a table with origin, revision, licence and counts, and the commands that made them."""
    from companion.corpora.frozen import frozen, frozen_meta

    held = {name: frozen_meta(name) for name in frozen()}
    if not held:
        return "This checkout holds no frozen runs.\n"
    rows = [
        {
            "corpus": name,
            **{key: meta["counts"][key] for key in ("memories", "queries", "namespaces")},
            "licence": meta["licence"],
            "origin": str(meta["origin"]).partition(" ")[0].removeprefix("https://"),
            "revision": f"{meta['revision']}"[:12] + " (unconfirmed)" * ("no revision confirmed" in meta["origin"]),
        }
        for name, meta in held.items()
    ]
    made = "\n".join(str(meta["command"]).replace(" --", " \\\n  --") for meta in held.values())
    table = _table(rows, "frozen-runs", "Frozen runs on public corpora in this checkout.")
    return f"{table}\nThey were made with\n\n```sh\n{made}\n```\n"


def arms_table() -> str:
    """Return the retrieval arms: what each does, parameters, kind and repetitions."""
    from companion import retrieval
    from companion.book.palette import ARM_NAMES

    def told(value: Any) -> str:
        return " and ".join(value) if isinstance(value, list | tuple) else str(value)

    rows = [
        {
            "arm": spec.name,
            "in the text": ARM_NAMES.get(spec.name, ""),
            "what it does": spec.description,
            "parameters": ", ".join(f"{key} {told(value)}" for key, value in spec.params.items()),
            "kind": f"{spec.role}, {spec.seeds} seeds" if spec.seeds else spec.role,
        }
        for spec in retrieval.known_arms().values()
    ]
    caption = "Every arm with its parameters. A control or diagnostic is no method: it shows what a method must beat."
    return _table(rows, "arms", caption)


def channels_table() -> str:
    """Return the channels of metadata corruption."""
    from companion.stages import corruption

    words = {"both": "removes and admits"}
    rows = [
        {
            "channel": channel.name,
            "the filter reads": channel.error,
            "candidates": words.get(channel.direction, channel.direction),
            "held against": channel.reference,
        }
        for channel in corruption.CHANNELS.values()
    ]
    caption = "Channels of corruption, what the filter reads wrongly, and the unfiltered route that it is held against."
    return _table(rows, "channels", caption)


def demo_counts() -> str:
    """Return what our own corpus holds, counted when the page is built."""
    from companion import corpora, logic

    demo = corpora.load("demo")
    axes = demo.labels[list(logic.AXES)]
    memories = demo.memories
    return (
        f"{len(memories):,} memories, {len(demo.queries):,} questions and {len(demo.labels):,} labelled pairs of "
        f"{memories['namespace'].nunique()} principals in {memories['source'].nunique()} settings. In "
        f"{axes.isna().any(axis=1).mean():.0%} of the labelled pairs scope, policy or lifecycle is left open"
    )


def published_counts() -> str:
    """Return how much of the paper's evidence is committed, counted when the page is built."""
    from companion.stages import published

    figures, outcomes = published.figures(), published.table("exposure_outcomes")
    return (
        f"{len(figures):,} figures, {int(figures['published_low'].notna().sum())} of them with intervals, and "
        f"{len(outcomes):,} outcomes of paired units from {outcomes['reader'].nunique()} readers"
    )


def public_names(tops: str) -> Iterator[tuple[str, list[str]]]:
    """Give modules below ``companion`` with the names to document: those whose docstring says what goes in and out.

    A name stands under the package that offers it, such as ``companion.tables.load_records``. ``tops`` lists modules
    and packages, and single names (``logic.usable``) to document although their docstring is one line.
    """
    import companion

    wanted = tops.split()
    found: dict[str, list[str]] = {f"companion.{top}": [] for top in wanted}
    known = sorted(module.name for module in pkgutil.walk_packages(companion.__path__, "companion."))
    single = [name for name in found if name not in known]
    for name in single:
        del found[name]
        module, _, member = name.rpartition(".")
        found.setdefault(module, []).append(member)
    inside = [name for name in known if any(f"{name}.".startswith(f"companion.{top}.") for top in wanted)]
    for name in inside:
        if re.fullmatch(r"companion\.stages\.\w+", name):  # what a study is about stands in its module
            found.setdefault(name, [])
        for key, thing in vars(importlib.import_module(name)).items():
            own = getattr(thing, "__module__", "") == name and not key.startswith("_")
            told = own and callable(thing) and re.search(r"^\s*(Parameters|Returns)\n\s*---", thing.__doc__ or "", re.M)
            if told:
                found.setdefault(_offered_by(name, key, thing), []).append(key)
    yield from ((name, list(dict.fromkeys(keys))) for name, keys in sorted(found.items()))


def _offered_by(module: str, key: str, thing: Any) -> str:
    parts = module.split(".")
    for size in range(2, len(parts)):
        package = ".".join(parts[:size])
        if getattr(importlib.import_module(package), key, None) is thing:
            return package
    return module


def api_page(tops: str) -> str:
    """Return the part of an API page that documents some modules, as Markdown."""
    parts = []
    for name, keys in public_names(tops):
        module = importlib.import_module(name)
        kinds = {key: "class" if inspect.isclass(getattr(module, key)) else "function" for key in keys}
        lines = [f".. automodule:: {name}\n   :no-members:"]
        lines += [
            f".. auto{kind}:: {name}.{key}" + "\n   :no-members:" * (kind == "class") for key, kind in kinds.items()
        ]
        parts.append(f"## {name}\n\n```{{eval-rst}}\n" + "\n\n".join(lines) + "\n```\n")
    return "\n".join(parts)


MAKERS: Mapping[str, Any] = {
    "commands": commands_page,
    "citation": citation,
    "corpora": corpora_table,
    "arms": arms_table,
    "channels": channels_table,
    "demo": demo_counts,
    "published": published_counts,
    "api": api_page,
}


def fill_in(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put what is made at build time into the pages that have a mark for it."""

    def made(match: re.Match[str]) -> str:
        maker = MAKERS.get(match[1])
        return match[0] if maker is None else str(maker(match[2]) if match[2] else maker())

    if docname.startswith("book/"):
        source[0] = _MARK.sub(made, source[0])


def read_again(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Name the pages to read again although their text is the same: those with a mark, when the code has changed."""
    from companion.book import runs

    if GLOSSARY in changed | added:
        return sorted(env.found_docs)
    state = runs.fingerprint()
    if getattr(env, "companion_state", "") == state:
        return []
    env.companion_state = state  # type: ignore[attr-defined]
    pages = {name: Path(env.doc2path(name)) for name in env.found_docs if name.startswith("book/")}
    return [name for name, path in pages.items() if _MARK.search(path.read_text(encoding="utf-8"))]


# --- what every page gets ------------------------------------------------------------------------------------------


def definitions(env: BuildEnvironment) -> dict[str, str]:
    """Return the glossary as plain text by the id of each term."""
    found: dict[str, str] = {}
    glossaries = env.get_doctree(GLOSSARY).findall(addnodes.glossary) if GLOSSARY in env.found_docs else ()
    for item in (item for glossary in glossaries for item in glossary.findall(nodes.definition_list_item)):
        words = " ".join(part.astext() for part in item.findall(nodes.definition))
        for term in item.findall(nodes.term):
            found.update(dict.fromkeys(term["ids"], " ".join(words.split())))
    return found


def finish_page(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Give links to the glossary their definition, and leave out live code that would ask another host."""
    body = context.get("body") or ""
    if "#term-" in body and pagename != GLOSSARY:
        known = getattr(app, "companion_definitions", None)
        if known is None:
            known = app.companion_definitions = definitions(app.env)  # type: ignore[attr-defined]

        def link(match: re.Match[str]) -> str:
            words = html.escape(known.get(match[2], ""), quote=True)
            here = f'<a class="reference internal companion-term" href="{match[1]}#{match[2]}" title="{words}">'
            return here if words else match[0]

        body = _TERM.sub(link, body)
    body = _INLINE_MATH.sub(_with_room, body)
    body = _DISPLAY_MATH.sub(_with_height, body)
    body = body.replace("</em>) -- ", "</em>): ") if pagename.startswith("book/api/") else body
    body = _ARXIV.sub(lambda m: m[1] or f'<a class="reference external" href="{_ABS}{m[3]}">{m[2]}</a>', body)
    body = body.replace("<th></th>", "<td></td>")  # pandas heads the column of its index with nothing
    if not app.config.html_theme_options.get("launch_buttons", {}).get("thebe"):
        body = _LIVE_CODE.sub("", body)
    if "body" in context:
        context["body"] = body


#: Widths of glyphs as MathJax sets them, in em; spaces around relations and behind commas are part of them.
_GLYPHS = {**dict.fromkeys("=<>", 1.47), **dict.fromkeys("+-\u2212", 1.34), **dict.fromkeys("()[]", 0.43)}
_GLYPHS |= {",": 0.49, "|": 0.31, ".": 0.31, "i": 0.38, "t": 0.4, "m": 0.96, "w": 0.79, "N": 0.98, "K": 0.98, "S": 0.71}
_SMALL = re.compile(r"[_^](\{[^{}]*\}|\\[a-zA-Z]+|.)")


def _with_room(match: re.Match[str]) -> str:
    """Say how wide a formula in a line will be, so that its line breaks where it will, before MathJax has set it."""
    tex = re.sub(r"\\(?:text|mathrm|mathcal|operatorname)\b|\\[,;! ]", "", html.unescape(match[1]))
    size = _width(_SMALL.sub("", tex)) + 0.72 * sum(map(_width, _SMALL.findall(tex)))
    return match[0].replace("<span ", f'<span style="--companion-room:{max(size, 0.4):.2f}em" ', 1)


def _width(tex: str) -> float:
    tex = re.sub(r"\\[{}]", "k", tex)
    tex = re.sub(r"\\(?:ge|le|in|subseteq|to)\b", "=", tex)
    tex = re.sub(r"\\(?:cap|cup|wedge|times|cdot)\b", "+", tex)
    glyphs = re.sub(r"[{}\s]", "", re.sub(r"\\[a-zA-Z]+", "k", tex))
    return sum(_GLYPHS.get(glyph, 0.85 if glyph.isupper() else 0.54) for glyph in glyphs)


def _with_height(match: re.Match[str]) -> str:
    """Say how high a formula will be, so that what stands below it stays where it is when MathJax sets it."""
    rows = match[1].count("\\\\") + 1
    tall = bool(re.search(r"\\(?:frac|dfrac|sum|underbrace)", match[1]))
    return match[0].replace("<div ", f'<div style="--companion-height:{2 + (1.2 + 1.3 * tall) * rows:.2g}rem" ', 1)


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
        links = [button for button in group.get("buttons", []) if button.get("type") == "link"]
        if group.get("label") == "download-buttons" and links:
            offered = [_download(app, pagename, suffix, context) for suffix in (".md", ".ipynb")]
            others = [button for button in group["buttons"] if button.get("type") != "link"]
            group["buttons"] = [{**links[-1], **found} for found in offered if found] + others


def _download(app: Sphinx, pagename: str, suffix: str, context: dict[str, Any]) -> dict[str, str] | None:
    import nbformat

    from companion.book import runs
    from companion.paths import project_root

    target = Path(app.outdir) / "_sources" / f"{pagename}{suffix}"
    text = project_root() / f"{pagename}.md"
    if suffix != Path(app.env.doc2path(pagename)).suffix:
        if not text.is_file():
            return None
        made = text.read_text(encoding="utf-8") if suffix == ".md" else nbformat.writes(runs.read_notebook(text)) + "\n"
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file() or target.read_text(encoding="utf-8") != made:
            target.write_text(made, encoding="utf-8")
    return {
        "url": f"{context['pathto']('_sources', 1)}/{pagename}{suffix}",
        "text": suffix,
        "tooltip": "Download as text notebook" if suffix == ".md" else "Download as Jupyter notebook",
        "label": "download-source-button" if suffix == ".md" else "download-notebook-button",
    }


def as_literal(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Show what a module's docstring sets off by indenting (layouts, shapes) as it is written."""
    for place in range(len(lines) - 1, -1, -1) if what == "module" else ():
        starts = lines[place].startswith("    ") and not (place and lines[place - 1].strip())
        before = next((text for text in reversed(lines[:place]) if text.strip()), "")
        if starts and before and not before.startswith("    ") and not before.endswith("::"):
            lines[place:place] = ["::", ""]


def configure(app: Sphinx, config: Config) -> None:
    """Settle how docstrings are read: numpydoc sections, members in the order of the source, types as written."""
    # The excerpts of search results are fetched from the pages, which a browser refuses to a site opened from disk.
    config.html_show_search_summary = False
    config.smartquotes_action = "qe"  # dashes of options stay what they are
    config.autodoc_typehints = "none"
    config.autodoc_preserve_defaults = True
    config.autodoc_class_signature = "mixed"
    config.default_role = "literal"
    config.napoleon_google_docstring = False
    config.napoleon_use_rtype = False
    config.napoleon_use_param = False  # several names in one entry stay together
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
    app.connect("html-page-context", finish_page)
    # After every other extension has had its say about the buttons.
    app.connect("html-page-context", offer_downloads, priority=995)
    app.connect("html-page-context", name_toggles, priority=995)
    app.add_css_file("terms.css")
    app.add_js_file("terms.js", loading_method="defer")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
