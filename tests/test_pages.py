"""Pages beyond the chapters, in the built book: claims, terms, commands, API, downloads."""

from __future__ import annotations

import functools
import http.server
import re
import threading

import nbformat
import pandas as pd
import pytest
from _site import ROOT, SMALL, Visit, once, open_browser, shared_folder
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup

from companion.book import runs
from companion.book import site as book
from companion.stages import published


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The real book, shared with every other test that opens it."""
    return once(
        shared_folder(tmp_path_factory), "site", lambda target: book.build(SMALL, target, say=lambda line: None)
    )


@pytest.fixture(scope="module")
def browser():
    with open_browser() as started:
        yield started


def soup_of(site, page):
    return BeautifulSoup((site / f"{page}.html").read_text(encoding="utf-8"), "html.parser")


def test_the_address_without_a_page_leads_to_the_front_page(site):
    refresh = BeautifulSoup((site / "index.html").read_text(encoding="utf-8"), "html.parser").find("meta")
    assert refresh["content"].endswith("url=notebooks/00-front.html")


def test_the_front_page_tells_the_abstract_and_opens_three_doors(site):
    page = soup_of(site, "notebooks/00-front")
    assert page.title.text == "The Right Memory in the Wrong Context"
    sentences = page.select("#table-abstract .companion-group")
    assert len(sentences) == 10
    rows = page.select("#table-abstract tbody tr:not(.companion-group)")
    assert all(row.select("td")[-1].text for row in rows), "every figure has a verdict"
    assert [card["href"] for card in page.select("a.sd-stretched-link")] == [
        "01-admissibility.html",
        "../book/how-to-rerun.html",
        "06-audit.html",
    ]
    assert page.select_one("a.right-next")["href"] == "01-admissibility.html"


@pytest.mark.browser
def test_every_sentence_of_the_abstract_leads_to_where_it_is_computed(site, browser):
    links = soup_of(site, "notebooks/00-front").select("#table-abstract .companion-group a")
    with Visit(browser, site / "notebooks" / "00-front.html") as visit:
        for link in links:
            file, _, name = link["href"].partition("#")
            assert name, link
            visit.page.goto((site / "notebooks" / file).as_uri() + "#" + name)
            assert visit.page.locator(f"[id='{name}']").is_visible(), link["href"]


def test_pages_describe_themselves_and_load_what_they_need(site):
    for path in [*site.glob("notebooks/*.html"), *site.glob("book/*.html")]:
        page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        told = page.find("meta", attrs={"name": "description"})["content"]
        assert 10 < len(told) <= 160, path.name
        card = path.parent / page.find("meta", property="og:image")["content"].partition("?")[0]
        assert card.stat().st_size <= 100_000
        assert page.select('a[href="https://arxiv.org/abs/2610.07309"]')
        scripts = " ".join(script.get("src", "") for script in page.select("script"))
        assert ("companion-mathjax" in scripts) == bool(page.select(".math")), path.name
        assert ("companion-figures" in scripts) == bool(page.select('figure[data-companion="chart"]')), path.name


@pytest.mark.browser
def test_pages_are_set_in_their_own_fonts(site, browser):
    fonts = list((ROOT / "src/companion/book/assets/fonts").glob("*.woff2"))
    assert sum(path.stat().st_size for path in fonts) <= 150_000
    assert "SIL Open Font License" in (fonts[0].parent / "LICENSE.txt").read_text(encoding="utf-8")
    ask = """() => Array.from(document.querySelectorAll('article :is(p, h1, td, code, figcaption), nav a, svg text'))
      .filter((part) => part.textContent.trim() && !part.closest('mjx-container'))
      .map((part) => getComputedStyle(part).fontFamily).filter((name) => !/^["']?Companion (Sans|Code)/.test(name))"""
    with Visit(browser, site / "notebooks" / "01-admissibility.html") as visit:
        assert visit.page.evaluate(ask) == []
        assert visit.page.evaluate(
            "[...document.fonts].filter((f) => /Companion/.test(f.family)).map((f) => f.status)"
        ) == ["loaded"] * len(fonts)


@pytest.mark.browser
def test_claims_can_be_filtered_by_stage_and_status_with_the_keyboard(site, browser):
    table = published.figures()
    with Visit(browser, site / "notebooks" / "07-claims.html") as visit:
        page = visit.page
        rows = page.locator("#table-claims tbody tr[data-status]:visible")
        assert rows.count() == len(table)
        stage, status = (page.get_by_role("combobox", name=name) for name in ("stage", "status"))
        for name in dict.fromkeys(table["stage"]):
            stage.select_option(name)
            assert rows.count() == (table["stage"] == name).sum()
        stage.select_option("exposure")
        status.select_option("recomputed")
        assert rows.count() == (table["stage"] == "exposure").sum()
        assert page.locator("#table-claims .companion-group:visible").count() == 1, "empty groups go"
        stage.select_option("")
        page.get_by_role("searchbox", name="search").fill("anchors strangers")
        assert rows.count() == 0
        page.get_by_role("searchbox", name="search").fill("random evidence recall")
        assert rows.count() == 1
        page.get_by_role("searchbox", name="search").fill("")
        stage.select_option("exposure")
        assert page.locator(".companion-count").inner_text() == f"{rows.count()} of {len(table)} rows"
        stage.focus()
        page.keyboard.press("Home")
        page.keyboard.press("Tab")
        assert status.evaluate("(menu) => menu === document.activeElement")
        assert rows.count() == page.locator('#table-claims tbody tr[data-status="recomputed"]').count()
        assert visit.errors == []


@pytest.mark.browser
def test_without_scripts_every_claim_is_there_and_no_menu(site, browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "notebooks" / "07-claims.html").as_uri())
    assert page.locator("#table-claims tbody tr[data-status]:visible").count() == len(published.figures())
    assert not page.locator(".companion-filters").is_visible()
    context.close()


def test_every_link_to_a_term_carries_its_definition(site):
    glossary = soup_of(site, "book/glossary")
    known = {term["id"]: " ".join(term.find_next("dd").text.split()) for term in glossary.select("dl.glossary dt[id]")}
    assert len(known) > 30
    pages = 0
    for path in [*sorted(site.glob("notebooks/*.html")), site / "book" / "methods.html"]:
        soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        links = soup.select('a[href*="glossary.html#term-"]')
        pages += bool(links)
        for link in links:
            assert "companion-term" in link["class"]
            assert link["title"] == known[link["href"].partition("#")[2]]
    assert pages >= 2


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1440])
def test_a_definition_shows_on_hover_and_focus_and_goes_with_escape(site, browser, width):
    with Visit(browser, site / "book" / "methods.html", width=width) as visit:
        page, note = visit.page, visit.page.locator("#companion-definition")
        link = page.locator("a.companion-term").first
        assert not note.is_visible()
        assert link.get_attribute("title") is None
        link.hover()
        assert note.is_visible()
        assert "settles it" in note.inner_text()
        page.keyboard.press("Escape")
        assert not note.is_visible()
        # The pointer leaves the link when focus scrolls the page, which takes the note away a moment later.
        page.mouse.move(2, 2)
        page.wait_for_timeout(500)
        for place in range(page.locator("a.companion-term").count()):
            term = page.locator("a.companion-term").nth(place)
            term.focus()
            assert term.get_attribute("aria-describedby") == "companion-definition"
            note.wait_for(state="visible", timeout=5_000)
            box = note.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
        page.locator("body").click(position={"x": 2, "y": 2})
        page.wait_for_timeout(400)
        assert not note.is_visible()
        assert visit.errors == []


