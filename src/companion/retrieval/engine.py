"""Run arms over a corpus and put what they return into the contract's tables."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pandas as pd

from companion.errors import InputError
from companion.retrieval import dense
from companion.retrieval.dense import Hits
from companion.retrieval.lexical import Lexical
from companion.retrieval.pools import CorpusLike, Layout, Pool
from companion.retrieval.registry import ArmSpec, Route, get_arm, known_arms

_CHECKED = 4096
"""Vectors whose lengths are checked at a time."""

_LENGTH_ERROR = 1e-3
"""By how much rounding may make a unit vector longer than 1."""

UNRESOLVED = -1
"""Code of ? in the int8 arrays of `Search.status`; 1 and 0 stand for themselves."""


class EncoderLike(Protocol):
    """Anything that turns texts into unit vectors, such as `companion.retrieval.encoders.Encoder`."""

    def encode(self, texts: Sequence[str], kind: Any = "document") -> np.ndarray:
        """Encode texts as float32 unit vectors, one row each."""


@dataclass(frozen=True, eq=False)
class Search:
    """A corpus made ready for search; what an arm needs is computed on first use and shared by all arms.

    Parameters
    ----------
    corpus : companion.corpora.Corpus
        Or anything with its tables; restricted to one split.
    encoder : EncoderLike, optional
        Needed by dense arms only.
    top_k : int
        Length of the rankings that arms return.
    """

    corpus: CorpusLike
    encoder: EncoderLike | None = None
    top_k: int = 20

    @cached_property
    def layout(self) -> Layout:
        """Memories in search order; its `namespace_pools` and `global_pools` say what each query may see."""
        return Layout(self.corpus)

    @cached_property
    def texts(self) -> list[str]:
        """Texts of the memories in layout order."""
        return self._text_of("memories", "memory_id")[self.layout.order].tolist()

    @cached_property
    def vectors(self) -> np.ndarray:
        """Unit vectors of the memories in layout order, float32, shape (memories, dimensions)."""
        return _unit_vectors(self._encoder.encode(self.texts, "document"), len(self.texts), "memories")

    @cached_property
    def query_texts(self) -> list[str]:
        """Texts of the queries."""
        return self._text_of("queries", "query_id").tolist()

    @cached_property
    def query_vectors(self) -> np.ndarray:
        """Unit vectors of the queries, float32, shape (queries, dimensions)."""
        return _unit_vectors(self._encoder.encode(self.query_texts, "query"), len(self.query_texts), "queries")

    @cached_property
    def _encoder(self) -> EncoderLike:
        if self.encoder is None:
            raise InputError("a dense arm needs an encoder; name one with --encoder")
        return self.encoder

    def _text_of(self, table: str, key: str) -> np.ndarray:
        frame: pd.DataFrame = getattr(self.corpus, table)
        missing = frame[key][frame["text"].isna()] if "text" in frame else frame[key]
        if len(missing):
            raise InputError(f"corpus {self.corpus.name}: {key} {missing.iloc[0]!r} has no text to search by")
        return frame["text"].to_numpy(dtype=object)

    def lexical(self, k1: float, b: float) -> Lexical:
        """BM25 index over all memories of the split, built once per parameter pair."""
        kept: dict[tuple[float, float], Lexical] = self.__dict__.setdefault("_lexical", {})
        if (k1, b) not in kept:
            kept[k1, b] = Lexical(self.texts, k1, b)
        return kept[k1, b]

    def dense(self, pools: list[Pool], k: int | None = None) -> list[Hits]:
        """Search pools, one per query, by inner product; `k` is `top_k` by default."""
        return dense.search(self.vectors, self.query_vectors, pools, self.layout.tie, k or self.top_k)

    def by_score(self, pool: Pool, values: np.ndarray) -> Hits:
        """Rank a pool by given scores, equal scores by ascending memory id, and cut to `top_k`."""
        positions = pool.positions()
        chosen = dense.best(values, self.layout.tie[positions], self.top_k)
        return Hits(positions[chosen], values[chosen])

    def status(self, query: int, axis: str, positions: np.ndarray) -> np.ndarray:
        """Code the status (1, 0, `UNRESOLVED`) of memories, ascending positions, on one axis for one query.

        As the labels state it, or the corpus's default.
        """
        default = self.corpus.defaults.get(axis)
        out = np.full(len(positions), UNRESOLVED if default is None else int(default), dtype=np.int8)
        listed, codes = self._labels(axis)[query]
        if len(positions) and len(listed):
            place = np.minimum(np.searchsorted(positions, listed), len(positions) - 1)
            hit = positions[place] == listed
            out[place[hit]] = codes[hit]
        return out

    def _labels(self, axis: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """Label positions and codes of each query, for one axis."""
        kept: dict[str, list[tuple[np.ndarray, np.ndarray]]] = self.__dict__.setdefault("_axes", {})
        if axis not in kept:
            labels = self.corpus.labels
            stated = labels.assign(**{axis: pd.NA})[axis] if axis not in labels else labels[axis]
            codes = stated.astype("boolean").astype("Int8").fillna(UNRESOLVED).to_numpy(dtype=np.int8)
            rows, position, cuts = self.by_query(labels if axis in labels else labels.iloc[:0])
            kept[axis] = list(zip(np.split(position, cuts), np.split(codes[rows], cuts), strict=True))
        return kept[axis]

    def by_query(self, labels: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sort labels by query and position: rows, positions, and where each query but the first begins."""
        query = pd.Index(self.corpus.queries["query_id"]).get_indexer(pd.Index(labels["query_id"]))
        position = self.layout.position_of(labels["memory_id"])
        rows = np.flatnonzero((query >= 0) & (position >= 0))
        rows = rows[np.lexsort((position[rows], query[rows]))]
        return rows, position[rows], np.searchsorted(query[rows], np.arange(1, len(self.corpus.queries)))

    def rng(self, seed: int, name: str) -> np.random.Generator:
        """Make a generator that depends on the seed and on a name, not on which queries are run together."""
        words = np.frombuffer(hashlib.sha256(name.encode()).digest()[:16], dtype=np.uint32)
        return np.random.default_rng([seed, *words.tolist()])


