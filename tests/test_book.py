"""The book in a real browser, opened from disk: what a reader would see, and what a reader's network would."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import compare_builds
import nbformat
import pytest
import yaml
from _site import ROOT, SMALL, Visit, once, open_browser, shared_folder, specimen_project
from bs4 import BeautifulSoup

from companion.book import runs
from companion.book import site as book
from companion.errors import InputError
from companion.paths import only_writer

TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))


def _documents(node) -> list[str]:
    found = [node[key] for key in ("root", "file") if key in node]
    for key in ("parts", "chapters", "sections"):
        for child in node.get(key, []):
            found += _documents(child)
    return found


PAGES = [*_documents(TOC), "search", "genindex"]
WIDTHS = (390, 768, 1440)
MODES = ("light", "dark")
#: Layout shift over a whole visit: Chromium counts .1 as good, and a legend that breaks on a phone takes a quarter.
SHIFT_LIMIT = 0.05
#: Bytes of one page beside the assets that all pages share.
PAGE_LIMIT = 1_500_000


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The real book, every chapter run with small parameters."""
    return once(shared_folder(tmp_path_factory), "site", lambda target: book.build(SMALL, target, say=_quiet))


@pytest.fixture(scope="session")
def specimen(tmp_path_factory) -> Path:
    """A book of one chapter, built by `jupyter-book build .` alone, with a repository address set."""

    def make(target: Path) -> None:
        specimen_project(target, "https://github.com/someone/companion")
        _jupyter_book(target)

    return once(shared_folder(tmp_path_factory), "specimen", make)


def _quiet(line: str) -> None:
    del line


