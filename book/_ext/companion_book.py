"""Sphinx extension of the book: local charts and mathematics, a kernel of our own, one place for the repository.

Loaded by ``_config.yml``. Everything a page needs is written into the build's ``_static`` folder from installed
packages, so that the site asks no other host for anything and works when opened from disk.
"""

from __future__ import annotations

import html
import re
from importlib import resources
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

from companion import book as figures
from companion.book import runs
from companion.book.page import mathjax_source, page_script
from companion.book.render import font_faces, font_script

CARD = "companion-card.png"
SCRIPT = "companion-figures.js"
STYLE = "companion-figures.css"
FONTS = "companion-fonts.js"
FACES = "companion-fonts.css"
MATHJAX = "companion-mathjax.js"
PAGE = "companion-page.js"
# The theme learns a new reader's mode from a script that runs after the page was shown once, in light.
_MODE_FIRST = """(function (page) {
  if (page.mode !== "auto" && page.theme) return;
  page.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
})(document.documentElement.dataset);"""
COLAB = "https://colab.research.google.com"


class DataTable(SphinxDirective):
    """``companion-data``: the files under ``data/`` with size and SHA-256, as they are at build time."""

    def run(self) -> list[nodes.Node]:
        """Return the table as one raw node."""
        import pandas as pd

        root = runs.data_dir()
        rows = [(path, (root / path).stat().st_size, digest) for path, digest in runs.data_hashes().items()]
        table = pd.DataFrame(rows, columns=["file", "bytes", "sha256"])
        made = figures.table(table, name="data-files", caption="Files under `data/` when this book was built.")
        return [nodes.raw("", made.data["text/html"], format="html")]


def configure(app: Sphinx, config: Config) -> None:
    """Settle what depends on this checkout: mathematics, the execution cache, and the launch buttons."""
    config.mathjax_path = MATHJAX
    mathjax = dict(config.mathjax3_config or {})
    # The menu would offer to load parts of MathJax that are not here.
    mathjax["options"] = {**mathjax.get("options", {}), "enableMenu": False}
    mathjax["svg"] = {"fontCache": "local"}
    config.mathjax3_config = mathjax
    if config.nb_execution_mode == "cache" and not config.nb_execution_cache_path:
        # A cached output is valid for this text, this code and these data; jupyter-cache knows only the text.
        folder = Path(app.outdir).parent / ".jupyter_cache" / runs.fingerprint()[:16]
        config.nb_execution_cache_path = str(folder)
    options: dict[str, Any] = config.html_theme_options
    if str(options.get("repository_url") or "").strip():
        options.update(use_repository_button=True, use_issues_button=True, use_source_button=True)
        options["launch_buttons"] = {
            "binderhub_url": "https://mybinder.org",
            "thebe": True,
            "notebook_interface": "jupyterlab",
        }
        if "//github.com/" in str(options["repository_url"]):  # Colab reads from no other host
            options["launch_buttons"]["colab_url"] = COLAB
    else:
        options.pop("repository_url", None)
        options["launch_buttons"] = {}


def write_assets(app: Sphinx) -> None:
    """Write script, style sheet and MathJax into the build, before any page refers to them."""
    if app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    static.mkdir(parents=True, exist_ok=True)
    # MyST-NB writes its style sheet when a build ends, so only a second build would know its checksum.
    late = [name for name, _ in app.registry.css_files if name.startswith("mystnb.")]
    notebook_style = (resources.files("myst_nb.static") / "mystnb.css").read_bytes()
    for name, content in (
        *((name, notebook_style) for name in late),
        (SCRIPT, figures.bundle().encode()),
        (STYLE, figures.style_sheet().encode()),
        (MATHJAX, mathjax_source().read_bytes()),
        (PAGE, page_script().encode()),
        (CARD, social_card()),
        (FONTS, font_script().encode()),
        (FACES, font_faces().encode()),
    ):
        target = static / name
        if not target.exists() or target.read_bytes() != content:
            target.write_bytes(content)
    app.add_css_file(STYLE)
    app.add_js_file(FONTS, priority=50)
    app.add_js_file(PAGE, loading_method="defer")
    app.add_js_file(None, body=_MODE_FIRST, priority=100)


