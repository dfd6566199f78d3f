"""Slider arithmetic: what a reader sees after moving a control equals what the package computes, in a real browser."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from _site import Visit, open_browser

from companion import exposure, scoring
from companion.book import charts, explorers, figure
from companion.book import verification as drawings
from companion.book.page import frame
from companion.corpora.frozen import load_frozen
from companion.errors import InputError
from companion.stages import agreement, published, studies, support, verification
from companion.tables import Records, validate

SETTINGS = 20
ARMS = ["global_dense", "namespace_dense"]
REPLICATES = 500


@pytest.fixture(scope="module")
def records():
    """One public corpus as frozen, which has unresolved labels and two arms."""
    whole = load_frozen("gatemem", arms=ARMS)
    some = set(whole.queries["query_id"].iloc[::6])
    cut = {
        name: getattr(whole, name)[getattr(whole, name)["query_id"].isin(some)].reset_index(drop=True)
        for name in ("queries", "labels", "rankings")
    }
    return Records(memories=whole.memories, defaults=whole.defaults, population=whole.population, **cut)


@pytest.fixture(scope="module")
def browser():
    with open_browser() as started:
        yield started


class Explorer:
    """One chart alone on a page, with its controls."""

    def __init__(self, browser, folder, chart):
        made = figure(chart, name="explorer", caption="A chart.", alt="A chart.", table=pd.DataFrame({"a": [1]}))
        path = folder / "page.html"
        path.write_text(frame("Explorer", made.data["text/html"]), encoding="utf-8")
        self.visit = Visit(browser, path)

    def __enter__(self):
        return self

    def __exit__(self, *details):
        self.visit.__exit__(*details)

    def move(self, **values):
        """Set controls as a reader does: through the input elements."""
        for name, value in values.items():
            control = self.visit.page.locator(f'#fig-explorer .companion-controls [name="{name}"]')
            if control.evaluate("(element) => element.tagName") == "SELECT":
                control.select_option(label=str(value))
            else:
                control.evaluate(
                    "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }", str(value)
                )
        self.visit.page.evaluate("companionFigures.view('fig-explorer').runAsync().then(() => 0)")

    def rows(self, *fields):
        """Return what stands behind the drawn marks, once for each, where it holds these fields."""
        held = self.visit.page.evaluate(
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

    def texts(self):
        """Return what the chart's text marks say."""
        return self.visit.page.eval_on_selector_all(
            "#fig-explorer .companion-live svg .role-mark text", "(all) => all.map((text) => text.textContent)"
        )


def draws(seed):
    return np.random.default_rng(seed)


def one_query(items, bad, unknown):
    """Records of one route of `items` memories, known violations first, whose last item is its only anchor."""
    names = [f"m{place:02d}" for place in range(items)]
    scope = [False] * bad + [None] * unknown + [True] * (items - bad - unknown)
    labels = pd.DataFrame({"query_id": "q", "memory_id": names, "scope": scope, "policy": True, "lifecycle": True})
    labels["relevant"] = [False] * (items - 1) + [True]
    rankings = pd.DataFrame({"arm": "a", "query_id": "q", "rank": range(1, items + 1), "memory_id": names})
    return Records(
        memories=validate(pd.DataFrame({"memory_id": names, "namespace": "n"}), "memories"),
        queries=validate(pd.DataFrame({"query_id": ["q"], "namespace": ["n"]}), "queries"),
        labels=validate(
            labels.astype(dict.fromkeys(["scope", "policy", "lifecycle", "relevant"], "boolean")), "labels"
        ),
        rankings=validate(rankings, "rankings"),
    )


@pytest.mark.browser
def test_the_bounds_explorer_shows_what_scoring_computes(browser, tmp_path):
    draw = draws(1)
    with Explorer(browser, tmp_path, charts.bounds_explorer(20)) as page:
        for _ in range(SETTINGS):
            items = int(draw.integers(1, 21))
            bad = int(draw.integers(0, items))
            unknown = int(draw.integers(0, items - bad))
            page.move(items=items, violations=bad, unresolved=unknown)
            scored = scoring.score_routes(one_query(items, bad, unknown), target_recall=1.0).iloc[0]
            numbers = [float(number) for number in re.findall(r"\d\.\d{3}", " ".join(page.texts()))]
            want = [scored[name] for name in ("lower_bound", "upper_bound", "known_rate", "label_coverage")]
            assert numbers == pytest.approx(want, abs=5.1e-4), (items, bad, unknown)