def _jupyter_book(project: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COMPANION_PROJECT": str(project)}
    code = "from jupyter_book.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "build", ".", "-W", "--keep-going"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"jupyter-book build . failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done


@pytest.fixture(scope="module")
def browser():
    with open_browser() as started:
        yield started


def check_axe(visit: Visit) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(visit.page).response["violations"]
    return [f"{rule['id']}: {rule['nodes'][0]['html'][:200]}" for rule in found]


def check_charts(visit: Visit) -> list[str]:
    """Return what is wrong with the charts of a page: not drawn, empty, or without words."""
    return visit.page.evaluate(
        """() => Array.from(document.querySelectorAll('figure[data-companion="chart"]')).flatMap((figure) => {
          const wrong = [];
          const svg = figure.querySelector('.companion-live svg');
          const kinds = ['path', 'line', 'text', 'image'].map((kind) => '.companion-live .role-mark ' + kind);
          const marks = figure.querySelectorAll(kinds.join(','));
          const seen = Array.from(marks).filter((mark) => {
            const box = mark.getBoundingClientRect();
            return box.width + box.height > 0;
          });
          if (!figure.classList.contains('companion-drawn')) wrong.push('not drawn');
          if (!seen.length) wrong.push('empty');
          const edge = document.documentElement.clientWidth + 1;
          if (svg && svg.getBoundingClientRect().right > edge) wrong.push('cut off');
          if (!figure.querySelector('.companion-live').getAttribute('aria-label')) wrong.push('no text alternative');
          if (!figure.querySelector('figcaption').textContent.trim()) wrong.push('no caption');
          return wrong.map((what) => figure.id + ': ' + what);
        })"""
    )


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_in_every_width_and_mode(site, browser, page):
    wrong: list[str] = []
    shots = ROOT / "_build" / "screenshots"
    shots.mkdir(parents=True, exist_ok=True)
    for mode in MODES:
        for width in WIDTHS:
            where = f"{page} {mode} {width}"
            with Visit(browser, site / f"{page}.html", width=width, mode=mode) as visit:
                wrong += [f"{where}: console {error}" for error in visit.errors]
                wrong += [f"{where}: request to {url}" for url in visit.requests]
                wrong += [f"{where}: {what}" for what in check_charts(visit)]
                reach = visit.page.evaluate("document.documentElement.scrollWidth")
                if reach > width:
                    wrong.append(f"{where}: scrolls sideways to {reach}")
                if visit.page.evaluate("document.documentElement.dataset.theme") != mode:
                    wrong.append(f"{where}: not in {mode} mode")
                shift = visit.page.evaluate("window.shifts")
                if shift > SHIFT_LIMIT:
                    wrong.append(f"{where}: the page jumps while it loads ({shift:.2f})")
                # Contrast depends on the mode and layout on the width: two corners show both at a third of the time.
                if (mode, width) in ((MODES[0], WIDTHS[-1]), (MODES[1], WIDTHS[0])):
                    wrong += [f"{where}: axe {what}" for what in check_axe(visit)]
                    name = f"{page.replace('/', '-')}-{mode}-{width}.png"
                    visit.shot(shots / name)
    assert wrong == []


@pytest.mark.browser
@pytest.mark.parametrize("mode", MODES)
def test_a_new_reader_sees_the_right_mode_from_the_start(specimen, browser, mode):
    context = browser.new_context(color_scheme=mode)
    page = context.new_page()
    # "interactive" comes after the body is read and before deferred scripts run.
    page.add_init_script(
        "document.addEventListener('readystatechange', () => {"
        "window.early = window.early || document.documentElement.dataset.theme; });"
    )
    page.goto((specimen / "_build" / "html" / "notebooks" / "01-specimen.html").as_uri())
    assert page.evaluate("window.early") == mode
    context.close()


@pytest.mark.browser
def test_search_works_from_disk(site, browser):
    with Visit(browser, site / "search.html", query="?q=unresolved") as visit:
        visit.page.wait_for_selector("#search-results li a", timeout=20_000)
        assert visit.page.locator("#search-results li").count() >= 2
        assert visit.errors == []
        assert visit.requests == []


def _pages(site: Path) -> list[Path]:
    return [path for path in site.rglob("*.html") if not {"_static", "_sources"} & set(path.parts)]


def test_links_resolve_images_have_words_and_ids_are_unique(site):
    wrong = []
    soups = {path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in _pages(site)}
    ids = {path: [tag["id"] for tag in soup.select("[id]")] for path, soup in soups.items()}
    for path, soup in soups.items():
        where = path.relative_to(site)
        wrong += [f"{where}: id {name} twice" for name in {name for name in ids[path] if ids[path].count(name) > 1}]
        wrong += [
            f"{where}: image without alt text" for image in soup.select("img") if not image.get("alt", "").strip()
        ]
        for link in soup.select("a[href]"):
            parts = urlsplit(link["href"])
            if parts.scheme or not (parts.path or parts.fragment):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                wrong.append(f"{where}: {link['href']} leads nowhere")
            elif parts.fragment and target in ids and unquote(parts.fragment) not in ids[target]:
                wrong.append(f"{where}: {link['href']} has no such anchor")
    assert wrong == []


def test_no_page_names_a_host_it_would_load_from(site):
    for path in _pages(site):
        soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        loads = [
            tag.get("src") or tag.get("href") for tag in soup.select("script[src], link[href], img[src], iframe[src]")
        ]
        hosts = [url for url in loads if url.startswith(("http:", "https:", "//"))]
        assert hosts == [], path
        assert "thebe" not in path.read_text(encoding="utf-8").lower(), path
        assert soup.select('[href*="mybinder.org"], [href*="github.com/someone"]') == []


def test_pages_are_light(site):
    sizes = {path.relative_to(site).as_posix(): path.stat().st_size for path in _pages(site)}
    assert {page: size for page, size in sizes.items() if size > PAGE_LIMIT} == {}


def test_every_chapter_is_in_the_book_and_says_what_it_ran_with(site):
    listed = [Path(name).name for name in _documents(TOC) if name.startswith("notebooks/")]
    assert sorted(listed) == [chapter.stem for chapter in runs.chapter_paths()]
    for chapter in runs.chapter_paths():
        soup = BeautifulSoup((site / "notebooks" / f"{chapter.stem}.html").read_text(encoding="utf-8"), "html.parser")
        declared = {item.name: item.default for item in runs.declared_parameters(chapter)}
        changed = [name for name, value in SMALL.items() if name in declared and declared[name] != value]
        banner = soup.select_one(".companion-banner")
        assert bool(banner) == bool(changed), chapter.stem
        assert all(name in banner.text for name in changed)


@pytest.mark.browser
@pytest.mark.notebook
def test_plain_jupyter_book_builds_and_offers_launch_buttons_only_with_a_repository(specimen, browser):
    page = specimen / "_build" / "html" / "notebooks" / "01-specimen.html"
    soup = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    binder = [link["href"] for link in soup.select('a[href*="mybinder.org"]')]
    assert binder
    assert binder[0].endswith("notebooks/01-specimen.md")
    (colab,) = [link["href"] for link in soup.select('a[href*="colab.research.google.com"]')]
    assert colab.endswith("/github/someone/companion/blob/colab/notebooks/01-specimen.ipynb")
    assert soup.select("button.btn-launch-thebe, [onclick*=initThebe]")
    with Visit(browser, page) as visit:
        assert visit.errors == []
        assert visit.requests == []


def test_chapters_for_colab_fetch_the_companion_and_then_are_the_chapters(tmp_path):
    colab = _script("colab")
    made = colab.write(tmp_path, "https://github.com/someone/companion", "main")
    assert [path.stem for path in made] == [chapter.stem for chapter in runs.chapter_paths()]
    for path, chapter in zip(made, runs.chapter_paths(), strict=True):
        cells = nbformat.read(path, as_version=4).cells
        assert [cell.source for cell in cells[1:]] == [cell.source for cell in runs.read_notebook(chapter).cells]
        assert cells[0].source == colab.setup_cell("https://github.com/someone/companion", "main")
    workflow = yaml.safe_load((ROOT / ".github/workflows/book.yml").read_text(encoding="utf-8"))
    steps = " ".join(step.get("run", "") for step in workflow["jobs"]["colab"]["steps"])
    assert f"git push --force origin {colab.BRANCH}" in steps


def test_the_first_cell_for_colab_works_on_an_empty_machine(tmp_path):
    origin, machine = tmp_path / "origin", tmp_path / "machine"
    machine.mkdir()
    specimen_project(origin)
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "x"]):
        name = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", "-C", str(origin), *name, *words], check=True)
    ask = (
        "from companion.book import runs\nprint(pathlib.Path.cwd().name, [path.stem for path in runs.chapter_paths()])"
    )
    for _ in range(2):  # the second time nothing is left to fetch
        code = _script("colab").setup_cell(origin.as_uri(), "main") + ask
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=machine, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "notebooks ['01-specimen']"


