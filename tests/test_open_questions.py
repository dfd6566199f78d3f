"""Guessed namespaces and graph selectors: against networkx, brute force, and records that are really inserted."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_retrieval import TableEncoder, random_corpus
from scipy import sparse

from companion.corpora import get
from companion.corpora.base import EVERYTHING, Corpus
from companion.errors import InputError
from companion.paths import data_dir
from companion.retrieval import known_arms, rank
from companion.retrieval.arms import graph, inferred
from companion.retrieval.arms.graph import Writes, walk
from companion.retrieval.engine import Search
from companion.stages import open_questions
from companion.stages.open_questions import graph_selectors, inferred_namespaces, kept

KEPT = sorted(path.parent.name for path in (data_dir() / "open_questions").glob("*/meta.json"))


def order(scores):
    return np.argsort(-np.round(scores, 12), kind="stable").tolist()


def drawn_graph(rng, nodes):
    weights = np.triu(np.round(rng.random((nodes, nodes)), 3) * (rng.random((nodes, nodes)) < 0.5), 1)
    return weights + weights.T


def restart_of(rng, nodes, inside):
    mass = rng.random(nodes) * (rng.random(nodes) < 0.6) * inside
    return mass / mass.sum() if mass.sum() else mass


# --- The walk ----------------------------------------------------------------------------------------------------


def by_networkx(weights, restart, inside, spokes=(), pairs=()):
    """Build the subgraph with the written edges node by node, and let networkx walk on it."""
    net = nx.DiGraph()
    members = np.flatnonzero(inside).tolist()
    net.add_nodes_from([*members, "outsider"])
    edges = [(i, j, float(weights[i, j])) for i in members for j in members if i < j and weights[i, j] > 0]
    edges += [("outsider", int(v), 1.0) for v in spokes if v >= 0 and inside[v]]
    edges += [(int(a), int(b), 1.0) for a, b in pairs if min(a, b) >= 0 and a != b and inside[a] and inside[b]]
    for a, b, weight in edges:
        for start, stop in ((a, b), (b, a)):
            old = net.get_edge_data(start, stop, {"weight": 0.0})["weight"]
            net.add_edge(start, stop, weight=old + weight)
    start = {node: restart[node] for node in members if restart[node] > 0}
    found = nx.pagerank(net, alpha=graph.DAMPING, personalization=start, dangling=start, tol=1e-14, max_iter=500)
    return np.array([found.get(node, 0.0) if inside[node] else 0.0 for node in range(len(inside))])


@pytest.mark.parametrize("seed", range(12))
def test_walks_equal_networkx_with_and_without_written_edges(seed):
    rng = np.random.default_rng(seed)
    nodes, queries = int(rng.integers(3, 14)), 4
    weights = drawn_graph(rng, nodes)
    inside = rng.random((nodes, queries)) < 0.8
    inside[0] = True
    restart = np.column_stack([restart_of(rng, nodes, inside[:, q]) for q in range(queries)])
    restart[0, restart.sum(axis=0) == 0] = 1
    spokes = np.array([rng.permutation(nodes)[:3] for _ in range(queries)])
    spokes[0, 0] = -1
    pairs = rng.integers(-1, nodes, (queries, 3, 2))
    whole = sparse.csr_array(weights)
    for used_spokes, used_pairs in ((None, None), (spokes, None), (None, pairs), (spokes, pairs)):
        found = walk(whole, restart, inside, Writes(used_spokes, used_pairs))
        for q in range(queries):
            expected = by_networkx(
                weights, restart[:, q], inside[:, q],
                () if used_spokes is None else used_spokes[q], () if used_pairs is None else used_pairs[q],
            )  # fmt: skip
            np.testing.assert_allclose(found[:, q], expected, atol=2e-9)


@settings(max_examples=500, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), own=st.integers(1, 8), foreign=st.integers(0, 8))
def test_a_walk_on_the_own_nodes_is_independent_of_all_foreign_ones(seed, own, foreign):
    """Whatever an outsider writes (nodes, edges among them, edges to the victim's), exactly the same numbers."""
    rng = np.random.default_rng(seed)
    mine = drawn_graph(rng, own)
    restart = restart_of(rng, own, np.ones(own))
    alone = walk(sparse.csr_array(mine), restart[:, None], np.ones((own, 1), bool))[:, 0]
    whole = drawn_graph(rng, own + foreign) * 7
    whole[:own, :own] = mine
    inside = (np.arange(own + foreign) < own)[:, None]
    padded = np.concatenate([restart, np.zeros(foreign)])[:, None]
    together = walk(sparse.csr_array(whole), padded, inside)[:, 0]
    assert together[:own].tolist() == alone.tolist()
    assert not together[own:].any()


def small_corpus(rng, own, foreign):
    """One question of n0 and its memories, and some of others: few words, so that everything is near everything."""
    texts = [
        f"Anna met Bo{rng.integers(4)} in room {rng.integers(9)} about word{rng.integers(9)}"
        for _ in range(own + foreign)
    ]
    memories = pd.DataFrame(
        {
            "memory_id": [f"v{n}" for n in range(own)] + [f"x{n}" for n in range(foreign)],
            "namespace": ["n0"] * own + [f"n{1 + n % 2}" for n in range(foreign)],
            "order": rng.integers(0, 5, own + foreign).astype(float),
            "text": texts,
        }
    )
    queries = pd.DataFrame({"query_id": ["q"], "namespace": ["n0"], "text": ["Anna in room 3"]})
    labels = pd.DataFrame({"query_id": pd.Series([], dtype="str"), "memory_id": pd.Series([], dtype="str")})
    return Corpus("x", "x", memories, queries, labels)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), own=st.integers(1, 14), foreign=st.integers(1, 14))