@pytest.mark.browser
def test_the_bounds_explorer_cuts_what_does_not_fit(browser, tmp_path):
    with Explorer(browser, tmp_path, charts.bounds_explorer(20)) as page:
        page.move(items=4, violations=3, unresolved=9)
        assert "[0.750, 1.000]" in " ".join(page.texts())
        page.move(items=4, violations=0, unresolved=4)
        assert "undefined" in " ".join(page.texts())


@pytest.mark.browser
def test_the_confidence_explorer_shows_the_intervals_of_each_level(browser, tmp_path):
    outcomes = published.table("exposure_outcomes")
    metric, draw = "relevant_inadmissible", draws(2)
    levels = exposure.interval_levels(outcomes, range(50, 100), metric=metric, replicates=REPLICATES, seed=3)
    with Explorer(
        browser, tmp_path, charts.confidence_explorer(levels, y="reader", level=0.95, title="effect")
    ) as page:
        for level in draw.integers(50, 100, SETTINGS):
            page.move(confidence=int(level))
            want = exposure.summarise(outcomes, replicates=REPLICATES, confidence=level / 100, seed=3)
            want = want[want["metric"] == metric].set_index("reader")
            shown = page.rows("reader", "estimate", "low", "high", "excludes").set_index("reader")
            assert set(shown.index) == set(want.index)
            for end in ("estimate", "low", "high"):
                assert shown[end].to_dict() == pytest.approx(want[end].to_dict(), abs=5e-4)


@pytest.mark.browser
def test_the_loss_explorer_shows_what_scoring_computes(browser, tmp_path, records):
    targets, depths, draw = [0.5, 0.8, 1.0], [5, 20], draws(4)
    swept = support.sweep(records, ARMS, targets=targets, depths=depths)
    scored = {
        (target, depth): scoring.score_routes(records, arms=ARMS, target_recall=target, top_k=depth)
        for target in targets
        for depth in depths
    }
    with Explorer(browser, tmp_path, charts.loss_explorer(swept, target=0.8, depth=20, cost=1.0)) as page:
        for _ in range(SETTINGS):
            target, depth = float(draw.choice(targets)), int(draw.choice(depths))
            cost = round(float(draw.integers(0, 21)) / 20, 2)
            page.move(target=f"{target:g}", depth=depth, cost=cost)
            queries = scored[target, depth]
            queries = queries[queries["anchors"] > 0]
            loss = queries["upper_bound"].where(queries["feasible"] == 1, cost).astype(float)
            want = loss.groupby([queries["arm"], queries["source"]]).mean().groupby("arm").mean()
            shown = page.rows("arm", "loss").drop_duplicates("arm").set_index("arm")["loss"]
            assert shown.to_dict() == pytest.approx(want.to_dict(), abs=5e-4), (target, depth, cost)
            assert sorted(text for text in page.texts()) == sorted(f"{value:.3f}" for value in shown)


@pytest.mark.browser
def test_the_hidden_label_explorer_shows_what_hiding_and_scoring_give(browser, tmp_path, records):
    weights = explorers.hidden_label_weights(records, seed=5, top_k=20)
    shares = sorted({0, 100, *(int(share) for share in draws(6).integers(1, 100, SETTINGS - 2))})
    sweep = studies.hiding_means(scoring.hiding_sweep(records, [share / 100 for share in shares], seed=5, top_k=20))
    with Explorer(browser, tmp_path, explorers.hidden_label_explorer(weights)) as page:
        for share in shares:
            page.move(hidden=share)
            want = sweep[sweep["rate"] == share / 100].set_index("arm")
            shown = page.rows("arm", "lower", "upper").set_index("arm")
            assert shown["lower"].to_dict() == pytest.approx(want["lower_bound"].to_dict(), abs=5e-4)
            assert shown["upper"].to_dict() == pytest.approx(want["upper_bound"].to_dict(), abs=5e-4)


