"""Published figures that other published figures imply: identities that could fail, and what each one gives.

A row ``(claim, subject, contrast, metric, value, note)`` has the value that the identity gives. Only rounding to whole
numbers (counts of queries, whole-number tables) looks at the figure itself; where nothing fits, the value is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from companion.stages import agreement, headline, published

Key = tuple[str, str, str, str]
Row = tuple[str, str, str, str, float, str]
Figures = dict[Key, float]

_WIDE, _NARROW = "global_dense", "namespace_dense"
_DIFFERENCE, _TOP = f"{_NARROW}-{_WIDE}", "top_20"
_LOSS = "penalized_admissibility_upper_risk"
_ENDS = ("evidence_recall", "feasible_rate", _LOSS)
_MEMOPS_MEMORIES = 175_144
"""Memories of the paper's MemOps evaluation split, all of them visible to each of its queries."""


def _mean(parts: list[float | None]) -> float:
    return float(np.mean(np.array(parts, dtype=float)))


def consistent() -> pd.DataFrame:
    """Return every figure that an identity gives: claim, subject, contrast, metric, value, note."""
    table = published.figures()
    figures = dict(zip(_keys(table), map(float, table["published"]), strict=True))
    queries = dict(zip(_keys(table), map(int, table["n"]), strict=True))
    makers: list[Callable[[Figures], Iterator[Row]]] = [
        _macro_of_sources, _differences_of_arms, _parts_of_loss, _same_in_two_tables, _everything_is_searched,
        _rate_zero, _scope_aside, _curve_points, _whole_tables, _one_grid_point, _macro_of_readers,
    ]  # fmt: skip
    rows = [row for make in makers for row in make(figures)]
    rows += _within_a_source(figures, queries)
    columns = ["claim", "subject", "contrast", "metric", "value", "note"]
    return pd.DataFrame(rows, columns=columns).drop_duplicates(columns[:4]).reset_index(drop=True)


def _keys(table: pd.DataFrame) -> list[Key]:
    return list(table[["claim", "subject", "contrast", "metric"]].itertuples(index=False, name=None))


def _macro_of_sources(f: Figures) -> Iterator[Row]:
    """Macro = mean of the two sources, for every quantity that both tables hold."""
    names = {"conditional_upper_risk": "conditional_upper_bound"}
    for claim, subject, contrast, metric in f:
        own = names.get(metric, metric)
        parts = [f.get(("C9-source", subject, f"{source}_top_20", own)) for source in ("memops", "rhelm")]
        if claim in ("C9", "C9-controls", "C9-bounds") and contrast == _TOP and None not in parts:
            yield (
                claim,
                subject,
                contrast,
                metric,
                _mean(parts),
                "mean of the two sources (C9-source)",
            )
        if claim == "C9-bounds" and subject == _DIFFERENCE and contrast == _TOP and metric == "known_rate":
            sides = [
                np.mean([f["C9-source", arm, f"{source}_top_20", metric] for source in ("memops", "rhelm")])
                for arm in (_NARROW, _WIDE)
            ]
            yield claim, subject, contrast, metric, float(sides[0] - sides[1]), "difference of its arms (C9-source)"


def _differences_of_arms(f: Figures) -> Iterator[Row]:
    """Contrasts are the differences of their arms."""
    for claim, subject, contrast, metric in f:
        if subject != _DIFFERENCE or not contrast.startswith("top_") or claim not in ("C9", "C9-bounds"):
            continue
        for table in (claim, "C9-controls"):
            ends = [f.get((table, arm, contrast, metric)) for arm in (_NARROW, _WIDE)]
            if ends[0] is not None and ends[1] is not None:
                yield claim, subject, contrast, metric, ends[0] - ends[1], f"difference of its arms ({table})"


def _parts_of_loss(f: Figures) -> Iterator[Row]:
    """At cost 1 the infeasibility part is minus the change in feasibility, and the parts add up to the loss."""
    for depth in ("top_10", "top_20", "top_50", "top_100"):
        feasible, loss = (f["C9", _DIFFERENCE, depth, metric] for metric in ("feasible_rate", _LOSS))
        key = ("C9", _DIFFERENCE, depth)
        yield *key, "infeasibility_component", -feasible, "minus the difference in feasibility, at cost 1 (C9)"
        yield *key, "feasible_prefix_component", loss + feasible, "loss minus its infeasibility part (C9)"


def _same_in_two_tables(f: Figures) -> Iterator[Row]:
    """One quantity printed in two tables."""
    for arm in (_WIDE, _NARROW):
        for metric in ("evidence_recall", "feasible_rate"):
            for here, there in (("C9", "C5"), ("C5", "C9")):
                yield here, arm, "top_100", metric, f[there, arm, "top_100", metric], f"the same quantity in {there}"
    for metric in ("evidence_recall", "feasible_rate"):
        value = f["C9-controls", _WIDE, _TOP, metric]
        yield (
            "C9-controls",
            "global_post_filter_20",
            _TOP,
            metric,
            value,
            ("a filter after the top 20 removes no evidence from it: the same as global_dense (C9-controls)"),
        )
    yield "C9-typed", _NARROW, _TOP, "wrong_scope", 0.0, "0 by construction: the filter is the scope"