def test_commands_page_has_every_command_and_option(site):
    import typer

    from companion.cli import app

    text = soup_of(site, "book/commands").select_one("article").text
    command = typer.main.get_command(app)
    assert len(command.commands) >= 10
    assert "--confidence <float>" in text
    assert "\\<" not in text
    for name, inner in command.commands.items():
        assert f"companion {name}" in text
        for option in inner.params:
            if option.param_type_name == "option":
                assert max(option.opts, key=len) in text, (name, option.opts)


def test_api_pages_hold_what_users_call_and_no_more(site):
    pages = [soup_of(site, f"book/api/{path.stem}") for path in (ROOT / "book" / "api").glob("*.md")]
    names = [tag["id"] for page in pages for tag in page.select("dt.sig[id]")]
    assert len(names) == len(set(names)) <= 150
    for name in ("scoring.score_routes", "tables.Records", "bootstrap.estimate", "retrieval.rank", "book.glue"):
        assert f"companion.{name}" in names
    assert not any(re.search(r"(?<!shape )\(queries,\)", page.text) for page in pages), (
        "several names of one entry stay together"
    )


def test_methods_number_their_equations_once_and_name_functions_that_exist(site):
    page = soup_of(site, "book/methods")
    numbers = [tag.text for tag in page.select(".eqno")]
    assert len(numbers) >= 10
    assert len(set(numbers)) == len(numbers)
    text = (ROOT / "book" / "methods.md").read_text(encoding="utf-8")
    named = re.findall(r"\{py:(?:mod|func)\}`([\w.]+)`", text)
    links = {link["href"].partition("#")[2] for link in page.select("a.reference.internal[href*='api/']")}
    for name in named:
        assert name in links or f"module-{name}" in links, f"{name} has no place in the API pages"