@pytest.mark.browser
def test_the_agreement_explorer_shows_alpha_at_every_prevalence(browser, tmp_path):
    grid = agreement.prevalence_grid(40, np.arange(0, 13), step=4)
    marks = pd.DataFrame({"axis": ["x"], "prevalence": [0.1], "alpha": [0.2], "agreement": [0.9]})
    with Explorer(browser, tmp_path, drawings.agreement_explorer(grid, marks, split=3)) as page:
        for split in draws(8).integers(0, 13, SETTINGS):
            page.move(split_records=int(split))
            shown = page.rows("split", "both_yes", "both_no", "alpha")
            assert set(shown["split"]) == {split}
            for row in shown.to_dict("records"):
                table = agreement.PairTable(int(row["both_yes"]), int(row["split"]), int(row["both_no"]))
                assert row["alpha"] == pytest.approx(table.alpha, abs=5e-4)


@pytest.mark.browser
def test_the_operating_curves_ring_the_best_points_within_the_limit(browser, tmp_path):
    curves = verification.published_curves()
    with Explorer(browser, tmp_path, drawings.operating_curves(curves, limit=0.01)) as page:
        for step in draws(7).integers(0, 61, SETTINGS):
            page.move(denial_limit=step / 2)
            best = {
                name: verification.select(part, step / 200 + 1e-12)
                for name, part in curves.groupby("verifier", sort=False)
            }
            want = {name: row["violation_recall"] for name, row in best.items() if row is not None}
            rows = page.rows("verifier", "best", "violation_recall")
            assert rows.groupby("verifier")["violation_recall"].max().to_dict() == pytest.approx(want, abs=5e-4)


def test_the_twin_of_the_hidden_label_explorer_equals_hiding_and_scoring(records):
    rates = [0, 1, 30, 77, 100]
    weights = explorers.hidden_label_weights(records, seed=2, top_k=20, target_recall=0.5)
    sweep = scoring.hiding_sweep(records, [rate / 100 for rate in rates], seed=2, top_k=20, target_recall=0.5)
    means = studies.hiding_means(sweep)
    for rate in rates:
        ours = explorers.hidden_label_bounds(weights, rate).set_index("arm")
        want = means[means["rate"] == rate / 100].set_index("arm").loc[ours.index]
        np.testing.assert_allclose(ours, want[ours.columns], atol=1e-12)


def test_the_twin_refuses_what_the_slider_cannot_show(records):
    with pytest.raises(InputError, match="share 101"):
        explorers.hidden_label_bounds(pd.DataFrame({"arm": [], "status": [], "step": [], "weight": []}), 101)
    with pytest.raises(InputError, match="no rankings"):
        explorers.hidden_label_weights(Records(records.memories, records.queries, records.labels))


def test_an_arm_without_a_feasible_query_in_some_source_is_left_out():
    both = one_query(4, 1, 1)
    lost = both.rankings[both.rankings["rank"] < 4].assign(arm="b")
    records = Records(
        both.memories, both.queries, both.labels, rankings=pd.concat([both.rankings, lost], ignore_index=True)
    )
    weights = explorers.hidden_label_weights(records, target_recall=1.0)
    assert set(weights["arm"]) == {"a"}
    assert weights["weight"].sum() == pytest.approx(1.0)


def test_a_chart_follows_the_settled_width_and_not_one_in_passing(browser, tmp_path):
    """A page may be wider for a moment while a window changes; the chart must not keep that width."""
    effects = exposure.summarise(published.table("exposure_outcomes"), replicates=50)
    rows = effects[effects["metric"] == "relevant_inadmissible"]
    with Explorer(browser, tmp_path, charts.forest(rows, y="reader", series="metric", title="effect")) as page:
        width = """() => {
            const svg = document.querySelector(".companion-live svg");
            return [Number(svg.getAttribute("width")), document.querySelector(".companion-canvas").clientWidth];
        }"""
        inner = page.visit.page
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
            inner.wait_for_timeout(500)
            drawn, room = inner.evaluate(width)
            assert drawn == room