def _script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "book" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.notebook
def test_a_second_build_takes_the_outputs_from_the_cache(specimen):
    folder = specimen / "_build" / ".jupyter_cache"
    before = sorted(path.name for path in folder.glob("*/executed/*"))
    done = _jupyter_book(specimen)
    assert before
    assert sorted(path.name for path in folder.glob("*/executed/*")) == before
    assert "Executing notebook" not in done.stdout + done.stderr


@pytest.mark.browser
@pytest.mark.notebook
def test_a_slider_recomputes_and_survives_a_change_of_theme(specimen, browser):
    page = specimen / "_build" / "html" / "notebooks" / "01-specimen.html"
    with Visit(browser, page) as visit:
        slider = visit.page.locator("#fig-loss input[type=range]")
        assert visit.page.get_by_label("Infeasibility cost").count() == 1
        for cost in (0.0, 0.35, 1.0):
            slider.evaluate("(input, v) => { input.value = v; input.dispatchEvent(new Event('input')); }", cost)
            visit.page.evaluate("companionFigures.view('fig-loss').runAsync().then(() => 0)")
            losses = _data(visit, "fig-loss", "loss")
            assert losses == pytest.approx([cost * (1 - f) + f * 0.5 for f in (0.25, 0.75)])
        slider.evaluate("(input) => { input.value = 0.2; input.dispatchEvent(new Event('input')); }")
        label = "#fig-loss .role-axis-label text"
        before = visit.page.eval_on_selector(label, "(text) => getComputedStyle(text).fill")
        visit.page.evaluate("document.documentElement.dataset.theme = 'dark'")
        after = visit.page.eval_on_selector(label, "(text) => getComputedStyle(text).fill")
        assert before != after
        assert visit.page.evaluate("companionFigures.view('fig-loss').signal('cost')") == 0.2


