"""Every search arm once more, as plainly as possible: loops over memories, sorts of whole lists, no shared code.

Slow and obvious on purpose. Scores are float64 sums over columns, rounded to float32 as the rankings record them.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pandas as pd

from companion.corpora.base import EVERYTHING, Corpus


class TableEncoder:
    """Encodes by looking a text up; unknown texts get a vector drawn from their digest."""

    def __init__(self, table=None, dimensions=8):
        self.table = dict(table or {})
        self.dimensions = dimensions

    def one(self, text):
        if text not in self.table:
            seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
            vector = np.random.default_rng(seed).normal(size=self.dimensions)
            self.table[text] = (vector / np.linalg.norm(vector)).astype(np.float32)
        return self.table[text]

    def encode(self, texts, kind="document"):
        return np.stack([self.one(text) for text in texts]).astype(np.float32)


# Whole numbers whose squares add up to 64: over 8 they are unit vectors that floating point holds exactly.
_SQUARES = np.array([[7, 3, 2, 1, 1, 0], [6, 4, 2, 2, 2, 0], [5, 5, 3, 2, 1, 0], [5, 4, 3, 3, 2, 1]])


def exact_unit_vector(rng):
    """Draw a unit vector whose inner products with its like are exact multiples of 1/64: equal means equal."""
    row = _SQUARES[rng.integers(len(_SQUARES))].copy()
    for place in rng.integers(0, 5, size=rng.integers(0, 4)):  # a few neighbours change places
        row[[place, place + 1]] = row[[place + 1, place]]
    return (row * np.where(rng.random(6) < 0.12, -1, 1) / 8).astype(np.float32)


def random_corpus(seed, limits="same", memories=120, queries=18, spaces=4):
    """Make a corpus full of ties: few words, few vectors on a coarse grid, repeated texts and times."""
    rng = np.random.default_rng(seed)
    table = {}

    def text(words):
        value = " ".join(f"word{rng.integers(words)}" for _ in range(rng.integers(1, 4))) + f" v{rng.integers(30)}"
        table.setdefault(value, exact_unit_vector(rng))
        return value

    names = np.array([f"n{i}" for i in range(spaces)], dtype=object)
    kept = pd.DataFrame(
        {
            # Ids in no order that anything else follows.
            "memory_id": [f"m{number}" for number in rng.permutation(10_000)[:memories]],
            "namespace": rng.choice(names, memories),
            "source": np.where(rng.random(memories) < 0.5, "s0", "s1"),
            "order": rng.integers(0, 40, memories).astype(float),
            "state": rng.choice(["current", "stale", "superseded", "forgotten", "unknown"], memories),
            "text": [text(6) for _ in range(memories)],
            "visible_key": rng.integers(0, 20, memories),
        }
    )
    kept.loc[:2, "namespace"] = None
    own = rng.integers(0, 24, queries)
    foreign = {"same": own, "open": np.full(queries, EVERYTHING), "free": rng.integers(0, 24, queries)}[limits]
    asked = pd.DataFrame(
        {
            "query_id": [f"q{number}" for number in rng.permutation(queries)],
            "namespace": rng.choice([*names, "nobody"], queries, p=[0.95 / spaces] * spaces + [0.05]),
            "intent": rng.choice(["current", "history", "unknown"], queries),
            "text": [text(8) for _ in range(queries)],
            "split": "evaluation",
            "visible_own": own,
            "visible_foreign": foreign,
        }
    )
    pairs = asked[["query_id"]].merge(kept[["memory_id"]], how="cross")
    pairs = pairs[rng.random(len(pairs)) < 0.5].reset_index(drop=True)
    for axis, odds in (("relevant", 0.2), ("scope", 0.8), ("policy", 0.6), ("lifecycle", 0.6)):
        values = np.where(rng.random(len(pairs)) < odds, 1, 0).astype(object)
        values[rng.random(len(pairs)) < 0.2] = pd.NA
        pairs[axis] = pd.array(values, dtype="boolean")
    corpus = Corpus("made-up", "made-up", kept, asked, pairs, defaults={"lifecycle": True})
    return corpus, TableEncoder(table, 6)


class Reference:
    """Brute-force rankings of one corpus."""

    def __init__(self, corpus, encoder, top_k):
        self.corpus, self.top_k = corpus, top_k
        self.memories = corpus.memories.to_dict("records")
        self.queries = corpus.queries.to_dict("records")
        self.vector = {m["memory_id"]: encoder.one(m["text"]).astype(np.float64) for m in self.memories}
        self.asked = {q["query_id"]: encoder.one(q["text"]).astype(np.float64) for q in self.queries}
        self.stated = {}
        for row in corpus.labels.to_dict("records"):
            self.stated[row["query_id"], row["memory_id"]] = row

    def own(self, query, memory):
        return isinstance(memory["namespace"], str) and memory["namespace"] == query["namespace"]

    def visible(self, query):
        kept = []
        for memory in self.memories:
            limit = query["visible_own"] if self.own(query, memory) else query["visible_foreign"]
            if memory["visible_key"] < limit:
                kept.append(memory)
        return kept

    def namespace(self, query):
        return [memory for memory in self.visible(query) if self.own(query, memory)]

    def similarity(self, query, memory):
        products = self.asked[query["query_id"]] * self.vector[memory["memory_id"]]
        return float(np.float32(math.fsum(products)))

    def ranked(self, query, candidates, score=None, cut=None):
        score = score or (lambda memory: self.similarity(query, memory))
        order = sorted((-score(memory), memory["memory_id"]) for memory in candidates)
        return [name for _, name in order][: self.top_k if cut is None else cut]

    def status(self, query, memory, axis):
        row = self.stated.get((query["query_id"], memory["memory_id"]))
        if row is None or axis not in row:
            return self.corpus.defaults.get(axis)
        return None if pd.isna(row[axis]) else bool(row[axis])

    # One method per arm: (ranking, candidates scored), and more where the arm reports more.

    def global_dense(self, query):
        pool = self.visible(query)
        return self.ranked(query, pool), len(pool)

    def namespace_dense(self, query):
        pool = self.namespace(query)
        return self.ranked(query, pool), len(pool)

    def global_recency_dense(self, query):
        pool = self.visible(query)
        order = [memory["order"] for memory in self.memories]
        low, high = min(order), max(order)

        def score(memory):
            return self.similarity(query, memory) + 0.1 * ((memory["order"] - low) / (high - low))

        return self.ranked(query, pool, score), len(pool)

    def rrf(self, query, bm25):
        pool = self.visible(query)
        lexical = {name: n for n, name in enumerate(self.ranked(query, pool, bm25, cut=10**9), start=1)}
        semantic = {name: n for n, name in enumerate(self.ranked(query, pool, cut=10**9), start=1)}

        def score(memory):
            name = memory["memory_id"]
            return 1 / (60 + lexical[name]) + 1 / (60 + semantic[name])

        return self.ranked(query, pool, score), len(pool)

    def filtered(self, query, axes, applies=True):
        pool = self.namespace(query)
        if not applies:
            return self.ranked(query, pool), len(pool), 0
        values = {m["memory_id"]: [self.status(query, m, axis) for axis in axes] for m in pool}
        pool = [m for m in pool if False not in values[m["memory_id"]]]
        return self.ranked(query, pool), len(pool), sum(None in values[m["memory_id"]] for m in pool)

    def namespace_current_only(self, query):
        pool = [m for m in self.namespace(query) if m["state"] not in ("stale", "superseded")]
        return self.ranked(query, pool), len(pool), sum(m["state"] == "unknown" for m in pool)

    def post_filter(self, query, depth):
        pool = self.visible(query)
        mine = {m["memory_id"] for m in pool if self.own(query, m)}
        return [name for name in self.ranked(query, pool, cut=depth) if name in mine][: self.top_k], len(pool)

    def arrivals(self, query):
        return sorted(self.namespace(query), key=lambda m: (m["visible_key"], m["order"], m["memory_id"]))

    def routed(self, query, choose, best, threshold):
        pool = self.arrivals(query)
        groups = []
        for memory in pool:
            cosines = [self.cosine(group, self.vector[memory["memory_id"]]) for group in groups]
            joined = choose(cosines, [len(group) for group in groups])
            if joined is None:
                groups.append([memory])
            else:
                groups[joined].append(memory)
        near = [(-self.cosine(group, self.asked[query["query_id"]]), n) for n, group in enumerate(groups)]
        chosen = [n for cosine, n in sorted(near)[:best] if -cosine >= threshold]
        members = [memory for n in chosen for memory in groups[n]] if chosen else pool
        return self.ranked(query, members), len(members), bool(pool) and not chosen, len(groups)

    def cosine(self, group, vector):
        total = np.zeros_like(vector)
        for memory in group:
            total = total + self.vector[memory["memory_id"]]
        length = np.linalg.norm(total)
        return float(total / length @ vector) if length > 0 else 0.0

    def threshold_router(self, query):
        def choose(cosines, _sizes):
            best = max(range(len(cosines)), key=lambda n: (cosines[n], -n), default=None)
            return best if best is not None and cosines[best] >= 0.8 else None

        return self.routed(query, choose, 3, 0.8)

    def cluster_router(self, query):
        def choose(cosines, sizes):
            if not cosines:
                return None
            join = [0.5 * math.log(n + 1) + cosine / 0.1 for n, cosine in zip(sizes, cosines, strict=True)]
            best = max(range(len(join)), key=lambda n: (join[n], -n))
            return best if join[best] >= math.log(1) + (1 - max(cosines)) / 0.4 else None

        return self.routed(query, choose, 1, -math.inf)


def bm25(texts, query, k1, b):
    """Lucene's BM25 from its formula, as float64; tokens as bm25s's documented defaults."""
    import re

    from bm25s.stopwords import STOPWORDS_EN

    def words(text):
        return [w for w in re.findall(r"(?u)\b\w\w+\b", text.lower()) if w not in STOPWORDS_EN]

    documents = [words(text) for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    out = []
    for document in documents:
        score = 0.0
        for word in words(query):
            holding = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
            tf = document.count(word)
            score += idf * tf / (tf + k1 * (1 - b + b * len(document) / mean)) if tf else 0.0
        out.append(score)
    return out