def test_the_prefiltered_arm_is_independent_of_foreign_records(seed, own, foreign):
    """Foreign texts change neighbours, statistics of names, and ranks of everything; not the list of the namespace."""
    corpus = small_corpus(np.random.default_rng(seed), own, foreign)
    alone = replace(corpus, memories=corpus.memories.iloc[:own])
    encoder = TableEncoder()
    both = [rank(one, ["graph_prefilter"], 20, encoder)[0] for one in (alone, corpus)]
    pd.testing.assert_frame_equal(*both)


def test_the_postfiltered_arm_is_not():
    moved = 0
    for seed in range(20):
        corpus = small_corpus(np.random.default_rng(seed), 12, 12)
        alone = replace(corpus, memories=corpus.memories.iloc[:12])
        lists = [
            rank(one, ["graph_postfilter"], 20, TableEncoder())[0]["memory_id"].tolist() for one in (alone, corpus)
        ]
        assert all(name.startswith("v") for name in lists[1])
        moved += lists[0] != lists[1]
    assert moved > 10


def test_the_smallest_example_has_two_memories_and_one_edge():
    weights, inside = sparse.csr_array(np.array([[0.0, 1.0], [1.0, 0.0]])), np.ones((2, 1), bool)
    restart = np.array([[0.6], [0.4]])
    before = walk(weights, restart, inside)[:, 0]
    after = walk(weights, restart, inside, Writes(spokes=np.array([[1]])))[:, 0]
    np.testing.assert_allclose(before, [0.8 / 1.5, 0.7 / 1.5], atol=1e-9)  # x = .3 + y / 2, y = .2 + x / 2
    assert (order(before), order(after)) == ([0, 1], [1, 0])
    # Fewer cannot: one memory has one order.


def test_graph_arms_return_what_they_may():
    for limits in ("same", "open", "free"):
        corpus, encoder = random_corpus(3, limits)
        rankings, work = rank(corpus, ["graph_prefilter", "graph_postfilter", "graph_global"], 7, encoder)
        rows = rankings.merge(corpus.queries, on="query_id").merge(corpus.memories, on="memory_id", suffixes=("", "_m"))
        own = rows["namespace"] == rows["namespace_m"]
        limit = rows["visible_own"].where(own, rows["visible_foreign"])
        assert (rows["visible_key"] < limit).all()
        assert own[rows["arm"] != "graph_global"].all()
        assert not own[rows["arm"] == "graph_global"].all()
        assert (rows.groupby(["arm", "query_id"])["rank"].max() <= 7).all()
        plain = rank(corpus, ["namespace_dense", "global_dense"], 7, encoder)[1]
        sizes = plain.set_index(["arm", "query_id"])["candidates_scored"]
        mine = work.set_index(["arm", "query_id"])["candidates_scored"]
        assert (mine["graph_prefilter"] == sizes["namespace_dense"]).all()
        assert (mine["graph_postfilter"] == sizes["global_dense"]).all()


def test_time_ties_a_memory_to_the_next_of_its_namespace():
    corpus, encoder = random_corpus(5)
    search = Search(corpus, encoder)
    weights = graph.build(search, within=True).toarray()
    space = search.layout.space
    assert np.array_equal(weights, weights.T)
    assert (weights.diagonal() == 0).all()
    assert not weights[space[:, None] != space[None, :]].any()
    for members in search.layout.members[:-1]:
        assert (weights[members[:-1], members[1:]] >= graph.NEXT).all()


