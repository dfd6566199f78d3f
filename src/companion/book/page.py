"""A chapter as one standalone HTML file: prose, numbers, charts and mathematics, with no other file or host.

The body comes from Sphinx and MyST-NB, as in the book, so roles such as ``{glue:text}`` and citations read the
same; only the frame differs.
"""

from __future__ import annotations

import copy
import html
import importlib.metadata
import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from companion.book.render import asset, bundle, font_script, style_sheet

MATHJAX_FILE = "tex-svg-full.js"


def mathjax_source() -> Path:
    """Return the path of the one MathJax file that pages use, inside the installed package.

    SVG output needs no web fonts: browsers restrict the fonts of a page opened from disk.
    """
    for file in importlib.metadata.files("sphinx-mathjax-offline") or []:
        if file.name == MATHJAX_FILE and file.parent.name == "mathjax":
            return Path(str(file.locate()))
    raise FileNotFoundError(f"sphinx-mathjax-offline holds no {MATHJAX_FILE}")


_BIBLIOGRAPHY = "## References\n\n```{bibliography}\n```\n"


def frame(title: str, body: str) -> str:
    """Put an HTML body into a standalone page with the styles and scripts it needs, all inline."""
    style = style_sheet() + asset("page.css") + _highlighting(body)
    scripts = f"<script>{page_script()}</script>\n"
    if 'data-companion="chart"' in body:
        scripts += f"<script>{_inline(bundle())}</script>\n"
    if 'class="math' in body:
        settings = {
            "options": {"processHtmlClass": "math", "ignoreHtmlClass": "companion-page", "enableMenu": False},
            "svg": {"fontCache": "local"},
        }
        scripts += f"<script>window.MathJax={json.dumps(settings)}</script>\n"
        scripts += f"<script>{_inline(mathjax_source().read_text(encoding='utf-8'))}</script>\n"
    parts = {"title": html.escape(title), "style": style, "fonts": font_script(), "body": body, "scripts": scripts}
    return re.sub(r"\{(title|style|fonts|body|scripts)\}", lambda match: parts[match[1]], asset("page.html"))


def page_script() -> str:
    """Return the small script of every page: what scrolls sideways has the keyboard, and paper is white."""
    return asset("page.js")


def _inline(script: str) -> str:
    """Make a script safe inside a script element; in JavaScript strings the escape changes nothing."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _highlighting(body: str) -> str:
    if 'class="highlight' not in body:
        return ""
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]

    light = HtmlFormatter(style="a11y-high-contrast-light").get_style_defs(".highlight")
    dark = HtmlFormatter(style="a11y-high-contrast-dark").get_style_defs('html[data-theme="dark"] .highlight')
    return f"{light}\n{dark}\n"


def standalone_page(notebook: Any, bibliography: Path | None = None) -> str:
    """Render an executed notebook as one standalone page."""
    import nbformat
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    settings = _sphinx_settings()
    cites = any("{cite" in cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    if cites:
        notebook = copy.deepcopy(notebook)
        notebook.cells.append(nbformat.v4.new_markdown_cell(_BIBLIOGRAPHY, id="bibliography"))
    with tempfile.TemporaryDirectory(prefix="companion-page-") as folder:
        source, out = Path(folder) / "source", Path(folder) / "out"
        source.mkdir()
        (source / "index.ipynb").write_text(nbformat.writes(notebook), encoding="utf-8")
        if cites and bibliography is not None and bibliography.is_file():
            (source / "references.bib").write_bytes(bibliography.read_bytes())
            settings["extensions"].append("sphinxcontrib.bibtex")
            settings["bibtex_bibfiles"] = ["references.bib"]
        with patch_docutils(), docutils_namespace():
            app = Sphinx(
                str(source),
                None,
                str(out),
                str(Path(folder) / "doctrees"),
                "json",
                confoverrides=settings,
                status=None,
                warning=io.StringIO(),
            )
            app.build(force_all=True)
        made = json.loads((out / "index.fjson").read_text(encoding="utf-8"))
    body = re.sub(r'<a class="companion-site"[^>]*>(.*?)</a>', r"\1", made["body"])  # it stands in the site only
    return frame(html.unescape(_without_tags(made["title"])), body)


def _sphinx_settings() -> dict[str, Any]:
    return {
        "extensions": ["myst_nb", "sphinx.ext.mathjax", "sphinx_design"],
        "nb_execution_mode": "off",
        "nb_merge_streams": True,
        "nb_code_prompt_show": "Code",
        "nb_code_prompt_hide": "Code",
        "nb_output_stderr": "remove",
        "myst_enable_extensions": ["amsmath", "colon_fence", "deflist", "dollarmath", "smartquotes", "tasklist"],
        "myst_heading_anchors": 3,
        "project": "companion",
        # Links to other chapters have no target in a single page; they read as text.
        "suppress_warnings": ["myst.xref_missing", "ref"],
    }


def _without_tags(text: str) -> str:
    return re.sub(r"<[^>]+>", "", text)