def _everything_is_searched(f: Figures) -> Iterator[Row]:
    """Work: arms that search all that is visible score as many; RHELM's part is counted by rebuilding it."""
    from companion.corpora.frozen import frozen_work

    work = frozen_work("rhelm")
    rhelm = float(work.loc[work["arm"] == _WIDE, "candidates_scored"].mean())
    counted = (_MEMOPS_MEMORIES + rhelm) / 2
    for claim, subject, contrast, metric in f:
        if metric != "candidates_scored" or "-" in subject:
            continue
        if subject == _WIDE:
            note = f"half of {_MEMOPS_MEMORIES:,} memories of MemOps plus {rhelm:,.1f} that RHELM's rebuild counts"
            yield claim, subject, contrast, metric, counted, note
        elif subject.startswith("global_"):
            yield claim, subject, contrast, metric, counted, "searches all that is visible: as many as global_dense"
        elif subject == _NARROW:
            other = {"C5": ("C9-controls", _TOP), "C9-controls": ("C5", "top_100")}[claim]
            value = f[other[0], subject, other[1], metric]
            yield claim, subject, contrast, metric, value, f"the same quantity in {other[0]}: depth costs no comparison"


def _rate_zero(f: Figures) -> Iterator[Row]:
    """Corruption at rate 0 = the uncorrupted arm."""
    curve = published.table("metadata_corruption").query("rate == 0").set_index("channel")
    note = "rate 0 of {} (metadata_corruption.csv)"
    for metric in _ENDS:
        namespace = float(curve[metric]["namespace_false_deny"])
        yield "C9", _NARROW, "top_100", metric, namespace, note.format("namespace_false_deny")
        both = float(curve[metric]["policy_false_deny"]) - f["C9", _NARROW, "top_100", metric]
        key = ("C10", f"policy_and_lifecycle-{_NARROW}", "top_100")
        yield *key, metric, both, note.format("policy_false_deny") + " minus namespace_dense (C9)"


def _scope_aside(f: Figures) -> Iterator[Row]:
    """Inside the namespace nothing is out of scope; and the 87 groups give the difference of losses without scope."""
    key, deltas = ("C9-scope", _NARROW, "top_20_without_scope"), headline.group_deltas()
    note = "nothing in the namespace is out of scope: as with all axes ({})"
    loss, upper = f["C9", _NARROW, _TOP, _LOSS], f["C9-bounds", _NARROW, _TOP, "conditional_upper_bound"]
    yield *key, "conditional_upper_risk", upper, note.format("C9-bounds")
    yield *key, "penalized_upper_risk", loss, note.format("C9")
    value = loss - headline.macro_mean(deltas, "loss_without_scope")
    yield (
        "C9-scope",
        _WIDE,
        key[2],
        "penalized_upper_risk",
        value,
        ("the namespace's loss minus the mean difference without scope over 87 groups (support_group_deltas.csv)"),
    )


def _within_a_source(f: Figures, queries: dict[Key, int]) -> list[Row]:
    """Within a source means of counts are whole numbers over counts, and the bounds and the loss hang together."""
    rows: list[Row] = []
    deltas = headline.group_deltas()
    for source in ("memops", "rhelm"):
        part = deltas[deltas["source"] == source]
        for arm, other, sign in ((_NARROW, _WIDE, 1), (_WIDE, _NARROW, -1)):
            key, away = ("C9-source", arm, f"{source}_top_20"), ("C9-source", other, f"{source}_top_20")
            got = {metric: f[*key, metric] for *k, metric in f if tuple(k) == key}
            n, count = queries[*key, "evidence_recall"], got["matched_query_count"]
            recall = f[*away, "evidence_recall"] + sign * headline.macro_mean(part, "evidence_recall")
            lower, upper, coverage = (
                got[m] for m in ("conditional_lower_bound", "conditional_upper_bound", "label_coverage")
            )
            given = {
                "matched_query_count": (got["feasible_rate"] * n, f"the feasible share of {n:,} queries"),
                "feasible_rate": (count / n, f"{count:,.0f} of {n:,} queries"),
                "evidence_recall": (
                    recall,
                    f"{other} and the mean difference of {len(part)} groups (support_group_deltas.csv)",
                ),
                _LOSS: (1 - got["feasible_rate"] * (1 - upper), "1 - F + F x upper bound"),
                "conditional_upper_bound": (lower + 1 - coverage, "width of the bounds = 1 - coverage"),
                "conditional_lower_bound": (upper - 1 + coverage, "width of the bounds = 1 - coverage"),
                "label_coverage": (1 - upper + lower, "1 - width of the bounds"),
            }
            for metric in ("any_known_violation", "known_violation_count"):
                whole = round(got[metric] * count)
                fits = abs(got[metric] * count - whole) < 1e-6
                given[metric] = (
                    whole / count if fits else np.nan,
                    f"a whole number ({whole:,}) over {count:,.0f} queries",
                )
            rows += [(*key, metric, float(value), note) for metric, (value, note) in given.items()]
    return rows


