"""What a reader sees after moving a control, or settling a label, equals what the package computes: in a browser."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from _site import Visit, open_browser

from companion import exposure, scoring
from companion.book import charts, explorers, figure
from companion.book.page import frame
from companion.bootstrap import Resampling
from companion.corpora.frozen import load_frozen
from companion.errors import InputError
from companion.stages import published
from companion.tables import Records

ARMS = ["global_dense", "namespace_dense"]


@pytest.fixture(scope="module")
def records():
    """Some queries of one public corpus as frozen, which has unresolved labels and two arms."""
    whole = load_frozen("gatemem", arms=ARMS)
    scored = scoring.score_routes(whole, top_k=20)
    both = scored.groupby("query_id")["feasible"].min() == 1
    opened = scored[scored["label_coverage"] < 1].groupby("query_id")["arm"].nunique() == len(ARMS)
    some = set(sorted(set(both.index[both]) & set(opened.index[opened]))[:6])
    cut = {
        name: getattr(whole, name)[getattr(whole, name)["query_id"].isin(some)].reset_index(drop=True)
        for name in ("queries", "labels", "rankings")
    }
    return Records(memories=whole.memories, defaults=whole.defaults, population=whole.population, **cut)


@pytest.fixture(scope="module")
def browser():
    with open_browser() as started:
        yield started


@pytest.fixture
def opened(browser, tmp_path):
    """Open something that displays alone on a page."""
    visits = []

    def open_it(made):
        path = tmp_path / "page.html"
        path.write_text(frame("Explorer", made.data["text/html"]), encoding="utf-8")
        visits.append(Visit(browser, path))
        return visits[-1].page

    yield open_it
    for visit in visits:
        assert visit.errors == []
        visit.__exit__()


def settle(records, queries=None):
    scored = scoring.score_routes(records, top_k=20)
    queries = list(queries or records.queries["query_id"])
    return explorers.settle(records, scored, queries=queries, name="settle", caption="Squares.")


def bounds_on(page, route):
    text = page.locator("#fig-settle .companion-routes p[role=status]").nth(route).inner_text()
    return [float(number) for number in re.findall(r"\d\.\d{3}", text)], text


@pytest.mark.browser
def test_settled_labels_move_the_bounds_as_scoring_does(opened, records):
    page = opened(settle(records))
    menu = page.get_by_role("combobox", name="Question")
    anchors = scoring.anchors_of(records)
    for place, query in enumerate(records.queries["query_id"].iloc[:3]):
        menu.select_option(str(place))
        for route, arm in enumerate(ARMS):
            ranked = records.rankings.query("query_id == @query and arm == @arm").sort_values("rank")["memory_id"]
            squares = page.locator("#fig-settle ol").nth(route).locator("button")
            kinds = squares.evaluate_all("(all) => all.map((one) => [one.dataset.label, 'past' in one.dataset])")
            opened_ones = [n for n, (label, past) in enumerate(kinds) if label == "?" and not past][:3]
            assert opened_ones
            for number in opened_ones:
                squares.nth(number).click()  # to: not admissible
            settled = [ranked.iloc[number] for number in opened_ones]
            row = {"query_id": query, "relevant": False, "scope": True, "policy": False, "lifecycle": True}
            labels = records.labels[
                ~((records.labels["query_id"] == query) & records.labels["memory_id"].isin(settled))
            ]
            added = pd.DataFrame([{**row, "memory_id": memory} for memory in settled])
            labels = pd.concat([labels, added.reindex(columns=labels.columns)], ignore_index=True).astype(labels.dtypes)
            again = Records(records.memories, records.queries, labels, records.rankings, defaults=records.defaults)
            want = (
                scoring.score_routes(again, top_k=20, anchors=anchors).set_index(["query_id", "arm"]).loc[(query, arm)]
            )
            names = ["lower_bound", "upper_bound", "known_rate", "label_coverage"]
            assert bounds_on(page, route)[0] == pytest.approx([want[name] for name in names], abs=6e-4)


@pytest.mark.browser
def test_a_square_goes_round_by_key_and_all_return_as_recorded(opened, records):
    page = opened(settle(records))
    before = bounds_on(page, 0)
    square = page.locator("#fig-settle ol").first.locator('button[data-label="?"]:not([data-past])').first
    square.focus()
    number = page.evaluate(
        "Array.from(document.querySelectorAll('#fig-settle ol button')).indexOf(document.activeElement)"
    )
    square = page.locator("#fig-settle ol button").nth(number)
    seen = []
    for _ in range(3):
        page.keyboard.press("Enter")
        seen.append(square.get_attribute("data-label"))
        assert ["unresolved", "inadmissible", "admissible"]["?01".index(seen[-1])] in square.get_attribute("aria-label")
    assert seen == ["0", "1", "?"]
    page.keyboard.press("Enter")
    assert bounds_on(page, 0) != before
    page.get_by_role("button", name="As recorded").click()
    assert bounds_on(page, 0) == before


def test_without_a_script_the_first_question_stands_as_recorded(records):
    from bs4 import BeautifulSoup

    page = BeautifulSoup(settle(records).data["text/html"], "html.parser")
    scored = scoring.score_routes(records, top_k=20).set_index(["query_id", "arm"])
    first = records.queries["query_id"].iloc[0]
    for told, arm in zip(page.select(".companion-routes ol + p"), ARMS, strict=True):
        want = scored.loc[(first, arm)]
        assert f"share between {want['lower_bound']:.3f} and {want['upper_bound']:.3f}" in told.text
    assert page.select_one(".companion-controls").has_attr("hidden")
    assert "<script>" not in page.select_one(".companion-asked").decode_contents()


def test_queries_without_routes_are_refused(records):
    with pytest.raises(InputError, match="no routes"):
        settle(records, queries=["nobody-asked"])


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ("00?1", "2 of 4 violate, 1 open: share between 0.500 and 0.750; known rate 0.667, coverage 0.750"),
        ("??", "0 of 2 violate, 2 open: share between 0.000 and 1.000; known rate undefined, coverage 0.000"),
        ("", "not enough found: no matched prefix"),
    ],
)
def test_bounds_in_words(labels, words):
    assert explorers.bounds_in_words(labels) == words


class Explorer:
    """One chart with its controls."""

    def __init__(self, page):
        self.page = page

    def move(self, **values):
        """Set controls as a reader does: through the input elements."""
        for name, value in values.items():
            control = self.page.locator(f'#fig-explorer .companion-controls [name="{name}_"]')
            if control.evaluate("(element) => element.tagName") == "SELECT":
                control.select_option(label=str(value))
            else:
                control.evaluate("(c, v) => { c.value = v; c.dispatchEvent(new Event('input')); }", str(value))
        self.page.evaluate("companionFigures.view('fig-explorer').runAsync().then(() => 0)")

    def rows(self, *fields):
        """Return what stands behind the drawn marks, once for each, where it holds these fields."""
        held = self.page.evaluate(
            """(fields) => {
              const found = new Map();
              (function look(item) {
                if (item.datum && fields.every((field) => field in item.datum)) {
                  const row = Object.fromEntries(fields.map((field) => [field, item.datum[field]]));
                  found.set(JSON.stringify(row), row);
                }
                for (const child of item.items || []) look(child);
              })(companionFigures.view("fig-explorer").scenegraph().root);
              return Array.from(found.values());
            }""",
            list(fields),
        )
        return pd.DataFrame(held, columns=list(fields))


@pytest.mark.browser
def test_a_slider_and_a_menu_show_the_rows_of_their_settings(opened):
    outcomes = published.table("exposure_outcomes")
    metrics = ["relevant_admissible", "relevant_inadmissible"]
    levels = pd.concat(
        exposure.interval_levels(
            outcomes, range(50, 100, 5), metric=metric, resampling=Resampling(replicates=300, seed=3)
        ).assign(cell=metric)
        for metric in metrics
    )
    chart = charts.explorer(
        charts.forest(levels, y="reader", title="effect"),
        level=charts.slider("Level, %", 50, 95, value=95, step=5),
        cell=charts.picker("Cell", metrics),
    )
    page = Explorer(opened(figure(chart, name="explorer", caption="c", alt="a", table=levels.head(1))))
    assert page.page.get_by_label("Level, %").count() == page.page.get_by_label("Cell").count() == 1
    for level, cell in ((95, metrics[0]), (50, metrics[1]), (80, metrics[1])):
        page.move(level=level, cell=cell)
        want = exposure.summarise(outcomes, resampling=Resampling(replicates=300, confidence=level / 100, seed=3))
        want = want[want["metric"] == cell].set_index("reader")
        shown = page.rows("reader", "estimate", "low", "high").set_index("reader")
        for end in ("estimate", "low", "high"):
            assert shown[end].to_dict() == pytest.approx(want[end].to_dict(), abs=5e-4), (level, cell)


@pytest.mark.browser
def test_fractions_can_be_chosen_and_panels_follow_too(opened):
    data = pd.DataFrame([(c, x, s, p, c * x) for c in (0.1, 0.3) for x in (1, 2) for s in "ab" for p in "pq"])
    data.columns = ["cost", "x", "series", "panel", "y"]
    chart = charts.lines(data, x="x", y="y", series="series", x_title="x", y_title="y", panel="panel")
    chart = charts.explorer(chart, cost=charts.slider("Cost", 0.1, 0.3, value=0.1, step=0.1))
    page = Explorer(opened(figure(chart, name="explorer", caption="c", alt="a", table=data)))
    assert set(page.rows("panel", "y")["y"].round(9)) == {0.1, 0.2}
    page.move(cost=0.3)
    assert set(page.rows("panel", "y")["panel"]) == {"p", "q"}
    assert set(page.rows("panel", "y")["y"].round(9)) == {0.3, 0.6}


def test_every_dot_of_a_pile_has_a_place_of_its_own():
    data = pd.DataFrame({"x": np.repeat([0.1, 0.5], 5), "y": "a"})
    pile = charts._pile(data, "x", "y")
    assert pd.DataFrame({"x": data["x"], "pile": pile}).duplicated().sum() == 0
    assert np.abs(pile).max() <= 1


def test_colours_keep_their_meaning_under_readable_names():
    names = ["own memories only", "something else", "published", "inadmissible", "ours"]
    colours = charts.colours_of(names)
    assert colours[0] == charts.arm_colour("namespace_dense")
    assert len(set(colours)) == len(names)


@pytest.mark.browser
def test_a_chart_follows_the_settled_width_and_not_one_in_passing(opened):
    """A page may be wider for a moment while a window changes; the chart must not keep that width."""
    rows = exposure.summarise(published.table("exposure_outcomes"), resampling=Resampling(replicates=200))
    rows = rows[rows["metric"] == "relevant_inadmissible"]
    chart = charts.forest(rows, y="reader", series="metric", title="effect")
    inner = opened(figure(chart, name="explorer", caption="c", alt="a"))
    width = """() => {
        const svg = document.querySelector(".companion-live svg");
        return [Number(svg.getAttribute("width")), document.querySelector(".companion-canvas").clientWidth];
    }"""
    inner.evaluate(
        """() => {
        const canvas = document.querySelector(".companion-canvas");
        canvas.style.width = "1600px";
        window.dispatchEvent(new Event("resize"));
        canvas.style.width = "";
    }"""
    )
    inner.wait_for_timeout(300)
    drawn, room = inner.evaluate(width)
    assert drawn == room
    for size in (700, 1100, 620):  # all on one side of the width at which charts are drawn anew
        inner.set_viewport_size({"width": size, "height": 900})
        inner.wait_for_function(
            "before => document.querySelector('.companion-canvas').clientWidth !== before", arg=room
        )
        inner.wait_for_function(
            "() => Number(document.querySelector('.companion-live svg').getAttribute('width')) === "
            "document.querySelector('.companion-canvas').clientWidth"
        )
        drawn, room = inner.evaluate(width)
        assert drawn == room
