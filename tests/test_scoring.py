"""Scoring against the plain reference, every completion of unresolved labels, and worked edge cases."""

import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from companion import scoring, tables
from companion.errors import InputError

sys.path.insert(0, str(Path(__file__).parents[1] / "book"))  # the book prints the rule

import reference_scoring as plain

TERNARY = [True, False, None]
STRANGE_IDS = ["a,b", 'quo"te', "new\nline", "😀", " space ", "007", "NA", "null", "?", "ä\u0301"]


def build(records, routes, work=None):
    """Make validated Records of the plain form used by the reference."""
    memories = pd.DataFrame({"memory_id": list(records["memories"]), "namespace": list(records["memories"].values())})
    queries = pd.DataFrame({"query_id": list(records["queries"]), "namespace": list(records["queries"].values())})
    if "sources" in records:
        queries["source"] = [records["sources"][q] for q in queries["query_id"]]
    rows = []
    for (query, memory), label in records["labels"].items():
        axes = {a: label[a] for a in ("relevant", *plain.AXES) if a in label}
        rows += [
            {"query_id": query, "memory_id": memory, "anchor_id": anchor, **axes}
            for anchor in label.get("anchors") or [None]
        ]
    columns = ["query_id", "memory_id", "relevant", *plain.AXES, "anchor_id"]
    columns = [c for c in columns if c in {k for r in rows for k in r} or c in ("query_id", "memory_id", "anchor_id")]
    labels = pd.DataFrame(rows, columns=columns)
    rankings = pd.DataFrame(
        [
            {"arm": arm, "query_id": q, "rank": i + 1, "memory_id": m}
            for (arm, q), route in routes.items()
            for i, m in enumerate(route)
        ],
        columns=["arm", "query_id", "rank", "memory_id"],
    )
    valid = {
        name: tables.validate(frame, name)
        for name, frame in {
            "memories": memories,
            "queries": queries,
            "labels": labels,
            "rankings": rankings,
        }.items()
    }
    if work is not None:
        valid["work"] = tables.validate(work, "work")
    return tables.Records(**valid, defaults=records["defaults"]).check()


@st.composite
def small_records(draw):
    memories = STRANGE_IDS[: draw(st.integers(1, 7))]
    queries = [f"q{i}" for i in range(draw(st.integers(1, 3)))]
    namespace = st.sampled_from(["A", "B"])
    stated = [a for a in ("relevant", *plain.AXES) if draw(st.integers(0, 9)) > 0]
    records = {
        "memories": {m: draw(namespace) for m in memories},
        "queries": {q: draw(namespace) for q in queries},
        "defaults": draw(st.sampled_from([{}, {"policy": True, "lifecycle": True}, {"policy": True}])),
        "labels": {},
    }
    for q in queries:
        for m in memories:
            if draw(st.booleans()):
                # Weighted towards 1, or hardly any query would have an anchor.
                label = {a: draw(st.sampled_from([True, True, *TERNARY])) for a in stated}
                label["anchors"] = draw(st.sampled_from([None, None, ["x"], ["y"], ["x", "y"], [m]]))
                records["labels"][q, m] = label
    routes = {}
    for arm in ["one", "two"][: draw(st.integers(1, 2))]:
        for q in queries:
            order = draw(st.permutations(memories))
            routes[arm, q] = order[: draw(st.integers(0, len(memories)))]
    if not any(routes.values()):
        routes["one", queries[0]] = memories[:1]
    return records, routes


