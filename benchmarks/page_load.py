"""How soon a page of the built book shows its first figure, opened cold from disk.

Run: ``python benchmarks/page_load.py [SITE]`` on a finished site (``_build/html`` by default). Every visit starts a new
browser with an empty cache and opens the page by its file:// address. Prints one line per page; ``--json`` prints
the same as JSON.

What is timed, in seconds since the navigation began
    shown     a picture of the first figure stands in the window: its still image, or the live chart
    drawn     the live chart of the first figure is drawn (target 2 for the first chapter); a figure that is plain
              HTML has no such moment, and ``shown`` counts
    all       every chart of the page is drawn
    jump      layout shift over the whole visit (Chromium's measure; below .1 counts as good)

These are seconds of one machine: compare pages with each other, and with the target on the machine that states it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

PAGES = ("notebooks/00-front", "notebooks/01-admissibility", "notebooks/02-support", "notebooks/03-verification")
# Runs in the page before anything of it: looks at every frame, because a figure is seen when a frame shows it.
WATCH = """
window.seen = {shown: null, drawn: null, all: null, jump: 0};
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) seen.jump += entry.value;
}).observe({type: 'layout-shift', buffered: true});
const inView = (part) => {
  if (!part) return false;
  const box = part.getBoundingClientRect();
  return box.width > 0 && box.height > 0 && box.top < innerHeight && getComputedStyle(part).visibility === 'visible';
};
(function look() {
  const figure = document.querySelector('figure.companion-figure');
  if (figure) {
    const chart = figure.dataset.companion === 'chart';
    const still = figure.querySelector('img.companion-still');
    const live = figure.querySelector('.companion-live svg');
    const drawn = chart ? figure.classList.contains('companion-drawn') && inView(live) : inView(figure);
    if (seen.drawn === null && drawn) seen.drawn = performance.now();
    if (seen.shown === null && (drawn || (still && still.complete && inView(still)))) seen.shown = performance.now();
  }
  const charts = document.querySelector('figure[data-companion="chart"]');
  const ready = document.readyState === 'complete';
  const done = charts ? document.documentElement.classList.contains('companion-ready') : ready;
  if (seen.all === null && done) seen.all = performance.now();
  requestAnimationFrame(look);
})();
"""


def visit(path: Path, mode: str) -> dict[str, float]:
    """Open a page in a new browser and return what was seen when, in seconds."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or playwright.chromium.executable_path,
            args=["--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=mode).new_page()
        page.add_init_script(WATCH)
        page.goto(path.as_uri(), wait_until="load")
        page.wait_for_function("seen.all !== null && seen.drawn !== null", timeout=60_000)
        seen: dict[str, float] = page.evaluate("seen")
        browser.close()
    return {name: value if name == "jump" else value / 1000 for name, value in seen.items()}


def measure(site: Path, repeats: int, mode: str) -> list[dict[str, Any]]:
    """Return the median of several cold visits to each page."""
    rows = []
    for name in PAGES:
        visits = [visit(site / f"{name}.html", mode) for _ in range(repeats)]
        rows.append({"page": name, **{key: statistics.median(seen[key] for seen in visits) for key in visits[0]}})
        rows[-1]["slowest"] = max(seen["drawn"] for seen in visits)
    return rows


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", nargs="?", type=Path, default=Path(__file__).resolve().parents[1] / "_build" / "html")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mode", choices=("light", "dark"), default="light")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = measure(asked.site.resolve(), asked.repeats, asked.mode)
    if asked.json:
        print(json.dumps(rows))
        return
    print(f"{'page':32} {'shown':>7} {'drawn':>7} {'slowest':>8} {'all':>7} {'jump':>7}")
    for row in rows:
        times = f"{row['shown']:7.2f} {row['drawn']:7.2f} {row['slowest']:8.2f} {row['all']:7.2f} {row['jump']:7.4f}"
        print(f"{row['page']:32} {times}")


if __name__ == "__main__":
    main()