def _curve_points(f: Figures) -> Iterator[Row]:
    """C11: one point of the released curve gives a model's changes; split over strata, its precision and recall."""
    curves = published.table("verifier_operating_curve")
    strata = published.table("verification_strata").query("axis == 'admissibility' and violations > 0")
    keep = curves[curves["retained_fraction"] == 1].iloc[0]
    for verifier, curve in curves.groupby("verifier", sort=False):
        change = (curve[list(_ENDS)] - keep[list(_ENDS)].astype(float)).assign(threshold=curve["threshold"])
        told = {metric: f["C11", str(verifier), "minus_namespace_dense_top_20", metric] for metric in _ENDS}
        for metric in _ENDS:
            others = [name for name in _ENDS if name != metric]
            fits = np.isclose(change[others], [told[name] for name in others], rtol=0, atol=1e-12).all(axis=1)
            value = float(change[metric].to_numpy()[fits][0]) if fits.any() else np.nan
            yield (
                "C11",
                str(verifier),
                "minus_namespace_dense_top_20",
                metric,
                value,
                ("the point of verifier_operating_curve.csv where the other two changes are the published ones"),
            )
        violations = strata.loc[strata["verifier"] == verifier, "violations"].astype(int).tolist()
        last = curve[np.isclose(change["evidence_recall"], told["evidence_recall"], rtol=0, atol=1e-12)]
        yield from _stratum_split(f, str(verifier), violations, last.iloc[-1] if len(last) else None)


def _stratum_split(f: Figures, verifier: str, violations: list[int], point: pd.Series | None) -> Iterator[Row]:
    """Precision and recall as means over strata: whole numbers that add up to the pooled counts of the curve."""
    key, (a, b) = ("C11", verifier, "selected_operating_point"), violations
    if point is None:
        for metric in ("violation_recall", "violation_precision"):
            yield *key, metric, np.nan, "no point of the released curve has the published change in recall"
        return
    found = round(point["violation_recall"] * (a + b))
    dropped = round(found / point["violation_precision"])
    splits = {(x, found - x): (x / a + (found - x) / b) / 2 for x in range(found + 1)}
    best = min(splits, key=lambda split: abs(splits[split] - f[*key, "violation_recall"]))
    note = f"mean over strata of {best[0]} of {a} and {best[1]} of {b}: of the splits of {found}, the nearest"
    yield *key, "violation_recall", splits[best], note
    shares = {
        (x, y, dropped - x - y): (best[0] / x + best[1] / y) / (2 if x + y == dropped else 3)
        for x in range(max(best[0], 1), dropped + 1)
        for y in range(max(best[1], 1), dropped - x + 1)
    }
    cut = min(shares, key=lambda split: abs(shares[split] - f[*key, "violation_precision"]))
    note = f"mean over strata of {best[0]} of {cut[0]}, {best[1]} of {cut[1]} and 0 of {cut[2]}, adding up to {dropped}"
    yield *key, "violation_precision", shares[cut], note


def _whole_tables(f: Figures) -> Iterator[Row]:
    """Agreement of two-answer axes: one whole-number table gives both figures at once."""
    tables = agreement.published_tables()
    for axis in agreement.TWO_ANSWERS:
        table = tables.get(axis)
        note = "no two-answer table of whole numbers gives both figures"
        if table is not None:
            note = (
                f"one table gives both figures: {table.both_yes} both yes, {table.split} split, {table.both_no} both no"
            )
        key = ("agreement", axis, "two_annotators")
        yield *key, "exact_agreement", table.exact_agreement if table else np.nan, note
        yield *key, "krippendorff_alpha", table.alpha if table else np.nan, note


def _one_grid_point(f: Figures) -> Iterator[Row]:
    """Two channels are released at one rate: it can contradict a bracket, but not give one."""
    curve = published.table("metadata_corruption").set_index(["channel", "rate"])
    reference = [f["C9", _WIDE, "top_100", metric] for metric in ("feasible_rate", _LOSS)]
    for channel, rate, metric, good in (
        ("namespace_false_allow", 0.5, "last_dominating_rate", True),
        ("namespace_swap", 0.2, "first_non_dominating_rate", False),
    ):
        point = curve.loc[(channel, rate), :]
        holds = bool(point["feasible_rate"] >= reference[0] and point[_LOSS] <= reference[1])
        note = f"the one released point (rate {rate:g}) is {'no worse' if holds else 'worse'} than global_dense"
        yield "C10-corruption", channel, "top_100", metric, rate if holds == good else np.nan, note


def _macro_of_readers(f: Figures) -> Iterator[Row]:
    """C13 macro = mean of its sources (C13-by-source)."""
    for claim, subject, contrast, metric in f:
        parts = [f.get(("C13-by-source", subject, f"{contrast}:{source}", metric)) for source in ("rhelm", "memops")]
        if claim == "C13" and None not in parts:
            yield (
                claim,
                subject,
                contrast,
                metric,
                _mean(parts),
                "mean of the two sources (C13-by-source)",
            )
