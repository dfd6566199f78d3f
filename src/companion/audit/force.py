"""Checks of what is still in force: forgotten, expired and superseded facts, their copies, and contradictions."""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion.audit.context import ROUTE, Context, Finding, check, clear, count, found, known, listed, per_route, share
from companion.audit.context import unknown as unseen
from companion.audit.copies import TWIN_SIMILARITY, near_duplicates, one_word_apart
from companion.audit.intake import OUTDATED, among
from companion.audit.owners import SHOWN, forgotten_rows, returned

_NO_STATES = "Memories have neither a state nor a supersedes link"
_LINK = "Record supersedes links when a fact is corrected; they cost one id."


@check("Forgotten memories are returned")
def forgotten(context: Context) -> Finding:
    """Look for memories that were to be forgotten and are returned."""
    if context.records.memories["state"].isna().all():
        return unseen("Memories have no state, so nothing says which were to be forgotten.")
    return returned(
        context, forgotten_rows(context), "was to be forgotten", "were to be forgotten",
        "Take a forgotten memory out of every index at once. Only a question about the forgetting itself may still use "
        "it: say so with intent history and a policy label.", ["asks"],
    )  # fmt: skip


@check("Expired memories are returned")
def expired(context: Context) -> Finding:
    """Look for memories whose validity had ended before the question."""
    rows = context.rows
    if rows["valid_until"].isna().all():
        return unseen("No returned memory has a readable valid_until.")
    if rows["asked"].isna().all():
        return unseen("No query has a readable time.")
    return returned(
        context, expired_rows(context), "had expired", "had expired",
        "Compare valid_until with the time of the request when candidates are chosen; keep expired memories for "
        "questions about the past.", ["valid_until", "asked"],
    )  # fmt: skip


def expired_rows(context: Context) -> np.ndarray:
    """Mark returned rows whose memory had ended before a question that is about the present."""
    rows = context.rows
    return ((rows["valid_until"] < rows["asked"]) & rows["asks"].eq("now")).to_numpy(bool)


@check("Superseded facts are returned beside or above their correction")
def superseded(context: Context) -> Finding:
    """Look for outdated facts that are returned beside, above or without what corrects them."""
    rows, source = context.rows, context.intake.states_from
    if source == "none" and rows["lifecycle"].isna().all():
        return unseen(f"{_NO_STATES}, so nothing says which facts were corrected.", _LINK)
    outdated = rows["state"].isin(["superseded", "stale"])
    by_state = (outdated & rows["asks"].eq("now")).to_numpy(bool)
    bad = by_state | (known(rows["lifecycle"], False) & ~forgotten_rows(context) & ~expired_rows(context))
    told = {"links": "states follow from supersedes links", "state": "states as the memories give them"}.get(
        source, "by label")  # fmt: skip
    unsure = int((outdated & rows["asks"].eq("unknown") & ~bad).sum())
    limits = f"{count(unsure, 'outdated item')} went to questions of unknown intent, not counted." if unsure else ""
    if unsure and not bad.any():
        return unseen(limits, "Record what each question is about: intent current or history.")
    if not bad.any():
        return clear(f"None of {count(len(rows), 'returned item')} is outdated ({told}).")
    evidence = _beside(rows[bad].assign(by_state=by_state[bad]), context)
    counts = evidence["stands"].value_counts()
    parts = [f"{counts[word]:,} {phrase}" for word, phrase in _STANDS.items() if word in counts]
    if context.records.queries["intent"].isna().any():
        limits += f"{' ' if limits else ''}A query without an intent counts as about the present."
    return found(
        f"{share(bad.sum(), len(rows))} returned items {'is' if bad.sum() == 1 else 'are'} outdated "
        f"({per_route(rows, bad)}): {'; '.join(parts)} ({told}).",
        "Drop superseded memories unless the question is about the past, and rank a correction above what it corrects. "
        "Keep them for history: deleting them would break those answers."
        + (f" {_LINK}" if "unlinked" in counts else ""), limits, evidence,
    )  # fmt: skip


_STANDS = {
    "above": "above the correction",
    "beside": "beside it, further down",
    "alone": "without it",
    "unlinked": "whose correction no link names",
    "labelled": "by a label only",
}


