"""Sites that the tests open, built once for all workers, and the browser that opens them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]
#: Makes every chapter run through all its code in little time.
SMALL = {"replicates": 200}


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all workers of this test run share."""
    base = factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base


def once(folder: Path, name: str, make) -> Path:
    """Make a folder once for all workers; a failure is not repeated by each of them."""
    target, broken = folder / name, folder / f"{name}.failed"
    with FileLock(folder / f"{name}.lock"):
        if broken.exists():
            pytest.fail(f"{name} could not be made: {broken.read_text()}")
        if not target.exists():
            try:
                make(target)
            except BaseException as error:
                broken.write_text(str(error))
                raise
    return target


def specimen_project(folder: Path, repository: str = "") -> Path:
    """Lay out a small project: the book's own pages and settings, with one chapter that uses everything."""
    (folder / "notebooks").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "specimens" / "01-specimen.md", folder / "notebooks")
    for part in ("published", "demo"):
        shutil.copytree(ROOT / "data" / part, folder / "data" / part)
    shutil.copytree(ROOT / "book" / "_ext", folder / "book" / "_ext")
    for part in ("_static", "_templates"):
        shutil.copytree(ROOT / "book" / part, folder / "book" / part)
    for page in ("index.md", "how-to-read.md", "how-to-rerun.md", "data.md", "references.md", "references.bib"):
        if (ROOT / "book" / page).exists():
            shutil.copy(ROOT / "book" / page, folder / "book")
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    (folder / "_config.yml").write_text(config.replace('url: ""', f'url: "{repository}"'), encoding="utf-8")
    # The front page and its links change with the real book; the specimen has a front page of its own.
    (folder / "book" / "index.md").write_text("# Specimen book\n\nNothing here is *unresolved*.\n", encoding="utf-8")
    (folder / "_toc.yml").write_text(
        "format: jb-book\nroot: book/index\nchapters:\n  - file: notebooks/01-specimen\n"
        "  - file: book/data\n  - file: book/references\n",
        encoding="utf-8",
    )
    return folder


def chromium() -> str | None:
    """Return the path of a Chromium: Debian's, or the one that Playwright installed."""
    found = shutil.which("chromium")
    if found:
        return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


#: One font, so that a page looks the same here as on a machine that has none of its own.
_FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/cache</cachedir></fontconfig>"""


def one_font(folder: Path) -> dict[str, str]:
    """Return an environment in which a browser finds a single font, whatever is installed."""
    (folder / "fonts").mkdir(exist_ok=True)
    for path in sorted(Path("/usr/share/fonts").rglob("DejaVuSans.ttf"))[:1]:
        shutil.copy(path, folder / "fonts")
    (folder / "fonts.conf").write_text(_FONTS.format(folder=folder), encoding="utf-8")
    return {**os.environ, "FONTCONFIG_FILE": str(folder / "fonts.conf")}


@contextmanager
def open_browser() -> Iterator[object]:
    """Start a headless Chromium, or skip the test and say why."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    if path is None:
        pytest.skip("no Chromium: apt-get install chromium, or playwright install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        settings = {"args": ["--no-sandbox", "--disable-gpu"], "env": one_font(Path(folder))}
        browser = playwright.chromium.launch(executable_path=path, **settings)
        yield browser
        browser.close()


class Visit:
    """One page opened from disk, with what went wrong on it."""

    def __init__(self, browser, path: Path, *, width: int = 1440, mode: str = "light", query: str = "") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=mode)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._asked)
        self.page.add_init_script(
            "window.shifts = 0; new PerformanceObserver((list) => {"
            "for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;"
            "}).observe({type: 'layout-shift', buffered: true});"
        )
        self.page.goto(path.as_uri() + query, wait_until="load")
        if self.page.query_selector('figure[data-companion="chart"]'):
            self.page.wait_for_selector("html.companion-ready", timeout=60_000, state="attached")
        if self.page.query_selector(".math"):
            self.page.evaluate("window.MathJax.startup.promise")
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 60)))")

    def shot(self, path: Path) -> None:
        """Keep a picture of the whole page, as it stands in a window as tall as the page.

        A full-page screenshot shrinks charts that follow the window; nobody ever sees them so.
        """
        width = self.page.viewport_size["width"]
        height = self.page.evaluate(
            "Math.max(...[document.documentElement, ...document.querySelectorAll('.bd-main')]"
            ".map((part) => part.scrollHeight))"
        )
        # Chromium draws no picture beyond this height.
        self.page.set_viewport_size({"width": width, "height": min(height, 16_000)})
        self.page.wait_for_timeout(300)
        self.page.screenshot(path=path)

    def _heard(self, message) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(f"{message.type}: {message.text}")

    def _asked(self, request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.requests.append(request.url)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *details) -> None:
        self.context.close()