# --- What an outsider can do ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def attacked():
    corpus, encoder = random_corpus(8, "open", memories=90, queries=14, spaces=3)
    labels = corpus.labels[corpus.labels["relevant"].fillna(False)]
    search = Search(replace(corpus, labels=labels), encoder, 5)
    return search, graph_selectors.graph_study(search, budgets=(1, 20))


def test_a_filter_before_the_walk_closes_the_channel_and_one_after_it_does_not(attacked):
    _, table = attacked
    moved = table.groupby(["selector", "filter", "writes", "how", "budget"])[["displaced", "entered"]].mean()
    assert not moved.loc[("graph", "before")].to_numpy().any()
    assert moved.loc["graph", "after", "own node", "greedy", 20]["displaced"] > 0
    assert moved.loc["graph", "before, nodes only", "between records", "greedy", 20]["displaced"] > 0.02
    assert (table.loc[table["filter"] != "never", "foreign_share"].dropna() == 0).all()
    shown = table[table["selector"].eq("graph") & table["filter"].eq("after") & table["how"].eq("greedy")]
    shares = shown.groupby(["writes", "budget"])["target_shown"].mean()
    assert shares["between records", 20] > 0.2  # nobody is shown the first target before


def test_content_shortens_a_list_and_never_reorders_it(attacked):
    _, table = attacked
    assert not table.loc[table["selector"] == "dense", "entered"].any()
    assert table.loc[table["selector"].eq("graph") & table["filter"].eq("after"), "entered"].max() >= 1


@pytest.mark.parametrize("how", ["greedy", "random"])
def test_poisoned_lists_are_those_of_a_corpus_with_the_records_in_it(how, monkeypatch):
    monkeypatch.setattr(graph_selectors, "DEPTH", 30)
    corpus, encoder = random_corpus(2, "open", memories=60, queries=5)
    search, budget = Search(corpus, encoder, 6), 9
    clean = {
        ("depth",): search.dense(search.layout.global_pools, 30),
        ("dense", "before"): search.dense(search.layout.namespace_pools),
    }
    found = {about[1]: hits for about, hits in graph_selectors._poisoned(search, clean, budget, how, 0)}
    for number, query in enumerate(corpus.queries.to_dict("records")):
        if how == "greedy":
            texts = [query["text"]] * budget
        else:
            drawn = search.rng(0, f"records {query['query_id']}").integers(len(search.layout), size=budget)
            texts = [search.texts[at] for at in drawn]
        poison = pd.DataFrame({"memory_id": [f"zz{n}" for n in range(budget)], "namespace": "mallory", "text": texts,
                               "order": 0.0, "visible_key": 0})  # fmt: skip
        # Equal scores: an inserted copy of a memory ranks behind it, one of the question before everything.
        asked = corpus.queries.iloc[[number]].reset_index(drop=True)
        memories = pd.concat([corpus.memories, poison], ignore_index=True)
        if how == "greedy":
            memories["memory_id"] = memories["memory_id"].str.replace("zz", " zz")
        both = replace(corpus, memories=memories, queries=asked)
        rows = rank(both, ["global_dense"], 30, encoder)[0]["memory_id"]
        own = corpus.memories.set_index("memory_id")["namespace"].eq(query["namespace"])
        kept_ids = [name for name in rows if "zz" not in name and own[name]][:6]
        assert search.layout.ids[found["after"][number].positions].tolist() == kept_ids
        shown = [name for name in rows[:6] if "zz" not in name]
        assert search.layout.ids[found["never"][number].positions].tolist() == shown


# --- Guessed namespaces ----------------------------------------------------------------------------------------


def clear_corpus(seed=0, per=30, spaces=4, queries=12):
    """Namespaces that text tells apart: vectors around a centre each."""
    rng = np.random.default_rng(seed)
    centres, table = np.linalg.qr(rng.normal(size=(8, 8)))[0][:spaces], {}

    def text(space, name):
        vector = centres[space] + 0.25 * rng.normal(size=8)
        table[name] = (vector / np.linalg.norm(vector)).astype(np.float32)
        return name

    rows = [(f"m{s}-{n:02d}", f"n{s}", text(s, f"memory {s} {n}"), n) for s in range(spaces) for n in range(per)]
    memories = pd.DataFrame(rows, columns=["memory_id", "namespace", "text", "visible_key"]).assign(
        order=range(len(rows))
    )
    asked = [(f"q{n}", f"n{n % spaces}", text(n % spaces, f"query {n}")) for n in range(queries)]
    frame = pd.DataFrame(asked, columns=["query_id", "namespace", "text"])
    frame = frame.assign(group=frame["namespace"], source="s", visible_own=per - 5, visible_foreign=EVERYTHING)
    labels = pd.DataFrame({"query_id": frame["query_id"], "memory_id": [f"m{n % spaces}-03" for n in range(queries)]})
    labels[["relevant", "policy", "lifecycle"]] = True
    labels = labels.astype(dict.fromkeys(("relevant", "policy", "lifecycle"), "boolean"))
    return Search(
        Corpus("x", "x", memories, frame, labels, {"policy": True, "lifecycle": True}), TableEncoder(table, 8), 5
    )


