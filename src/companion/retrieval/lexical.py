"""BM25 by bm25s, with time-limited candidates.

Term statistics (document frequencies, average length) come from all memories of the split, not from what one
query may see: a deployed index has one set of statistics. Tokens are bm25s's defaults: lower case, words of at
least two characters, English stop words removed, no stemming; the weighting is Lucene's variant. bm25s
computes and stores each term's scores; a query reads, of each of its terms' posting lists, only the part that
lies in its pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from companion.retrieval.pools import Pool


class Lexical:
    """A BM25 index over memories in layout order."""

    def __init__(self, texts: Sequence[str], k1: float, b: float) -> None:
        import bm25s

        self._index = bm25s.BM25(k1=k1, b=b, method="lucene")
        tokens = bm25s.tokenize(list(texts), stopwords="en", show_progress=False)
        self.size = len(texts)
        # bm25s cannot index a corpus without a single word; then every score is 0.
        self.empty = not any(len(ids) for ids in tokens.ids)
        if not self.empty:
            self._index.index(tokens, show_progress=False)

    @cached_property
    def _postings(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Column pointers, memory positions (ascending within a term), and scores of all postings."""
        stored: dict[str, Any] = self._index.scores
        pointers, positions, values = stored["indptr"], stored["indices"], stored["data"]
        term = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
        order = np.lexsort((positions, term))
        return pointers, positions[order], values[order].astype(np.float64)

    def scores(self, text: str, pool: Pool) -> np.ndarray:
        """BM25 scores of a pool's candidates, in the order of `Pool.positions`."""
        if self.empty or not pool.ranges:
            return np.zeros(pool.size, dtype=np.float32)
        if pool.base is not None:
            wanted = pool.positions()
            span = Pool(((int(wanted[0]), int(wanted[-1]) + 1),))
            return self.scores(text, span)[wanted - wanted[0]]
        postings = self._of_terms(text)
        parts = [_summed(postings, start, stop) for start, stop in pool.ranges]
        return np.concatenate(parts).astype(np.float32)

    def _of_terms(self, text: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """Positions and scores of each of the query's words that the index knows."""
        import bm25s

        words = bm25s.tokenize(text, stopwords="en", return_ids=False, show_progress=False)[0]
        known = self._index.vocab_dict
        pointers, positions, values = self._postings
        terms = [known[word] for word in words if word in known]
        spans = [(pointers[term], pointers[term + 1]) for term in terms if term + 1 < len(pointers)]
        return [(positions[a:z], values[a:z]) for a, z in spans]


def _summed(postings: list[tuple[np.ndarray, np.ndarray]], start: int, stop: int) -> np.ndarray:
    """Sum the postings that lie in one range."""
    total = np.zeros(stop - start)
    for positions, values in postings:
        a, z = np.searchsorted(positions, (start, stop))
        # A term lists a memory once, so plain fancy indexing adds it once.
        total[positions[a:z] - start] += values[a:z]
    return total
