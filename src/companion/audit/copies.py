"""Texts that say almost the same: near duplicates, and texts that differ in one word. Time grows with their number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from companion.audit.intake import among

TWIN_SIMILARITY = 0.8
"""Cosine of character n-grams from which two texts of one owner count as near duplicates."""

# Rows that are compared at a time, pairs whose n-grams are counted at a time, and what makes a word too common.
_ROWS, _PAIRS, _COMMON = 20_000, 50_000, 2_000
_SHORT, _LONG = 4, 60


def plain(text: pd.Series) -> pd.Series:
    """Return texts in one form; one of megabytes says what it says in its beginning."""
    return text.astype("str").str.slice(0, 20_000).str.normalize("NFKC").str.casefold()


def near_duplicates(store: pd.DataFrame, old: np.ndarray, links: pd.DataFrame) -> pd.DataFrame:
    """Pair outdated memories with unmarked ones of the same owner, the same numbers and almost the same words."""
    columns = ["memory_id", "twin", "state", "similarity", "text", "twin_text"]
    rows = store.assign(old=old)[store["text"].notna().to_numpy()]
    owner = rows["namespace"].fillna("")
    rows = rows[among(owner, owner[rows["old"]])].reset_index(drop=True)
    if rows.empty or not rows["old"].any():
        return pd.DataFrame(columns=columns)
    text = plain(rows["text"])
    numbers = text.str.findall(r"\d+(?:[.,]\d+)*").map(" ".join)
    block = rows.groupby([rows["namespace"].fillna(""), numbers], sort=False).ngroup().to_numpy()
    size, outdated = np.bincount(block), np.bincount(block, weights=rows["old"].to_numpy())
    place = np.flatnonzero((outdated > 0)[block] & (outdated < size)[block])
    pairs = _sharing_words(text.iloc[place], block[place], rows["old"].to_numpy()[place])
    cosine = _cosines(text, place[pairs[:, 0]], place[pairs[:, 1]])
    near = cosine >= TWIN_SIMILARITY
    a, b = (rows.iloc[place[pairs[near, side]]].reset_index(drop=True) for side in (0, 1))
    found = pd.DataFrame(
        {"memory_id": a["memory_id"], "twin": b["memory_id"], "state": a["state"], "similarity": cosine[near],
         "text": a["text"], "twin_text": b["text"]}
    )  # fmt: skip
    later = pd.MultiIndex.from_frame(links[["old", "new"]])
    linked = pd.MultiIndex.from_frame(found[["memory_id", "twin"]]).isin(later) if len(found) and len(links) else False
    return found[~np.asarray(linked) & np.ones(len(found), dtype=bool)].reset_index(drop=True)


def _sharing_words(text: pd.Series, block: np.ndarray, old: np.ndarray) -> np.ndarray:
    """List (outdated, unmarked) rows of one block that share at least half of the words of the longer text."""
    from scipy import sparse

    row, word, number = _words(text, block)
    codes, levels = pd.factorize(word)
    rare = (np.bincount(codes, minlength=len(levels)) <= _COMMON)[codes]
    shape = (len(text), max(len(levels), 1))
    table = sparse.csr_array((np.ones(int(rare.sum()), dtype=np.int32), (row[rare], codes[rare])), shape=shape)
    first, second = np.flatnonzero(old), np.flatnonzero(~old)
    right = table[second].T.tocsr()
    found = [np.empty((0, 2), dtype=np.int64)]
    for start in range(0, len(first), _ROWS):
        shared: Any = (table[first[start : start + _ROWS]] @ right).tocoo()
        a, b = first[start + shared.row], second[shared.col]
        kept = 2 * shared.data >= np.maximum(number[a], number[b])
        found.append(np.column_stack([a[kept], b[kept]]))
    return np.concatenate(found)


def _words(text: pd.Series, block: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct words of every text as (row, hash of word and block), and how many each has."""
    rows, hashes = [], []
    for start, words, lengths in _split(text):
        at = start + np.repeat(np.arange(len(lengths)), lengths)
        rows.append(at)
        hashes.append(_hash(words) + block[at].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    table = pd.DataFrame({"row": np.concatenate(rows), "word": np.concatenate(hashes)}).drop_duplicates()
    row = table["row"].to_numpy()
    return row, table["word"].to_numpy(), np.bincount(row, minlength=len(text))


def _split(text: pd.Series) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield words strip by strip: the first row of the strip, all its words, and how many each row has."""
    for start in range(0, max(len(text), 1), _ROWS):
        lists = [one.split() for one in text.iloc[start : start + _ROWS]]
        lengths = np.array([len(one) for one in lists], dtype=np.int64)
        yield start, np.array([word for one in lists for word in one], dtype=object), lengths


def _hash(words: np.ndarray) -> np.ndarray:
    return np.asarray(pd.util.hash_array(words, categorize=True), dtype=np.uint64)


def _cosines(text: pd.Series, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compare texts pair by pair: cosine of their character n-grams."""
    from sklearn.feature_extraction.text import HashingVectorizer

    grams = HashingVectorizer(
        analyzer="char_wb", ngram_range=(3, 5), binary=True, lowercase=False, alternate_sign=False
    )
    found = np.zeros(len(first))
    for start in range(0, len(first), _PAIRS):
        part = slice(start, start + _PAIRS)
        used, place = np.unique(np.concatenate([first[part], second[part]]), return_inverse=True)
        table = grams.transform(text.iloc[used])
        half = len(place) // 2
        found[part] = np.asarray(table[place[:half]].multiply(table[place[half:]]).sum(axis=1)).ravel()
    return found


def one_word_apart(store: pd.DataFrame) -> pd.DataFrame:
    """Pair texts of one owner that are equal but for one word, each with the first of its kind."""
    rows = store[store["text"].notna()].reset_index(drop=True)
    owner = pd.factorize(rows["namespace"].fillna(""))[0]
    found = [pd.DataFrame(columns=["memory_id", "other"])]
    parts = max(1, len(rows) // 100_000)  # owners stay whole, and only some of them are in memory
    for part in range(parts):
        mine = np.flatnonzero(owner % parts == part)
        text = plain(rows["text"].iloc[mine]).str.replace(r"[.,;:!?]+(?=\s|$)", "", regex=True)
        first, second = _differing(text, owner[mine])
        ids = rows["memory_id"].to_numpy()[mine]
        found.append(pd.DataFrame({"memory_id": ids[first], "other": ids[second]}))
    return pd.concat(found, ignore_index=True).assign(by="wording").drop_duplicates(ignore_index=True)


def _differing(text: pd.Series, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hash every text with each of its words left out; equal hashes of unequal words are a pair."""
    rows, keys, left_out = [], [], []
    odd = np.uint64(0x9E3779B97F4A7C15)
    for start, words, lengths in _split(text):
        lengths = np.where((lengths >= _SHORT) & (lengths <= _LONG), lengths, -lengths)
        at = np.repeat(np.arange(len(lengths)), np.abs(lengths))
        keep = lengths[at] > 0
        at, hashes = at[keep], _hash(words[keep])
        begins = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=len(lengths)))])[:-1]
        position = (np.arange(len(at)) - begins[at]).astype(np.uint64)
        weighed = hashes * (np.uint64(2) * position + np.uint64(3)) * odd
        total = np.zeros(len(lengths), dtype=np.uint64)
        np.add.at(total, at, weighed)
        size = lengths[at].astype(np.uint64)
        mine = owner[start + at].astype(np.uint64)
        keys.append((total[at] - weighed) ^ ((position << np.uint64(40)) + (size << np.uint64(48)) + mine * odd))
        rows.append(start + at)
        left_out.append(hashes)
    table = pd.DataFrame({"row": np.concatenate(rows), "key": np.concatenate(keys), "word": np.concatenate(left_out)})
    table = table[table["key"].duplicated(keep=False)].sort_values(["key", "row"], kind="stable")
    first = table.groupby("key")[["row", "word"]].transform("first")
    differs = (table["word"] != first["word"]).to_numpy(bool)
    return first["row"].to_numpy()[differs], table["row"].to_numpy()[differs]