@pytest.mark.parametrize("method", inferred.METHODS)
def test_namespaces_that_text_tells_apart_are_found(method):
    search = clear_corpus()
    found = inferred.infer(search, method, 0.2, 0)
    assert (found.space == search.layout.space).mean() > 0.95
    assert (found.query_space == search.layout.query_space).mean() > 0.9
    assert found.unsure.sum() == round(inferred.ABSTAINS * (~found.labelled).sum())
    assert not (found.unsure & found.labelled).any()
    whole = inferred.infer(search, method, 1.0, 0)
    assert whole.labelled.all()
    assert (whole.space == search.layout.space).all()


def test_labelled_memories_are_nested_and_every_namespace_has_one():
    corpus, encoder = random_corpus(4)
    search, before = Search(corpus, encoder), None
    for share in (0.01, 0.05, 0.2, 0.5):
        known = inferred.infer(search, "classifier", share, 1).labelled
        named = search.layout.space < search.layout.groups - 1
        assert set(search.layout.space[known]) == set(search.layout.space[named])
        assert before is None or (known | ~before).all()
        assert abs(known.mean() - share) < 0.1
        before = known
    other = inferred.infer(search, "classifier", 0.5, 2).labelled
    assert (other != before).any()


def test_neighbours_vote_as_a_plain_loop_does():
    search = clear_corpus(3)
    found = inferred.infer(search, "neighbours", 0.2, 0)
    memories, _ = inferred._features(search)
    memories = memories.astype(float)
    for row in np.flatnonzero(~found.labelled)[::7]:
        known = np.flatnonzero(found.labelled)
        far = np.linalg.norm(memories[known] - memories[row], axis=1)
        near = np.argsort(far)[: inferred.NEIGHBOURS]
        votes = np.bincount(search.layout.space[known[near]], weights=1 / far[near])
        assert found.space[row] == votes.argmax()


@pytest.mark.parametrize("asker", ["trusted", "inferred"])
@pytest.mark.parametrize("abstain", ["guess", "admitted", "excluded"])
def test_pools_and_rates_equal_plain_loops(asker, abstain):
    search = clear_corpus(1)
    found = inferred.infer(search, "clusters", 0.05, 0)
    pools = inferred.inferred_pools(search, found, asker, abstain)
    rates = inferred_namespaces._rates(search, pools)
    memories = search.corpus.memories.set_index("memory_id")
    for number, query in enumerate(search.corpus.queries.to_dict("records")):
        wanted, own, seen = set(), [], []
        space = search.layout.query_space[number] if asker == "trusted" else found.query_space[number]
        for at, name in enumerate(search.layout.ids):
            mine = memories.loc[name, "namespace"] == query["namespace"]
            if memories.loc[name, "visible_key"] >= (query["visible_own"] if mine else query["visible_foreign"]):
                continue
            inside = found.space[at] == space
            if abstain == "admitted":
                inside = inside or found.unsure[at]
            if abstain == "excluded":
                inside = inside and not found.unsure[at]
            wanted |= {at} if inside else set()
            seen.append(inside)
            own.append(mine)
        assert set(pools[number].positions().tolist()) == wanted
        own, seen = np.array(own), np.array(seen)
        assert rates["false_deny"][number] == pytest.approx(1 - seen[own].mean())
        assert rates["false_allow"][number] == pytest.approx(seen[~own].mean())


def test_scattered_errors_are_as_many_with_the_same_names():
    corpus, encoder = random_corpus(4)
    search = Search(corpus, encoder)
    found = inferred.infer(search, "clusters", 0.2, 0)
    other = inferred_namespaces.scattered(search, found, 0)
    true = search.layout.space
    wrong, moved = found.space != true, other.space != true
    assert wrong.sum() == moved.sum()
    assert not (moved & found.labelled).any()
    assert (wrong != moved).any()
    names = [np.bincount(space[mask], minlength=6) for space, mask in ((found.space, wrong), (other.space, moved))]
    assert names[0].tolist() == names[1].tolist()