def tidy_scripts(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Drop scripts that two extensions both add, and Thebe's where no live code is offered.

    A script that declares a constant twice stops with an error on every page.
    """
    thebe = bool(app.config.html_theme_options.get("launch_buttons", {}).get("thebe"))
    kept, seen = [], set()
    for script in context.get("script_files", []):
        body = str(getattr(script, "attributes", {}).get("body") or "")
        key = body or str(script)
        is_thebe = "sphinx-thebe.js" in str(script) or "THEBE_JS_URL" in body
        if key not in seen and (thebe or not is_thebe):
            kept.append(script)
        seen.add(key)
    context["script_files"] = kept
    if not thebe:
        context["css_files"] = [css for css in context.get("css_files", []) if "sphinx-thebe" not in str(css)]


def mend_roles(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Give the entries of a bibliography the role that their list asks for; docutils writes a deprecated one."""
    if "body" in context:
        context["body"] = context["body"].replace(' role="doc-biblioentry"', ' role="listitem"')


def point_at_sources(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Let launch buttons name the text notebook of the repository, whatever form the page was built from.

    Colab opens .ipynb only: its button leads to the branch that ``book/colab.py`` fills.
    """
    for group in context.get("header_buttons", []):
        for button in group.get("buttons", []):
            url = button.get("url")
            if isinstance(url, str) and url.startswith(COLAB):
                button["url"] = re.sub(r"/blob/.*$", f"/blob/colab/{pagename}.ipynb", url)
            elif isinstance(url, str):
                button["url"] = url.replace(f"{pagename}.ipynb", f"{pagename}.md")


def add_script(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Load the charts' script on pages that hold a chart, and MathJax on those with a formula; nowhere else."""
    body = context.get("body") or ""
    if 'data-companion="chart"' in body:
        # Before MathJax (500), which is three times as long: the first figure need not wait for it.
        app.add_js_file(SCRIPT, loading_method="defer", priority=400)
    if 'class="math' not in body:
        scripts = context.get("script_files", [])
        kept = [js for js in scripts if "athJax" not in str(getattr(js, "attributes", "")) and MATHJAX not in str(js)]
        context["script_files"] = kept


def describe(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Tell search engines and messengers what a page is about: its first sentences, and a picture of the book."""
    context["book_title"] = app.config.html_title
    if pagename == app.config.root_doc:
        context["docstitle"] = ""  # or its title would read "X - X"
    paragraphs = [part.astext() for part in doctree.findall(nodes.paragraph)] if doctree is not None else []
    text = " ".join(next((words for words in paragraphs if len(words) > 60), app.config.html_title or "").split())
    short = text if len(text) <= 160 else text[:157].rsplit(" ", 1)[0] + " …"
    card = context["pathto"](f"_static/{CARD}", resource=True)
    title = re.sub(r"<[^>]+>", "", str(context.get("title") or ""))
    tags = {"og:type": "article", "og:title": title, "og:description": short, "og:image": card}
    made = [f'<meta name="description" content="{html.escape(short, quote=True)}">']
    made += [f'<meta property="{key}" content="{html.escape(value, quote=True)}">' for key, value in tags.items()]
    faces = context["pathto"](f"_static/{FACES}", resource=True)
    made += [f'<noscript><link rel="stylesheet" href="{faces}"></noscript>']
    made += ['<meta name="twitter:card" content="summary_large_image">']
    context["metatags"] = (context.get("metatags") or "") + "\n".join(made)


def social_card() -> bytes:
    """Draw the picture that messengers show beside a link: the paper's headline in one glance."""
    import io

    import matplotlib.pyplot as plt

    from companion.book import stills
    from companion.stages import published

    words = {"evidence_recall": "evidence found", "feasible_rate": "questions answerable", "loss": "loss"}
    rows = published.figures().query("contrast == 'top_20' and subject == 'namespace_dense-global_dense'")
    rows = rows.assign(metric=rows["metric"].map(published.PUBLISHED_METRICS)).drop_duplicates("metric")
    rows = rows.set_index("metric").loc[list(words)].reset_index()
    ends = {"estimate": "published", "low": "published_low", "high": "published_high"}
    table = rows.assign(what=rows["metric"].map(words), **{end: 100 * rows[name] for end, name in ends.items()})
    title = "The Right Memory in the Wrong Context"
    axis = "points, searching one's own memories instead of everyone's"
    ax = stills.forest(table, y="what", title=title, x=axis, height=3.15)
    ax.figure.set_size_inches(6, 3.15)
    ax.figure.suptitle(title, x=0.02, ha="left", fontsize=17, fontweight=600)
    buffer = io.BytesIO()
    ax.figure.savefig(buffer, format="png", dpi=200, facecolor="white", metadata={"Software": None})
    plt.close(ax.figure)
    return buffer.getvalue()


class CodeBelow(SphinxPostTransform):
    """Put a cell's folded code behind what the cell shows: in the page itself, so that nothing moves as it loads."""

    default_priority = 250  # after the transform that folds the code
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Move every fold to the end of its cell; what is folded with all that it shows solves an exercise."""
        for cell in list(self.document.findall(nodes.container)):
            folds = [child for child in cell.children if isinstance(child, HideCodeCellNode)]
            if folds and cell.get("hide_mode") == "all":
                folds[0]["prompt_show"] = "Solution"
            elif folds and cell.get("hide_mode") == "input":
                cell.children.remove(folds[0])
                cell.append(folds[0])


def open_code(translator: Any, node: HideCodeCellNode) -> None:
    """Begin a fold that is named by the word one sees."""
    translator.body.append(f'<details class="companion-code">\n<summary>{node["prompt_show"]}</summary>\n')


def close_code(translator: Any, node: HideCodeCellNode) -> None:
    """End it."""
    translator.body.append("</details>\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    # Before any notebook runs: whatever "python3" means to this user's Jupyter, chapters run in this interpreter.
    kernel = runs.own_kernel()
    kernel.__enter__()
    app.connect("build-finished", lambda app, error: kernel.__exit__(None, None, None))
    app.connect("config-inited", configure, priority=900)
    app.connect("builder-inited", write_assets)
    app.connect("html-page-context", add_script)
    app.connect("html-page-context", describe)
    app.connect("html-page-context", mend_roles)
    app.connect("html-page-context", tidy_scripts, priority=990)
    app.connect("html-page-context", point_at_sources, priority=990)
    app.add_directive("companion-data", DataTable)
    app.setup_extension("myst_nb")  # whose folds are replaced
    app.add_node(HideCodeCellNode, override=True, html=(open_code, close_code))
    app.add_post_transform(CodeBelow)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