def _data(visit: Visit, figure: str, field: str) -> list[float]:
    return visit.page.evaluate(
        """([figure, field]) => {
          const view = companionFigures.view(figure);
          const names = Object.keys(view.getState({data: () => true, signals: () => false}).data);
          const holds = names.map((name) => view.data(name)).filter((rows) => rows.length && field in rows[0]);
          return holds[holds.length - 1].map((row) => row[field]);
        }""",
        [figure, field],
    )


@pytest.mark.browser
@pytest.mark.notebook
def test_a_chart_follows_the_window_and_keeps_its_slider(specimen, browser):
    page = specimen / "_build" / "html" / "notebooks" / "01-specimen.html"
    with Visit(browser, page) as visit:
        visit.page.locator("#fig-loss input").evaluate(
            "(input) => { input.value = 0.4; input.dispatchEvent(new Event('input')); }"
        )
        visit.page.set_viewport_size({"width": 390, "height": 900})
        visit.page.wait_for_timeout(700)
        assert check_charts(visit) == []
        assert visit.page.evaluate("companionFigures.view('fig-loss').signal('cost')") == 0.4
        parts = visit.page.eval_on_selector_all(
            "#fig-pair .companion-live svg .role-scope .background",
            "(all) => all.map((b) => b.getBoundingClientRect().top)",
        )
        assert len({round(top) for top in parts}) >= 2, "the parts of a composed chart stand under one another"


@pytest.mark.browser
@pytest.mark.notebook
def test_without_scripts_and_in_print_the_still_image_is_there(specimen, browser):
    page = specimen / "_build" / "html" / "notebooks" / "01-specimen.html"
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1000, "height": 900})
    plain = context.new_page()
    plain.goto(page.as_uri())
    assert plain.locator("#fig-loss .companion-still").is_visible()
    context.close()
    with Visit(browser, page) as visit:
        still = visit.page.locator("#fig-loss .companion-still")
        assert not still.is_visible()
        visit.page.emulate_media(media="print")
        assert still.is_visible()
        assert visit.page.evaluate("document.querySelector('#fig-loss .companion-still svg').clientWidth") > 300


def test_a_parameter_of_no_chapter_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(InputError, match="no chapter has a parameter 'nope'"):
        book.build({"nope": 1}, tmp_path / "site", say=_quiet)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_a_site_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty and not a site"):
        book.build({}, tmp_path, say=_quiet)
    assert (tmp_path / "letter.txt").read_text() == "mine"


@pytest.mark.notebook
@pytest.mark.slow
def test_the_book_builds_twice_with_the_same_bytes_whatever_surrounds_it(tmp_path, monkeypatch):
    sites = []
    for name, what in (("one", compare_builds.ONE), ("a longer name/two", compare_builds.OTHER)):
        project = specimen_project(tmp_path / name)
        for key, value in {**compare_builds.surroundings(what), "COMPANION_PROJECT": str(project)}.items():
            monkeypatch.setenv(key, value)
        runs._hashes_below.cache_clear()
        runs.surroundings.cache_clear()
        book.build({"upper": 0.25}, None, say=_quiet)
        sites.append(project / "_build" / "html")
    again: list[str] = []
    book.build({"upper": 0.25}, None, say=again.append)
    # A module that no chapter loads makes no chapter run again; one that it loaded does; so does a killed build's page.
    source, waiting = runs.source_hashes(), []
    for name in ("cli/score.py", "book/notebook.py"):
        with monkeypatch.context() as patch:
            patch.setattr(runs, "source_hashes", lambda name=name: {**source, name: "changed"})
            waiting.append([chapter.is_run() for chapter in book._plan({"upper": 0.25}) if _as_run(chapter, project)])
    assert waiting == [[True], [False]]
    runs._hashes_below.cache_clear()
    runs.surroundings.cache_clear()
    assert again == ["01-specimen: unchanged", "nothing changed since the site was built"]
    assert compare_builds.differences(*sites) == []
    # Today nothing in a site is dated, so the two are equal to the last byte.
    assert compare_builds.files_of(sites[0]) == compare_builds.files_of(sites[1])