def test_chapters_can_be_taken_away_as_text_and_as_notebook(site):
    for chapter in runs.chapter_paths():
        page = soup_of(site, f"notebooks/{chapter.stem}")
        links = {link.text.strip(): link["href"] for link in page.select(".dropdown-download-buttons a")}
        assert set(links) == {".md", ".ipynb"}
        text = (site / "notebooks" / links[".md"]).resolve()
        assert text.read_bytes() == chapter.read_bytes()
        node = nbformat.read((site / "notebooks" / links[".ipynb"]).resolve(), as_version=4)
        assert len(node.cells) > 3


def test_folded_code_stands_behind_what_it_made_and_solutions_are_called_so(site):
    solutions = 0
    for chapter in runs.chapter_paths():
        page = soup_of(site, f"notebooks/{chapter.stem}")
        for cell in page.select("div.cell.tag_hide-input"):
            assert "companion-code" in cell.find_all(recursive=False)[-1]["class"]
        for fold in page.select("div.cell.tag_hide-cell > details"):
            assert fold.summary.text == "Solution"
            solutions += 1
        assert not page.select(".companion-code[open]")
    assert solutions >= 2 * 5


@pytest.mark.browser
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_opened_code_stands_below_what_it_made_and_can_be_read(site, browser, mode):
    with Visit(browser, site / "notebooks" / "02-support.html", mode=mode, width=390) as visit:
        page = visit.page
        cell = page.locator("div.cell.tag_hide-input:has(figure)").first
        cell.locator("summary", has_text="Code").click()
        code = cell.locator("div.highlight pre")
        assert code.bounding_box()["y"] > cell.locator("figcaption").bounding_box()["y"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        found = Axe().run(page, context=".tag_hide-input details[open]")
        assert found.response["violations"] == []


def test_the_changelog_and_citation_are_those_of_the_project(site):
    changelog = soup_of(site, "book/changelog").select_one("article").text
    for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            assert line.strip("# []") in changelog
    cite = soup_of(site, "book/cite").select_one("article").text
    assert "arXiv:2610.07309" in cite
    assert "Admissibility companion" in cite


@pytest.mark.browser
def test_on_a_phone_every_claim_shows_its_numbers_without_scrolling_sideways(site, browser):
    with Visit(browser, site / "notebooks" / "07-claims.html", width=390) as visit:
        page = visit.page
        assert (
            page.locator("#table-claims").evaluate("(t) => t.parentElement.scrollWidth - t.parentElement.clientWidth")
            <= 1
        )
        row = page.locator('#table-claims tbody tr[data-status="recomputed"]').first
        row.scroll_into_view_if_needed()
        for place, name in enumerate(
            ["finding, population", "published", "here", "status", "computed in, repeat with"]
        ):
            cell = row.locator("td").nth(place)
            said = cell.evaluate("(cell) => getComputedStyle(cell, '::before').content")
            # Browsers write the content as its parts or as one string.
            assert said.replace('" "', "") == f'"{name}: "'
            box = cell.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390
        assert page.locator("#table-claims thead th").count() == 6, "the headings stay for screen readers"
        page.get_by_role("combobox", name="status").select_option("quoted")
        assert (
            page.locator("#table-claims tbody tr[data-status]:visible").count()
            == page.locator('tr[data-status="quoted"]').count()
        )


@pytest.mark.browser
@pytest.mark.parametrize("chapter", [path.stem for path in runs.chapter_paths()])
def test_no_table_that_stands_open_scrolls_on_a_phone(site, browser, chapter):
    with Visit(browser, site / "notebooks" / f"{chapter}.html", width=390) as visit:
        wide = visit.page.evaluate(
            """() => Array.from(document.querySelectorAll('.companion-scroll'))
              .filter((region) => region.offsetParent && region.scrollWidth > region.clientWidth + 1)
              .map((region) => region.querySelector('table').id)"""
        )
        assert wide == []


@pytest.mark.browser
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_paper_is_white_with_stills_and_without_controls(site, browser, mode):
    with Visit(browser, site / "notebooks" / "01-admissibility.html", mode=mode, width=720) as visit:
        page = visit.page
        stills = page.locator(".companion-still").count()
        assert stills > 1
        page.emulate_media(media="print", color_scheme=mode)
        page.wait_for_function("document.documentElement.dataset.theme === 'light'")
        assert page.locator(".companion-still:visible").count() == stills
        assert (
            page.locator(".companion-live svg:visible, .companion-controls:visible, .companion-csv:visible").count()
            == 0
        )
        for part in ("body", ".bd-article p", ".bd-article h2", "figcaption", "table.companion-table td"):
            ink = page.locator(part).first.evaluate("(part) => getComputedStyle(part).color")
            assert max(int(channel) for channel in re.findall(r"\d+", ink)[:3]) < 128, (part, ink)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        cut = page.evaluate(
            """() => Array.from(document.querySelectorAll('.companion-table, .companion-still'))
              .filter((part) => part.offsetParent && part.getBoundingClientRect().right > innerWidth)
              .map((part) => part.id || part.ariaLabel)"""
        )
        assert cut == []
        page.emulate_media(media="screen", color_scheme=mode)
        page.wait_for_function(f"document.documentElement.dataset.theme === '{mode}'")


@pytest.mark.browser
@pytest.mark.parametrize("chapter", [path.stem for path in runs.chapter_paths()])
def test_without_scripts_nothing_is_empty(site, browser, chapter):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1000, "height": 900})
    page = context.new_page()
    page.goto((site / "notebooks" / f"{chapter}.html").as_uri())
    for figure in page.locator('figure[data-companion="chart"]').all():
        still = figure.locator(".companion-still")
        assert still.is_visible()
        assert still.bounding_box()["height"] > 30
    assert page.locator(".companion-controls:visible, .companion-filters:visible").count() == 0
    context.close()