def test_the_study_has_its_references_and_full_labels_are_trusted():
    search = clear_corpus(2)
    table, accuracy = open_questions.inference_study(search, shares=(0.05, 1.0), methods=("classifier",), seeds=(0, 1))
    means = table.groupby(["method", "share", "asker", "abstain", "errors"])[
        ["evidence_recall", "loss", "false_deny"]
    ].mean()
    trusted = means.loc["trusted"].iloc[0]
    assert means.loc["classifier", 1.0, "trusted", "guess", "inferred"].tolist() == trusted.tolist()
    assert means.loc["global"].iloc[0]["false_deny"] == 0
    assert len(table) == len(search.corpus.queries) * (2 + 7 + 2)
    assert accuracy.query("share == 1")["accuracy"].eq(1).all()
    gap = open_questions.scattered_gap(table)
    both = means.xs(("trusted", "guess"), level=("asker", "abstain")).loc["classifier", 0.05]["loss"]
    told = gap.query("metric == 'loss' and source == 'macro'")["estimate"].item()
    assert told == pytest.approx(both["inferred"] - both["scattered"])


def test_arms_of_the_chapter_are_no_part_of_all():
    extra = {name for name, spec in known_arms().items() if spec.extra}
    assert extra == {
        "graph_prefilter",
        "graph_postfilter",
        "graph_global",
        "inferred_namespace",
        "inferred_namespace_and_asker",
    }
    search = clear_corpus()
    rankings, _ = rank(search.corpus, ["inferred_namespace"], 5, search.encoder)
    assert set(rankings["arm"]) == {f"inferred_namespace:{seed}" for seed in range(3)}


def test_unknown_methods_shares_and_studies_are_refused(tmp_path, monkeypatch):
    search = clear_corpus()
    with pytest.raises(InputError, match="method is 'oracle'; expected one of neighbours"):
        inferred.infer(search, "oracle", 0.5, 0)
    with pytest.raises(InputError, match="share is 0"):
        inferred.infer(search, "classifier", 0, 0)
    with pytest.raises(InputError, match=r"no study of open questions 'memops'; there are: .*rhelm"):
        kept.load_kept("memops", "graph")
    monkeypatch.setenv("COMPANION_DATA", str(tmp_path))
    folder = tmp_path / "open_questions" / "mine"
    kept.keep(folder, {"graph": pd.DataFrame({"loss": [0.5]})}, {"name": "mine"})
    assert kept.load_kept("mine", "graph")["loss"].tolist() == [0.5]
    pd.DataFrame({"loss": [0.4]}).to_parquet(folder / "graph.parquet")
    with pytest.raises(InputError, match="differs from what was kept"):
        kept.load_kept("mine", "graph")


# --- What is kept ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEPT)
def test_kept_tables_hold_numbers_and_agree_with_the_frozen_runs(name):
    from companion import scoring
    from companion.corpora.frozen import load_frozen

    table = kept.load_kept(name, "inferred")
    assert set(table.select_dtypes("str")) == {"method", "asker", "abstain", "errors", "query_id", "source", "group"}
    frozen = scoring.score_routes(load_frozen(name, arms=["namespace_dense", "global_dense"]), top_k=20)
    for method, arm in (("trusted", "namespace_dense"), ("global", "global_dense")):
        ours = table[table["method"] == method].set_index("query_id")
        theirs = frozen[frozen["arm"] == arm].set_index("query_id").loc[ours.index]
        same = np.isclose(ours["evidence_recall"], theirs["evidence_recall"].astype(float), atol=1e-6)
        assert same.mean() > 0.99


@pytest.mark.slow
@pytest.mark.skipif(not get("rhelm").is_present(), reason="corpus rhelm is not here; COMPANION_CORPORA names where")
def test_a_part_of_the_kept_studies_is_remade():
    search = open_questions.searched("rhelm", every=12)
    new, _ = open_questions.inference_study(search, shares=(0.2,), methods=("classifier",))
    old = kept.load_kept("rhelm", "inferred")
    both = new.merge(old, on=[*inferred_namespaces.KEYS, "query_id"], suffixes=("", "_kept"))
    assert len(both) == len(new)
    assert np.isclose(both["loss"], both["loss_kept"], atol=1e-5).mean() > 0.98
    new = graph_selectors.graph_study(search, budgets=(20,))
    old = kept.load_kept("rhelm", "graph")
    both = new[new["how"] != "random"].merge(old, on=[*graph_selectors.KEYS, "query_id"], suffixes=("", "_kept"))
    one = both[both["spread"] == "query"]
    assert len(one) > 300
    assert np.isclose(one["evidence_recall"], one["evidence_recall_kept"], atol=1e-5).mean() > 0.98
