"""The verification study's cases and candidates: who is judged on what (Methods, "Stage two: verification")."""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd

from companion.errors import InputError
from companion.scoring import anchors_of, label_ranked
from companion.tables import Records

SPLITS = ("calibration", "analysis")
CALIBRATION_PER_STRATUM = 8
ANALYSIS_PER_STRATUM = 24
_LABELS = ("relevant", "scope", "policy", "lifecycle", "admissible", "usable")


def stable_order(ids: pd.Series, salt: str = "") -> pd.Series:
    """Give every id a number (uint64) that depends on nothing but the id and the salt; sorting by it shuffles."""
    digests = [hashlib.sha256(f"{salt}\x1f{name}".encode()).digest()[:8] for name in ids]
    return pd.Series([int.from_bytes(d, "big") for d in digests], index=ids.index, dtype="uint64")


def split_cases(
    queries: pd.DataFrame,
    *,
    calibration: int = CALIBRATION_PER_STRATUM,
    analysis: int = ANALYSIS_PER_STRATUM,
    salt: str = "",
) -> pd.DataFrame:
    """Draw calibration and analysis cases within each stratum by a stable hash: query_id, stratum, split.

    Membership depends only on the ids of the stratum, not on the order of rows. A stratum with fewer cases than both
    numbers together is split in the same proportion, at least one case each, all of it used.
    """
    if min(calibration, analysis) < 1:
        raise InputError(f"split: {calibration} calibration, {analysis} analysis cases; expected 1 or more of each")
    if queries["stratum"].isna().any():
        unknown = queries.loc[queries["stratum"].isna(), "query_id"].iloc[0]
        raise InputError(f"split: query {unknown!r} has no stratum; expected one for every case")
    parts = []
    for stratum, cases in queries[["query_id", "stratum"]].groupby("stratum", sort=True):
        if len(cases) < 2:
            raise InputError(f"split: stratum {stratum!r} has {len(cases)} case; expected 2 or more")
        ordered = cases.assign(_key=stable_order(cases["query_id"], salt)).sort_values(["_key", "query_id"])
        total = min(len(ordered), calibration + analysis)
        first = int(np.clip(round(total * calibration / (calibration + analysis)), 1, total - 1))
        chosen = ordered.head(total).drop(columns="_key")
        parts.append(chosen.assign(split=np.repeat(SPLITS, [first, total - first])))
    return pd.concat(parts, ignore_index=True)


def candidates(records: Records, rankings: pd.DataFrame, *, top_k: int | None = None) -> pd.DataFrame:
    """List the candidates that a verifier is to judge: the rows of one arm, with what is known about each.

    Parameters
    ----------
    records : Records
        Validated tables.
    rankings : DataFrame
        Rankings of exactly one arm.
    top_k : int, optional
        Keep only the first ranks.

    Returns
    -------
    DataFrame
        One row per candidate: ``query_id``, ``memory_id``, ``rank``; the boolean columns of ``label_ranked``;
        ``violation`` (boolean: known to be inadmissible, known not to be, ``<NA>``); ``anchor`` (str: the anchor
        it stands for, missing if none); ``source``, ``group``, ``stratum`` of the query.

    Raises
    ------
    InputError
        Several arms, or unknown ids.
    """
    arms = rankings["arm"].unique()
    if len(arms) != 1:
        raise InputError(f"candidates: rankings hold {len(arms)} arms; expected one, the route to filter")
    rows = rankings if top_k is None else rankings[rankings["rank"] <= top_k]
    out = label_ranked(records, rows)[["query_id", "memory_id", "rank", *_LABELS]]
    out["violation"] = ~out["admissible"]
    out = out.merge(_anchor_names(records), on=["query_id", "memory_id"], how="left", validate="many_to_one")
    about = records.queries[["query_id", "source", "group", "stratum"]]
    return out.merge(about, on="query_id", how="left", validate="many_to_one")


def _anchor_names(records: Records) -> pd.DataFrame:
    """Return query_id, memory_id, anchor: memories without an anchor id stand for themselves."""
    anchors = anchors_of(records)
    # the prefix keeps an anchor id from being taken for a memory id of the same spelling
    shared = "a:" + anchors["anchor_id"].astype("str")
    own = "m:" + anchors["memory_id"].astype("str")
    named = anchors.assign(anchor=shared.where(anchors["anchor_id"].notna(), own))
    kept = named.sort_values("anchor").drop_duplicates(["query_id", "memory_id"])
    return kept[["query_id", "memory_id", "anchor"]]


def with_texts(records: Records, table: pd.DataFrame) -> pd.DataFrame:
    """Put the texts and the metadata of candidates beside them; a candidate without a text is refused."""
    queries = records.queries[["query_id", "text", "namespace", "intent", "principal"]].rename(
        columns={"text": "query_text", "namespace": "query_namespace"}
    )
    memories = records.memories[["memory_id", "text", "namespace", "state"]].rename(
        columns={"text": "memory_text", "namespace": "memory_namespace"}
    )
    out = table.merge(queries, on="query_id", how="left", validate="many_to_one")
    out = out.merge(memories, on="memory_id", how="left", validate="many_to_one")
    for column, key in (("query_text", "query_id"), ("memory_text", "memory_id")):
        if out[column].isna().any():
            bare = out.loc[out[column].isna(), key].iloc[0]
            raise InputError(f"{key} {bare!r} has no text; a verifier reads texts (frozen rankings carry none)")
    return out.set_axis(table.index, axis=0)