@given(
    small_records(),
    st.sampled_from(["0", "1", ".5", ".7", ".8", "1/3", "2/3"]),
    st.sampled_from([None, 1, 2, 5]),
    st.sampled_from(["admissibility", "non_usable"]),
    st.lists(st.sampled_from(plain.AXES), min_size=1, unique=True),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_equals_the_plain_reference(data, tau, top_k, family, axes, cost, asked):
    records, routes = data
    arms = list(dict.fromkeys(arm for (arm, _), route in routes.items() if route))
    work = pd.DataFrame([(a, q, 1) for a in arms for q in records["queries"] if asked or routes.get((a, q))])
    table = scoring.score_routes(
        build(records, routes, work.set_axis(["arm", "query_id", "candidates_scored"], axis=1)),
        axes=axes, family=family, target_recall=tau, top_k=top_k, infeasibility_cost=cost,
    )  # fmt: skip
    assert list(zip(table["arm"], table["query_id"], strict=True)) == list(zip(work[0], work[1], strict=True))
    for row in table.to_dict("records"):
        route = routes.get((row["arm"], row["query_id"]), [])
        expected = plain.score(
            records, route, row["query_id"], axes=axes, family=family, tau=Fraction(tau), top_k=top_k, cost=cost
        )
        for name, value in expected.items():
            got = None if row[name] is pd.NA else row[name]
            assert plain.close(got, value), (name, got, value)


@given(st.lists(st.fixed_dictionaries({a: st.sampled_from(TERNARY) for a in plain.AXES}), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_bounds_are_sharp_over_every_completion(labels):
    """The last item is an anchor, so that the matched prefix is the whole route."""
    anchor = dict.fromkeys(("relevant", *plain.AXES), True)
    route = [f"m{i}" for i in range(len(labels) + 1)]
    records = {
        "memories": dict.fromkeys(route, "A"),
        "queries": {"q": "A"},
        "defaults": {},
        "labels": {("q", m): {"relevant": False, **label} for m, label in zip(route, labels, strict=False)},
    }
    records["labels"]["q", route[-1]] = anchor
    row = scoring.score_routes(build(records, {("arm", "q"): route})).iloc[0]
    rates = list(plain.completed_rates([*labels, anchor]))
    assert row["matched_prefix"] == len(route)
    assert row["lower_bound"] == pytest.approx(min(rates), abs=1e-15)
    assert row["upper_bound"] == pytest.approx(max(rates), abs=1e-15)
    assert row["upper_bound"] - row["lower_bound"] == pytest.approx(1 - row["label_coverage"], abs=1e-12)


def one_route(labels, route, **options):
    records = {
        "memories": {m: "A" for m in route} | {m: "A" for m in labels},
        "queries": {"q": "A"},
        "defaults": {},
        "labels": {("q", m): dict(label) for m, label in labels.items()},
    }
    return scoring.score_routes(build(records, {("arm", "q"): route}), **options).iloc[0]


USABLE = dict.fromkeys(("relevant", *plain.AXES), True)
FORBIDDEN = {"relevant": True, "scope": True, "policy": False, "lifecycle": True}


@pytest.mark.parametrize(
    ("tau", "anchors", "needed"),
    [
        (0.7, 10, 7),
        (0.1, 10, 1),
        (0.3, 10, 3),
        (0.6, 5, 3),
        (0.8, 5, 4),
        (0.8, 1, 1),
        (0, 5, 0),
        (1, 7, 7),
        (0.55, 20, 11),
        (0.07, 100, 7),
        (0.29, 100, 29),
        (0.57, 100, 57),
        ("1/3", 3, 1),
        ("2/3", 3, 2),
        (0.81, 5, 5),
    ],
)
def test_needed_count_is_exact(tau, anchors, needed):
    assert scoring.evidence_needed(tau, np.array([anchors])).tolist() == [needed]


@given(st.integers(0, 1000), st.integers(0, 10_000))
def test_needed_count_is_the_ceiling(thousandths, anchors):
    needed = int(scoring.evidence_needed(thousandths / 1000, np.array([anchors]))[0])
    assert (needed - 1) * 1000 < thousandths * anchors <= needed * 1000


def test_seven_of_ten_anchors_end_the_prefix():
    labels = {f"m{i}": USABLE for i in range(10)}
    row = one_route(labels, list(labels), target_recall=0.7)
    assert row["matched_prefix"] == 7
    assert row["evidence_recall"] == 1.0


def test_a_query_without_anchors_is_left_out_and_never_scored_zero():
    row = one_route({"a": FORBIDDEN}, ["a"])
    assert row["anchors"] == 0
    assert row.drop(["arm", "query_id", "source", "group", "stratum", "anchors"]).isna().all()


def test_a_missing_relevance_makes_no_anchor():
    row = one_route({"a": {**USABLE, "relevant": None}}, ["a"])
    assert row["anchors"] == 0


def test_target_zero_exposes_nothing():
    row = one_route({"a": USABLE, "b": FORBIDDEN}, ["b"], target_recall=0)
    assert (row["feasible"], row["matched_prefix"], row["loss"]) == (1, 0, 0.0)
    assert (row["lower_bound"], row["upper_bound"], row["label_coverage"]) == (0.0, 0.0, 1.0)
    assert pd.isna(row["known_rate"])


def test_target_one_needs_every_anchor():
    labels = {"a": USABLE, "b": FORBIDDEN, "c": USABLE}
    assert one_route(labels, ["a", "b", "c"], target_recall=1)["matched_prefix"] == 3
    missed = one_route(labels, ["a", "b"], target_recall=1)
    assert (missed["feasible"], missed["loss"], missed["evidence_recall"]) == (0, 1.0, 0.5)
    assert pd.isna(missed["upper_bound"])


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (None, {}),
        ([("arm", "q", 3, None)], {}),
        ([("arm", "r", 3, None)], {"r": (0.0, 0, 0.25)}),
        ([("arm", "r", None, None)], {"r": (0.0, 0, 0.25)}),
        ([("arm", "r", None, "done")], {"r": (0.0, 0, 0.25)}),
        ([("arm", "r", None, "failed")], {}),
        ([("arm", "q", None, "failed"), ("arm", "r", 2, "done")], {"r": (0.0, 0, 0.25), "q": None}),
    ],
)
def test_a_route_is_empty_only_where_work_says_that_the_arm_was_asked(work, expected):
    records = {
        "memories": {"a": "A"},
        "queries": {"q": "A", "r": "A"},
        "defaults": {},
        "labels": {("q", "a"): USABLE, ("r", "a"): USABLE},
    }
    if work is not None:
        work = pd.DataFrame(work, columns=["arm", "query_id", "candidates_scored", "status"])
    table = scoring.score_routes(build(records, {("arm", "q"): ["a"]}, work), infeasibility_cost=0.25)
    found = {row.query_id: (row.evidence_recall, row.feasible, row.loss) for row in table.itertuples()}
    assert found == {key: value for key, value in ({"q": (1.0, 1, 0.0)} | expected).items() if value}


def test_records_need_no_check_before_they_are_scored():
    """Frames as a user builds them, without optional columns, in any order of columns."""
    raw = tables.Records(
        memories=pd.DataFrame({"namespace": ["A", "B"], "memory_id": ["a", "b"]}),
        queries=pd.DataFrame({"query_id": ["q"], "namespace": ["A"]}),
        labels=pd.DataFrame(
            {"query_id": ["q"], "memory_id": ["a"], "relevant": [1], "policy": ["1"], "lifecycle": [True]}
        ),
        rankings=pd.DataFrame({"arm": "s", "query_id": "q", "rank": [2, 1], "memory_id": ["a", "b"]}),
    )
    row = scoring.score_routes(raw).iloc[0]
    assert (row["matched_prefix"], row["lower_bound"], row["evidence_recall"]) == (2, 0.5, 1.0)
    assert scoring.anchors_of(raw)["memory_id"].tolist() == ["a"]
    assert scoring.label_ranked(raw)["scope"].tolist() == [True, False]
    assert scoring.profile(raw, 1)[["items", "lower_bound"]].values.tolist() == [[1, 1.0]]
    with pytest.raises(InputError, match="rank"):
        scoring.score_routes(tables.Records(raw.memories, raw.queries, raw.labels, raw.rankings.assign(rank=[2, 3])))


@pytest.mark.parametrize(
    ("shared", "namespace", "stated", "scope"),
    [(1, "B", None, True), (1, None, None, True), (0, "B", None, False), (None, "B", None, False), (1, "A", None, True),
     ("?", None, None, None), (1, "B", 0, False)],
)  # fmt: skip
def test_a_shared_memory_is_in_scope_of_whoever_asks(shared, namespace, stated, scope):
    memories = pd.DataFrame({"memory_id": ["m"], "namespace": [namespace], "shared": [shared]}, dtype=object)
    labels = pd.DataFrame({"query_id": ["q"], "memory_id": ["m"]} | ({} if stated is None else {"scope": [stated]}))
    built = tables.Records(
        memories, pd.DataFrame({"query_id": ["q"], "namespace": ["A"]}), labels,
        pd.DataFrame({"arm": ["s"], "query_id": ["q"], "rank": [1], "memory_id": ["m"]}),
    )  # fmt: skip
    found = scoring.label_ranked(built)["scope"].iloc[0]
    assert found is pd.NA if scope is None else bool(found) == scope


def test_requests_that_different_arms_served_are_each_scored_on_their_own():
    """Two lines of an A/B log: v1 answers a, v2 answers b, and both are right."""
    records = {
        "memories": {"a": "A", "b": "A"},
        "queries": {"qa": "A", "qb": "A", "nobody": "A"},
        "defaults": {},
        "labels": {("qa", "a"): USABLE, ("qb", "b"): USABLE, ("nobody", "b"): USABLE},
    }
    table = scoring.score_routes(build(records, {("v1", "qa"): ["a"], ("v2", "qb"): ["b"]}))
    summary = scoring.summarise(table, reference="v1")
    macro = summary.arms[summary.arms["source"] == "macro"].set_index("arm")
    for arm in ("v1", "v2"):
        assert macro.loc[arm, ["queries", "evaluable", "evidence_recall", "loss"]].tolist() == [1, 1, 1.0, 0.0]
    assert summary.settings["not_served"] == {"v1": 2, "v2": 2}
    assert summary.contrast("v2", "loss")["estimate"] == 0.0


def test_a_prefix_with_nothing_known_has_an_undefined_rate_and_the_widest_bounds():
    """Anchors are known, so scoring a subset of axes is the way to a fully unresolved status: none here."""
    records = {
        "memories": {"a": "A", "b": "A"},
        "queries": {"q": "A"},
        "defaults": {},
        "labels": {("q", "a"): USABLE},
    }
    anchors = pd.DataFrame({"query_id": ["q"], "memory_id": ["b"], "anchor_id": [None]}).astype("str")
    anchors["anchor_id"] = pd.Series([None], dtype="str")
    row = scoring.score_routes(build(records, {("arm", "q"): ["b"]}), anchors=anchors).iloc[0]
    assert (row["lower_bound"], row["upper_bound"], row["label_coverage"]) == (0.0, 1.0, 0.0)
    assert pd.isna(row["known_rate"])


def test_interchangeable_anchors_count_once_and_first_hit_ends_the_prefix():
    labels = {"a": USABLE | {"anchors": ["x"]}, "b": USABLE | {"anchors": ["x"]}, "c": USABLE | {"anchors": ["y"]}}
    row = one_route(labels, ["b", "a", "c"], target_recall=0.5)
    assert (row["anchors"], row["matched_prefix"], row["evidence_recall"]) == (2, 1, 1.0)


def test_scoring_without_scope_leaves_the_other_axes():
    labels = {"w": {"relevant": None, "scope": False, "policy": True, "lifecycle": True}, "a": USABLE}
    full = one_route(labels, ["w", "a"])
    rest = one_route(labels, ["w", "a"], axes=["policy", "lifecycle"])
    assert (full["lower_bound"], rest["lower_bound"]) == (0.5, 0.0)
    assert full["wrong_scope"] == rest["wrong_scope"] == 0.5


def test_an_axis_column_that_is_absent_differs_from_an_empty_cell():
    records = {
        "memories": {"a": "A", "b": "B"},
        "queries": {"q": "A"},
        "defaults": {"policy": True, "lifecycle": True},
        "labels": {("q", "a"): {"relevant": True}},
    }
    assert scoring.score_routes(build(records, {("arm", "q"): ["a"]})).iloc[0]["anchors"] == 1
    records["labels"]["q", "a"] = {"relevant": True, "scope": None}
    assert scoring.score_routes(build(records, {("arm", "q"): ["a"]})).iloc[0]["anchors"] == 0


def test_unknown_namespace_leaves_scope_unresolved():
    records = {
        "memories": {"a": "A", "b": "B"},
        "queries": {"q": "A"},
        "defaults": {},
        "labels": {("q", "a"): USABLE},
    }
    built = build(records, {("arm", "q"): ["b", "a"]})
    labelled = scoring.label_ranked(built)
    assert labelled["scope"].tolist() == [False, True]
    lost = built.memories.assign(namespace=pd.Series([None, None], dtype="str"))
    labelled = scoring.label_ranked(tables.Records(lost, built.queries, built.labels, built.rankings))
    assert labelled["scope"].isna().tolist() == [True, False]  # the listed label still stands


def test_hidden_labels_keep_recall_and_prefix():
    labels = {"w": FORBIDDEN, "a": USABLE}
    records = {
        "memories": dict.fromkeys(labels, "A"),
        "queries": {"q": "A"},
        "defaults": {},
        "labels": {("q", m): label for m, label in labels.items()},
    }
    built = build(records, {("arm", "q"): ["w", "a"]})
    hidden = built.labels.assign(policy=pd.array([None, None], dtype="boolean"))
    after = scoring.score_routes(
        tables.Records(built.memories, built.queries, hidden, built.rankings), anchors=scoring.anchors_of(built)
    ).iloc[0]
    before = scoring.score_routes(built).iloc[0]
    assert after["evidence_recall"] == before["evidence_recall"] == 1.0
    assert after["matched_prefix"] == before["matched_prefix"] == 2
    assert (before["lower_bound"], before["upper_bound"]) == (0.5, 0.5)
    assert (after["lower_bound"], after["upper_bound"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_recall": 1.01}, "target recall 1.01"),
        ({"target_recall": -0.1}, "target recall"),
        ({"target_recall": "most"}, "target recall 'most'"),
        ({"target_recall": float("nan")}, "target recall"),
        ({"top_k": 0}, "top_k 0"),
        ({"infeasibility_cost": float("inf")}, "infeasibility cost"),
        ({"infeasibility_cost": -1}, "infeasibility cost"),
        ({"arms": ["none"]}, "arm 'none'"),
        ({"axes": ["scop"]}, "axes scop"),
        ({"family": "usable"}, "family usable"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        one_route({"a": USABLE}, ["a"], **options)


@pytest.mark.parametrize(
    ("ranks", "memories", "message"),
    [
        ([1, 3], ["a", "b"], "rank 3 where 2"),
        ([1, 1], ["a", "b"], "rank 1 where 2"),
        ([2, 3], ["a", "b"], "rank 2 where 1"),
        ([0, 1], ["a", "b"], "rank 0 where 1"),
        ([1, 2], ["a", "a"], "stands twice"),
        ([1, 2], ["a", "zz"], "unknown id 'zz'"),
    ],
)
def test_broken_routes_are_refused_by_name(ranks, memories, message):
    records = {
        "memories": {"a": "A", "b": "A"},
        "queries": {"q": "A"},
        "defaults": {},
        "labels": {("q", "a"): USABLE},
    }
    built = build(records, {("arm", "q"): ["a"]})
    rankings = pd.DataFrame({"arm": "arm", "query_id": "q", "rank": ranks, "memory_id": memories})
    rankings = rankings.assign(score=np.nan, arm=rankings["arm"].astype("str")).astype(
        {"query_id": "str", "memory_id": "str"}
    )
    broken = tables.Records(built.memories, built.queries, built.labels, rankings[list(built.rankings)])
    with pytest.raises(InputError, match=message):
        scoring.score_routes(broken)


def test_row_order_does_not_matter():
    records = {
        "memories": {f"m{i}": "AB"[i % 2] for i in range(6)},
        "queries": {"q": "A", "r": "B"},
        "defaults": {"policy": True, "lifecycle": True},
        "labels": {
            ("q", "m0"): {"relevant": True},
            ("r", "m1"): {"relevant": True},
            ("r", "m3"): {"relevant": True},
        },
    }
    built = build(records, {(a, q): list(records["memories"]) for a in "xy" for q in "qr"})
    shuffled = tables.Records(
        built.memories.sample(frac=1, random_state=1),
        built.queries,
        built.labels.sample(frac=1, random_state=2),
        built.rankings.sample(frac=1, random_state=5),
        defaults=built.defaults,
    )
    left = scoring.score_routes(built, arms=["x", "y"])
    pd.testing.assert_frame_equal(left, scoring.score_routes(shuffled, arms=["x", "y"]))


def test_a_million_ranked_rows():
    rng = np.random.default_rng(3)
    queries, depth, memories = 5_000, 100, 2_000
    ids = pd.Series([f"m{i}" for i in range(memories)], dtype="str")
    records = tables.Records(
        tables.validate(pd.DataFrame({"memory_id": ids, "namespace": rng.choice(list("ABCD"), memories)}), "memories"),
        tables.validate(
            pd.DataFrame(
                {"query_id": [f"q{i}" for i in range(queries)], "namespace": rng.choice(list("ABCD"), queries)}
            ),
            "queries",
        ),
        tables.validate(
            pd.DataFrame(
                {
                    "query_id": [f"q{i}" for i in range(queries)],
                    "memory_id": ids[rng.integers(0, memories, queries)],
                    "relevant": True,
                    "scope": True,
                    "policy": True,
                    "lifecycle": True,
                }
            ).reset_index(drop=True),
            "labels",
        ),
        pd.DataFrame(
            {
                "arm": np.repeat(["x", "y"], queries * depth),
                "query_id": np.tile(np.repeat([f"q{i}" for i in range(queries)], depth), 2),
                "rank": np.tile(np.arange(1, depth + 1), 2 * queries),
                "memory_id": ids.to_numpy()[
                    np.concatenate([rng.permutation(memories)[:depth] for _ in range(2 * queries)])
                ],
            }
        ),
        defaults={"policy": True, "lifecycle": True},
    )
    table = scoring.score_routes(records)
    assert len(table) == 2 * queries
    assert (table["anchors"] == 1).all()
    sample = records.rankings.groupby(["arm", "query_id"], sort=False).head(depth)
    hit = sample.merge(records.labels[["query_id", "memory_id"]], on=["query_id", "memory_id"])
    assert table["feasible"].sum() == len(hit)
    merged = table[table["feasible"] == 1].merge(hit, on=["arm", "query_id"])
    assert (merged["matched_prefix"] == merged["rank"]).all()


def test_work_is_joined_and_missing_where_not_counted():
    records = {
        "memories": {"a": "A"},
        "queries": {"q": "A", "r": "A"},
        "defaults": {},
        "labels": {("q", "a"): USABLE, ("r", "a"): USABLE},
    }
    work = pd.DataFrame({"arm": ["arm"], "query_id": ["r"], "candidates_scored": [17]})
    table = scoring.score_routes(build(records, {("arm", "q"): ["a"], ("arm", "r"): ["a"]}, work))
    assert table["candidates_scored"].isna().tolist() == [True, False]
    assert table["candidates_scored"].iloc[1] == 17