def _beside(old: pd.DataFrame, context: Context) -> pd.DataFrame:
    """Pair every outdated row with the best-ranked of its corrections in the same route."""
    links, key = descendants(context.intake.links), [*ROUTE, "memory_id"]
    route = context.rows[[*key, "rank"]].rename(columns={"memory_id": "new", "rank": "correction_rank"})
    pairs = old[[*key, "rank"]].merge(links, left_on="memory_id", right_on="old").merge(route, on=[*ROUTE, "new"])
    best = pairs.sort_values("correction_rank").drop_duplicates(key)
    table = old[[*SHOWN, "asks", "by_state", "exposed"]].merge(
        best[[*key, "new", "correction_rank"]], on=key, how="left"
    )
    first = links.drop_duplicates("old").set_index("old")["new"]
    table["correction"] = table["new"].where(table["new"].notna(), table["memory_id"].map(first).astype("str"))
    table["correction_rank"] = table["correction_rank"].astype("Int64")
    above = (table["rank"] < table["correction_rank"]).fillna(False).to_numpy(bool)
    absent = table["correction_rank"].isna().to_numpy()
    loose = np.where(table["by_state"], "unlinked", "labelled")
    table["stands"] = np.select(
        [absent & ~among(table["memory_id"], links["old"]), absent, above], [loose, "alone", "above"], "beside"
    )
    order = table["stands"].map({word: place for place, word in enumerate(_STANDS)})
    table = table.assign(order=order).sort_values(["order", *ROUTE, "rank"], kind="stable", ignore_index=True)
    return table[[*SHOWN, "correction", "correction_rank", "stands", "asks", "exposed"]]


def descendants(links: pd.DataFrame) -> pd.DataFrame:
    """Follow chains of corrections: every later version corrects every earlier one."""
    every = step = links[["new", "old"]]
    while len(step):
        further = step.merge(links, left_on="new", right_on="old", suffixes=("", "_next"))
        step = pd.DataFrame({"new": further["new_next"], "old": further["old"]})
        step = step[step["new"] != step["old"]].drop_duplicates()
        fresh = step.merge(every, how="left", indicator=True)["_merge"].eq("left_only").to_numpy()
        step = step[fresh]
        every = pd.concat([every, step], ignore_index=True)
    return every.reset_index(drop=True)


# --- copies and contradictions -------------------------------------------------------------------------------------

_TWIN_LIMITS = (
    f"Copies are recognised by their wording (cosine of character n-grams at least {TWIN_SIMILARITY:g}, the same "
    "numbers, the same owner). A paraphrase is not found."
)


@check("Stale twins: copies of an outdated fact were never marked", routes=False)
def stale_twins(context: Context) -> Finding:
    """Look for near duplicates of an outdated fact that nobody marked."""
    store = context.store
    if context.intake.states_from == "none":
        return unseen(f"{_NO_STATES}.")
    if store["text"].isna().all():
        return unseen("The memories carry no text, so copies cannot be recognised.")
    old = store["state"].isin(OUTDATED).to_numpy(bool)
    pairs = near_duplicates(store, old, descendants(context.intake.links))
    told = count(int(old.sum()), "outdated memory", "outdated memories")
    if pairs.empty:
        return clear(f"No near duplicate of {told} is still taken as current.", "", _TWIN_LIMITS)
    evidence = pairs.assign(routes=_times_returned(context, pairs["twin"]))
    twins = evidence.drop_duplicates("twin")
    number, seen = len(twins), int((twins["routes"] > 0).sum())
    return found(
        f"{count(number, 'memory repeats', 'memories repeat')} one of {told} of the same owner almost word for word "
        f"and nobody marked {'it' if number == 1 else 'them'} ({listed(twins['twin'])}); {count(seen, 'was', 'were')} "
        "returned to questions that are not about the past.",
        "When a fact is superseded or forgotten, mark or remove its copies too: look for near duplicates at that "
        "moment, and have a person confirm.", _TWIN_LIMITS,
        evidence.sort_values(["routes", "similarity"], ascending=False, kind="stable"),
    )  # fmt: skip