@pytest.mark.browser
def test_every_control_has_a_name_works_by_key_and_tells_what_changed(site, browser):
    told = 0
    for chapter in runs.chapter_paths():
        with Visit(browser, site / "notebooks" / f"{chapter.stem}.html") as visit:
            page = visit.page
            for control in page.locator(
                'figure[data-companion="chart"] .companion-controls :is(input:not([type=text]), select)'
            ).all():
                figure = control.locator("xpath=ancestor::figure")
                assert control.evaluate("(input) => input.labels[0].textContent.trim()")
                value, words = control.input_value(), figure.locator(".companion-told").text_content()
                control.focus()
                at_end = control.evaluate("(input) => input.type === 'range' && input.value === input.max")
                for _ in range(4):
                    page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
                assert control.input_value() != value
                where = figure.get_attribute("id")
                page.wait_for_function(
                    "([id, words]) => document.querySelector(`#${id} .companion-told`).textContent !== words",
                    arg=[where, words],
                    timeout=5_000,
                )
                assert figure.get_by_role("status").count() == 1
                told += 1
            assert visit.errors == []
    assert told >= 4


@pytest.mark.browser
def test_tables_and_chapters_can_be_saved_from_a_server(site, browser):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words):
            del words

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/notebooks/02-support.html")
        for suffix in (".md", ".ipynb"):
            page.locator(".dropdown-download-buttons > button").click()
            with page.expect_download() as saved:
                page.locator(f'.dropdown-download-buttons a:has-text("{suffix}")').first.click()
            assert saved.value.suggested_filename == f"02-support{suffix}"
        page.goto(f"http://127.0.0.1:{server.server_port}/notebooks/00-front.html")
        with page.expect_download() as saved:
            page.locator("a.companion-csv:visible").first.click()
        table = pd.read_csv(saved.value.path())
        assert len(table.columns) >= 3
        page.close()
        server.shutdown()
