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
from companion.stages import findings, published
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


def shown_rows(page):
    return page.select("tbody tr:not(.companion-group)")


def test_every_published_figure_is_a_row_with_its_number(rows, page):
    table = published.figures()
    assert len(rows) == len(table) == len(shown_rows(page))
    assert sorted(rows["published"]) == sorted(table["published"])
    shown = [row.find_all("td")[1].text for row in shown_rows(page)]
    for text, value in zip(shown, rows["published"], strict=True):
        number = float(text.partition(" ")[0].replace("−", "-").replace(",", ""))
        assert number == pytest.approx(value, rel=1e-4, abs=1e-9)


def test_rows_stand_under_their_sentence_the_headline_first(rows, page):
    order = list(findings.SENTENCES)
    assert rows["sentence"].map(order.index).is_monotonic_increasing
    first = rows.iloc[0]
    assert (first["claim"], first["status"]) == ("C9", "recomputed")
    assert first["finding"] == "own memories only minus search everything: evidence recall (first 20)"
    heads = page.select("tr.companion-group")
    assert [head.text for head in heads] == list(findings.SENTENCES.values())
    for head in heads:
        assert head.find_next_sibling("tr").td is not None


def test_no_two_rows_read_alike_and_codes_are_spelled_out(rows):
    assert not rows.duplicated(["claim", "finding", "population"]).any()
    assert not rows["finding"].str.contains("_").any()


def test_verdicts_repeat_what_reproduce_found(reproduced, rows):
    good = {"recomputed": "equal", "consistent": "identity holds", "replicated": "inside our interval"}
    assert (rows["verdict"] == "–").sum() == reproduced["status"].isin(["needs-data", "quoted"]).sum()
    said = rows["verdict"].eq(rows["status"].map(good))
    assert int(said.sum()) == int(reproduced["agrees"].sum())
    spoiled = reproduced.assign(agrees=reproduced["agrees"].mask(reproduced["agrees"].notna(), False))
    bad = {"differs", "identity fails", "outside our interval", "–"}
    assert set(claims.claims_rows(spoiled, CHAPTERS)["verdict"]) == bad


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


def elements_of(chapter):
    """Ids that a page of a chapter will have: its figures, its tables, its headings."""
    text = (ROOT / "notebooks" / f"{chapter}.md").read_text(encoding="utf-8")
    heads = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    ids = {re.sub(r"[^a-z0-9]+", "-", head.lower()).strip("-") for head in heads}
    names = re.findall(r'name="([a-z0-9-]+)"', text)
    return ids | {f"{kind}-{name}" for name in names for kind in ("fig", "table")}


PLACES = {*claims.PLACES.values(), *(place for part in claims.WHERE.values() for place in part.values())}


@pytest.mark.parametrize("place", sorted(PLACES))
def test_every_link_leads_to_a_cell_that_is_there(place):
    chapter, _, anchor = place.partition("#")
    assert anchor in elements_of(chapter)


def test_what_was_computed_has_a_place_and_nothing_else(rows):
    done = rows["status"].isin(["recomputed", "consistent", "replicated"])
    assert (rows.loc[done, "computed"] != "–").all()
    assert (rows.loc[~done, "computed"] == "–").all()
    assert set(claims.PLACES) == set(findings.SENTENCES)


def test_a_row_of_a_chapter_that_is_not_there_has_no_link(reproduced):
    rows = claims.claims_rows(reproduced, ["04-exposure"])
    page = BeautifulSoup(claims.claims_table(rows, name="x", caption="c").data["text/html"], "html.parser")
    assert {link["href"] for link in page.select("tbody a")} == {"04-exposure.html#fig-effects"}


def test_rows_carry_what_they_are_filtered_by(rows, page):
    found = [(row["data-stage"], row["data-status"]) for row in shown_rows(page)]
    assert found == list(zip(rows["stage"], rows["status"], strict=True))
    assert page.select_one(".companion-filters").has_attr("hidden"), "menus appear with the script that works them"


def test_rows_say_verdict_place_and_command(rows, page):
    for row, want in zip(shown_rows(page), rows.to_dict("records"), strict=True):
        finding, _, _, status, place = row.find_all("td")
        assert finding.text == f"{want['finding']} {want['population']}"
        said = status.select_one(".companion-beside")
        assert (said.text if said else "–") == want["verdict"]
        assert (place.a.text if place.a else "–") == want["computed"].partition("#")[0]
        assert (place.code.text if place.code else "–") == want["command"]


def test_an_unknown_status_is_refused(reproduced):
    with pytest.raises(InputError, match="status 'guessed'"):
        claims.claims_rows(reproduced.assign(status="guessed"), CHAPTERS)


def test_counts_add_up(reproduced):
    counts = claims.status_counts(reproduced)
    assert counts["figures"].sum() == len(reproduced)
    assert set(counts["status"]) <= set(STATUSES)


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