def _as_run(chapter, project: Path) -> bool:
    chapter.executed = project / "_build" / "runs" / f"{chapter.name}.ipynb"
    return True


@pytest.mark.notebook
@pytest.mark.slow
def test_jupyter_book_alone_builds_twice_with_the_same_bytes(tmp_path, monkeypatch):
    sites = []
    for name, what in (("one", compare_builds.ONE), ("a longer name/two", compare_builds.OTHER)):
        for key, value in compare_builds.surroundings(what).items():
            monkeypatch.setenv(key, value)
        project = specimen_project(tmp_path / name)
        _jupyter_book(project)
        sites.append(project / "_build" / "html")
    assert compare_builds.differences(*sites) == []


def test_two_sites_may_differ_in_dates_and_in_nothing_else(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for site, day, word in ((one, "2026-11-30T09:15:00Z", "same"), (other, "2027-01-02", "same")):
        site.mkdir()
        (site / "page.html").write_text(f"<p>Built {day}, on 3 Dec 2026 or Dec 3, 2026: {word}</p>")
        (site / "picture.png").write_bytes(b"\x89PNG\xff")
    assert compare_builds.differences(one, other) == []
    (other / "page.html").write_text("<p>Built 2027-01-02, on 3 Dec 2026 or Dec 3, 2026: other</p>")
    (other / "picture.png").write_bytes(b"\x89PNG\xfe")
    (other / "more.txt").write_text("")
    found = compare_builds.differences(one, other)
    assert [line.partition(":")[0] for line in found] == ["more.txt", "page.html", "picture.png"]
    assert "same" in found[1]
    assert "other" in found[1]


def test_a_page_that_does_not_build_is_an_error_and_keeps_the_old_site(tmp_path, monkeypatch):
    project = specimen_project(tmp_path / "project")
    monkeypatch.setenv("COMPANION_PROJECT", str(project))
    stage = tmp_path / "stage"
    files = {"_config.yml": "title: x\nonly_build_toc_files: true\n", "_toc.yml": "format: jb-book\nroot: a\n"}
    stage.mkdir()
    for name, text in {**files, "a.md": "# A\n\n[nowhere](nothing.md)\n"}.items():
        (stage / name).write_text(text, encoding="utf-8")
    with pytest.raises(runs.RunError, match=re.escape("nothing.md")):
        book._sphinx(stage, _quiet)
    assert not (stage / "_build").exists()
    # What a build that was killed left half way is not taken up again.
    (stage / "a.md").write_text("# A\n", encoding="utf-8")
    (stage / "_build" / ".doctrees").mkdir(parents=True)
    (stage / "_build" / ".doctrees" / "environment.pickle").write_bytes(b"half")
    (tmp_path / "stage.begun").touch()
    book._sphinx(stage, _quiet)
    assert (stage / "_build" / "html" / "a.html").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["project", "stage"]


def test_of_two_builds_one_wins(tmp_path, monkeypatch):
    project = specimen_project(tmp_path / "project")
    monkeypatch.setenv("COMPANION_PROJECT", str(project))
    (project / "_build" / "stage").mkdir(parents=True)
    with only_writer(book.build_dir() / "stage" / "default"), pytest.raises(InputError, match="another process"):
        book.build({}, tmp_path / "site", say=_quiet)
    assert not (tmp_path / "site").exists()