def _unit_vectors(vectors: np.ndarray, count: int, what: str) -> np.ndarray:
    """Refuse vectors that exact search would rank wrongly without a word: too few, not finite, or longer than 1."""
    if vectors.ndim != 2 or len(vectors) != count:
        raise InputError(f"the encoder gave vectors of shape {vectors.shape} for {count} {what}")
    for start in range(0, count, _CHECKED):  # in parts: the vectors may be larger than memory
        part = np.asarray(vectors[start : start + _CHECKED], dtype=np.float32)
        lengths = np.sqrt(np.einsum("ij,ij->i", part, part))
        wrong = np.flatnonzero(~(lengths <= 1 + _LENGTH_ERROR))  # not a number is not at most anything
        if len(wrong):
            raise InputError(
                f"the encoder gave vector {start + wrong[0] + 1} of the {what} the length {lengths[wrong[0]]:g}; "
                "expected finite vectors of length at most 1"
            )
    return vectors


def sizes(pools: list[Pool]) -> np.ndarray:
    """Count the candidates of each pool."""
    return np.array([pool.size for pool in pools], dtype=np.int64)


def rank(
    corpus: Any,
    arms: Sequence[str],
    top_k: int = 20,
    encoder: EncoderLike | None = None,
    split: str | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rank memories for every query with each arm, by exact search.

    Parameters
    ----------
    corpus : companion.corpora.Corpus
        Or anything with its tables; `split` needs its `restrict`.
    arms : sequence of str
        Arm names; ``["all"]`` runs every one of the Methods page. An arm with seeds gives a route per seed.
    top_k : int
        Length of each ranking, at least 1; shorter where a query sees fewer candidates.
    encoder : EncoderLike, optional
        Needed by dense arms.
    split : str, optional
        Split of the queries, and of the memories if they are split too.

    Returns
    -------
    rankings : DataFrame
        arm, query_id, rank (int64, from 1), memory_id, score (float64).
    work : DataFrame
        arm, query_id, candidates_scored (int64), passed_unresolved (Int64, filters only), fell_back (boolean) and
        centroids_scored (Int64), both routers only.

    Raises
    ------
    InputError
        Unknown arm or split, `top_k` below 1, missing texts, a dense arm without encoder, or an encoder whose vectors
        are not finite or longer than 1.

    Examples
    --------
    >>> from companion import corpora, retrieval
    >>> rankings, work = retrieval.rank(corpora.load("demo"), ["global_bm25"], top_k=3)
    >>> rankings["rank"].max()
    3
    """
    if top_k < 1:
        raise InputError(f"top_k is {top_k}; expected at least 1")
    specs = _specs(arms)
    search = Search(corpus.restrict(split) if split is not None else corpus, encoder, top_k)
    routes = [found for spec in specs for found in _routes(spec, search)]
    rankings = [ranking_table(name, route.hits, search) for name, route in routes]
    work = [_work_table(name, route, search) for name, route in routes]
    return pd.concat(rankings, ignore_index=True), pd.concat(work, ignore_index=True)


def _specs(names: Sequence[str]) -> list[ArmSpec]:
    if not names:
        raise InputError("no arm was named; name at least one, or all")
    usual = [name for name, spec in known_arms().items() if not spec.extra] if "all" in names else []
    return [get_arm(name) for name in dict.fromkeys([*usual, *names]) if name != "all"]


def _routes(spec: ArmSpec, search: Search) -> list[tuple[str, Route]]:
    if not spec.seeds:
        return [(spec.name, spec.function(search, **spec.params))]
    return [(name, spec.function(search, seed=seed, **spec.params)) for seed, name in enumerate(spec.routes())]


def ranking_table(name: str, hits: list[Hits], search: Search) -> pd.DataFrame:
    """Put the ranked memories of all queries into the table ``rankings``."""
    lengths = np.array([len(found.positions) for found in hits], dtype=np.int64)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    positions = np.concatenate([found.positions for found in hits]) if len(lengths) else np.empty(0, np.int64)
    scores = np.concatenate([found.scores for found in hits]) if len(lengths) else np.empty(0)
    query_ids = search.corpus.queries["query_id"].to_numpy(dtype=object)
    return pd.DataFrame(
        {
            "arm": pd.Series([name] * len(positions), dtype="str"),
            "query_id": pd.Series(np.repeat(query_ids, lengths), dtype="str"),
            "rank": np.arange(len(positions), dtype=np.int64) - starts + 1,
            "memory_id": pd.Series(search.layout.ids[positions], dtype="str"),
            "score": scores.astype(np.float64),
        }
    )


def _work_table(name: str, route: Route, search: Search) -> pd.DataFrame:
    queries = search.corpus.queries["query_id"].to_numpy(dtype=object)

    def optional(values: np.ndarray | None, dtype: Any) -> Any:
        return pd.array([pd.NA] * len(queries) if values is None else values, dtype=dtype)

    return pd.DataFrame(
        {
            "arm": pd.Series([name] * len(queries), dtype="str"),
            "query_id": pd.Series(queries, dtype="str"),
            "candidates_scored": route.scored.astype(np.int64),
            "passed_unresolved": optional(route.passed_unresolved, "Int64"),
            "fell_back": optional(route.fell_back, "boolean"),
            "centroids_scored": optional(route.centroids, "Int64"),
        }
    )
