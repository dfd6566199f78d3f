"""The claims page and the data card: every row says the truth about itself, and nothing is hidden."""

from __future__ import annotations

import re

import datacard
import pandas as pd
import pytest
from _site import ROOT
from bs4 import BeautifulSoup

from companion.book import claims, runs
from companion.bootstrap import Resampling
from companion.errors import InputError
from companion.stages import published
from companion.stages.reproduce import STATUSES, reproduce

CHAPTERS = claims.chapters_of(ROOT / "notebooks")


@pytest.fixture(scope="module")
def reproduced():
    return reproduce(resampling=Resampling(replicates=300))


@pytest.fixture(scope="module")
def rows(reproduced):
    return claims.claims_rows(reproduced, CHAPTERS)


@pytest.fixture(scope="module")
def page(rows):
    made = claims.claims_table(rows, name="claims", caption="All.")
    return BeautifulSoup(made.data["text/html"], "html.parser")


def test_every_published_figure_is_a_row_with_its_number(rows, page):
    table = published.figures()
    assert len(rows) == len(table) == len(page.select("tbody tr"))
    assert rows["published"].tolist() == table["published"].tolist()
    shown = [row.find_all("td")[1].text for row in page.select("tbody tr")]
    for text, value in zip(shown, table["published"], strict=True):
        number = float(text.partition(" ")[0].replace("−", "-").replace(",", ""))
        assert number == pytest.approx(value, rel=1e-4, abs=1e-9)


def test_no_two_rows_read_alike(rows):
    assert not rows.duplicated(["claim", "finding", "population"]).any()


def test_verdicts_repeat_what_reproduce_found(reproduced, rows):
    for said, status, agrees in zip(rows["verdict"], reproduced["status"], reproduced["agrees"], strict=True):
        if status in {"needs-data", "quoted"}:
            assert said == "–"
        else:
            good = {"recomputed": "equal", "consistent": "identity holds", "replicated": "inside our interval"}[status]
            assert (said == good) == bool(agrees)


@pytest.mark.parametrize("width", [1300, 1440])
def test_no_name_runs_into_the_number_beside_it(rows, tmp_path, width):
    from _site import Visit, open_browser

    from companion.book.page import frame

    path = tmp_path / "claims.html"
    path.write_text(frame("Claims", claims.claims_table(rows, name="claims", caption="c").data["text/html"]), "utf-8")
    with open_browser() as browser, Visit(browser, path, width=width) as visit:
        too_wide = "cells => cells.filter(c => c.scrollWidth > c.clientWidth + 1).map(c => c.textContent)"
        assert visit.page.locator("#table-claims td").evaluate_all(too_wide) == []


def test_commands_exist_and_quoted_rows_offer_none(rows):
    import typer

    from companion.cli import app

    names = set(typer.main.get_command(app).commands)
    for command, status in zip(rows["command"], rows["status"], strict=True):
        if status == "quoted":
            assert command == "–"
        else:
            assert command.split()[0] == "companion"
            assert command.split()[1] in names


def test_places_exist_in_the_chapters():
    for claim, (chapter, anchor) in claims.WHERE.items():
        if chapter not in CHAPTERS:
            continue
        text = (ROOT / "notebooks" / f"{chapter}.md").read_text(encoding="utf-8")
        name = anchor.partition("-")[2]
        assert f'name="{name}"' in text, (claim, chapter, anchor)


def test_all_claims_of_the_paper_have_a_place():
    assert set(claims.WHERE) == set(published.figures()["claim"])


def test_a_row_of_a_chapter_that_is_not_there_has_no_link(reproduced):
    rows = claims.claims_rows(reproduced, ["04-exposure"])
    assert set(rows["computed"]) == {"04-exposure", "–"}
    page = BeautifulSoup(claims.claims_table(rows, name="x", caption="c").data["text/html"], "html.parser")
    links = {link["href"] for link in page.select("tbody a")}
    assert links == {"04-exposure.html#table-recomputed"}


def test_rows_carry_what_they_are_filtered_by(rows, page):
    found = [(row["data-stage"], row["data-status"]) for row in page.select("tbody tr")]
    assert found == list(zip(rows["stage"], rows["status"], strict=True))
    assert page.select_one(".companion-filters").has_attr("hidden"), "menus appear with the script that works them"


def test_rows_say_verdict_place_and_command(rows, page):
    for row, want in zip(page.select("tbody tr"), rows.to_dict("records"), strict=True):
        finding, _, _, status, place = row.find_all("td")
        assert finding.text == f"{want['finding']} {want['population']}"
        said = status.select_one(".companion-beside")
        assert (said.text if said else "–") == want["verdict"]
        assert place.a.text == want["computed"]
        assert (place.code.text if place.code else "–") == want["command"]


def test_an_unknown_status_is_refused(reproduced):
    with pytest.raises(InputError, match="status 'guessed'"):
        claims.claims_rows(reproduced.assign(status="guessed"), CHAPTERS)


def test_counts_add_up(reproduced):
    counts = claims.status_counts(reproduced)
    assert counts["figures"].sum() == len(reproduced)
    assert set(counts["status"]) <= set(STATUSES)


def test_the_chain_is_a_list_whose_text_cannot_run():
    step = claims.Step("Stored", "It <b>is</b>.", "1", "", "Some *words*.", "counted", 'x.html"><script>')
    page = BeautifulSoup(claims.chain([step], name="chain", caption="C.").data["text/html"], "html.parser")
    assert len(page.select("ol > li")) == 1
    assert not page.select("script, b")
    assert page.em.text == "words"


def test_the_data_card_lists_every_file_with_its_sum():
    card = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    listed = datacard.listed(card)
    files = {path: digest for path, digest in runs.data_hashes().items() if path != datacard.CARD}
    assert listed == files, "run: python tools/datacard.py"
    assert all(re.search(rf"^\| {re.escape(path)} \|.*\| (MIT|facts) \|$", card, re.MULTILINE) for path in files)


def test_a_file_without_a_stated_origin_is_refused():
    with pytest.raises(InputError, match="no origin is stated"):
        datacard.origin_of("somewhere/else.csv")
    assert datacard.origin_of("frozen/rhelm/meta.json")[1] == "MIT"


def test_the_card_is_rewritten_between_its_marks_only(tmp_path):
    card = tmp_path / "README.md"
    card.write_text("# Mine\n\n<!-- files -->\nold\n<!-- /files -->\nafter\n", encoding="utf-8")
    datacard.update(card)
    text = card.read_text(encoding="utf-8")
    assert text.startswith("# Mine\n")
    assert text.endswith("after\n")
    assert datacard.listed(text)
    card.write_text("nothing", encoding="utf-8")
    with pytest.raises(InputError, match="no table between"):
        datacard.update(card)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md"]


def test_a_table_behind_the_claims_can_be_taken_away_whole(page, rows):
    import io
    from urllib.parse import unquote

    data = unquote(page.select_one("a.companion-csv")["href"].split(",", 1)[1])
    table = pd.read_csv(io.StringIO(data))
    assert len(table) == len(rows)
    assert table["note"].notna().all()