def _times_returned(context: Context, ids: pd.Series) -> np.ndarray:
    """Count the routes of questions not about the past that returned each memory."""
    if not context.has_routes:
        return np.zeros(len(ids), dtype="int64")
    rows = context.rows[context.rows["asks"].ne("past")]
    return ids.map(rows["memory_id"].value_counts()).fillna(0).to_numpy("int64")


@check("Two current facts contradict each other")
def contradictory_current(context: Context) -> Finding:
    """Look for two facts of one key that both count as current, and are returned."""
    store = context.store
    if context.intake.states_from == "none":
        return unseen(f"{_NO_STATES}, so nothing says which facts count as current.")
    pairs = pd.concat([_forks(context), _same_key(store), one_word_apart(store[store["state"].eq("current")])])
    pairs = pairs.drop_duplicates(["memory_id", "other"], ignore_index=True)
    times = [_times_returned(context, pairs[name]) for name in ("memory_id", "other")]
    evidence = pairs.assign(routes=times[0] + times[1], together=_together(context, pairs))
    evidence = evidence[evidence["routes"] > 0].sort_values(["together", "routes"], ascending=False, kind="stable")
    limits = "Recognised by links, by a column key, or by wording that differs in one word; both may still be true."
    if evidence.empty:
        return clear("No two current memories of one owner that were returned contradict each other.", "", limits)
    both, first = int((evidence["together"] > 0).sum()), evidence.iloc[0]
    return found(
        f"{count(len(evidence), 'pair')} of memories that both count as current "
        f"{'says' if len(evidence) == 1 else 'say'} different things of one matter ({first['memory_id']} and "
        f"{first['other']}{', ...' if len(evidence) > 1 else ''}); {count(both, 'was', 'were')} returned together to a "
        "question that is not about the past.",
        "Let the writer of a new fact mark the one that it replaces (supersedes), and refuse a second current fact of "
        "one key. Which of the two holds, only a person or the source can say.", limits, evidence,
    )  # fmt: skip


def _forks(context: Context) -> pd.DataFrame:
    """Pair memories that correct the same one without one correcting the other, and those that correct each other."""
    links, store = context.intake.links, context.store
    every = descendants(links)
    alive = store.loc[~store["state"].isin(OUTDATED), "memory_id"]
    heads = every[among(every["new"], alive)]
    pairs = heads.merge(heads, on="old", suffixes=("", "_other")).query("new < new_other")
    forks = pairs[["new", "new_other"]].set_axis(["memory_id", "other"], axis=1).drop_duplicates()
    mutual = every.merge(every, left_on=["new", "old"], right_on=["old", "new"]).query("new_x < old_x")
    rings = mutual[["new_x", "old_x"]].set_axis(["memory_id", "other"], axis=1)
    return pd.concat([forks.assign(by="both correct one memory"), rings.assign(by="each corrects the other")])


def _same_key(store: pd.DataFrame) -> pd.DataFrame:
    """Pair current memories of one owner and one key whose texts differ, each with the first."""
    if "key" not in store:
        return pd.DataFrame(columns=["memory_id", "other", "by"])
    rows = store[store["state"].eq("current") & store["key"].notna()]
    groups = rows.groupby([rows["namespace"].fillna(""), rows["key"].astype("str")])
    first, said = groups["memory_id"].transform("first"), groups["text"].transform("first")
    pairs = rows.assign(other=rows["memory_id"], memory_id=first)
    differs = pairs["other"].ne(first) & pairs["text"].fillna("").ne(said.fillna(""))
    return pairs.loc[differs, ["memory_id", "other"]].assign(by="one key")


def _together(context: Context, pairs: pd.DataFrame) -> np.ndarray:
    """Count the routes of questions not about the past that hold both memories of a pair."""
    rows = context.rows.loc[context.rows["asks"].ne("past"), [*ROUTE, "memory_id"]]
    one = pairs[["memory_id", "other"]].reset_index().merge(rows, on="memory_id")
    both = one.merge(rows.rename(columns={"memory_id": "other"}), on=[*ROUTE, "other"])
    return both["index"].value_counts().reindex(range(len(pairs))).fillna(0).to_numpy("int64")
