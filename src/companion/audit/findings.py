"""The failures that people report of real memory systems, looked for one by one.

Every check says one of three things: *found*, with its evidence and what to do; *clear*, with what was looked at; or
*unknown*, with what the records lack. A check never guesses: what the tables do not say is not counted as a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd

from companion import logic
from companion.audit.context import Context, count, listed, moments, nobody, share
from companion.labels import encode
from companion.scoring import PairLabels

Outcome = Literal["found", "clear", "unknown"]
TWIN_SIMILARITY = 0.8
"""Cosine of character n-grams from which two texts of one owner count as near duplicates."""


@dataclass(frozen=True)
class Check:
    """What one check found."""

    kind: str
    title: str
    outcome: Outcome
    says: str
    advice: str = ""
    limits: str = ""
    evidence: pd.DataFrame = field(default_factory=pd.DataFrame)


def run_checks(context: Context) -> list[Check]:
    """Run every check."""
    return [check(context) for check in CHECKS]


# --- who may see what ----------------------------------------------------------------------------------------------


def wildcard(context: Context) -> Check:
    """Look for askers without a name whose routes range over namespaces."""
    kind, title = "wildcard", "An empty principal or namespace acts as a wildcard"
    queries = context.records.queries
    no_space = nobody(queries["namespace"])
    known_principals = queries["principal"].notna().any()
    blank = queries.loc[no_space | _no_principal(queries), "query_id"]
    if queries["namespace"].isna().all():
        return Check(
            kind, title, "unknown",
            "No query has a namespace, so an asker whose name was lost cannot be told from records that never held "
            "one.",
        )  # fmt: skip
    if blank.empty:
        what = "a namespace and a principal" if known_principals else "a namespace (principals are not recorded)"
        return Check(kind, title, "clear", f"All {len(queries):,} queries name {what}.")
    if not context.has_routes:
        return Check(
            kind, title, "unknown",
            f"{count(len(blank), 'query has', 'queries have')} no namespace or no principal, and there are no "
            f"rankings that show what they "
            "were given.",
        )  # fmt: skip
    routes = _reach(context.rows)
    routes["blank"] = routes["query_id"].isin(blank)
    no_space_ids = set(queries.loc[no_space, "query_id"])
    wide = np.where(routes["query_id"].isin(no_space_ids), routes["namespaces"] > 1, routes["foreign"] > 0)
    usual = routes[~routes["blank"]].groupby("arm")["foreign"].agg(lambda n: float((n > 0).mean()))
    hits = routes[routes["blank"] & wide].copy()
    if hits.empty:
        quiet = f"{count(len(blank), 'query has', 'queries have')} no namespace or no principal; none was answered from"
        if no_space.all():
            return Check(
                kind, title, "unknown",
                f"{quiet} several namespaces, and no other query says whose its own would have been.",
            )  # fmt: skip
        return Check(
            kind, title, "clear",
            f"{quiet} a namespace that is not its own.",
            "Refuse such requests, rather than searching without a filter.",
        )  # fmt: skip
    hits["empty"] = np.where(hits["query_id"].isin(no_space_ids), "namespace", "principal")
    hits["named_askers_that_cross"] = hits["arm"].map(usual)
    evidence = hits[["arm", "query_id", "empty", "namespaces", "items", "named_askers_that_cross", "returned_from"]]
    filtered = hits[hits["named_askers_that_cross"].fillna(0) < 0.5]
    if hits["named_askers_that_cross"].isna().all():
        contrast = "No named asker used these routes, so whether they filter for those that have a name is not shown."
    elif len(filtered):
        contrast = (
            "On the same routes most named askers receive their own memories only, so the filter works and the empty "
            "name switches it off."
        )
    else:
        contrast = "Named askers of these routes cross namespaces too: the routes have no scope filter at all."
    return Check(
        kind, title, "found",
        f"{count(len(blank), 'query has', 'queries have')} no namespace or no principal; "
        f"{count(hits['query_id'].nunique(), 'was', 'were')} answered from up to "
        f"{count(hits['namespaces'].max(), 'namespace')} ({listed(hits['query_id'])}). {contrast}",
        "Refuse a request without an authenticated principal, and make an empty filter match nothing. Test it: a query "
        "with an empty namespace must return nothing.",
        "Whether the answers used what was returned is not shown here.",
        _sorted(evidence, ["named_askers_that_cross", "namespaces"], [True, False]),
    )  # fmt: skip


def _no_principal(queries: pd.DataFrame) -> pd.Series:
    """Tell which queries have no principal, where principals are recorded at all."""
    return nobody(queries["principal"]) & bool(queries["principal"].notna().any())


def _reach(rows: pd.DataFrame) -> pd.DataFrame:
    """Count, for every route, its items, the namespaces they come from, and the items of others."""
    foreign = rows["scope"].eq(False).fillna(False)
    table = rows.assign(foreign=foreign.astype(int)).groupby(["arm", "query_id"], sort=False)
    found = table.agg(items=("rank", "size"), namespaces=("owner", "nunique"), foreign=("foreign", "sum")).reset_index()
    pairs = rows[["arm", "query_id", "owner"]].dropna().drop_duplicates()
    names = pairs.groupby(["arm", "query_id"], sort=False)["owner"].agg(listed).rename("returned_from").reset_index()
    return found.merge(names, on=["arm", "query_id"], how="left")


def ownerless(context: Context) -> Check:
    """Look for memories that belong to nobody and are returned to several askers."""
    kind, title = "ownerless", "Rows without an owner are visible to everyone"
    store = context.store
    free = store.loc[nobody(store["namespace"]), "memory_id"]
    if free.empty:
        return Check(kind, title, "clear", f"All {len(store):,} memories name the namespace they belong to.")
    if len(free) == len(store) and nobody(context.records.queries["namespace"]).all():
        return Check(
            kind, title, "unknown",
            "Neither memories nor queries have a namespace: nothing has an owner here, so a row that lost its owner "
            "cannot be told from the others.",
        )  # fmt: skip
    ratio = f"{share(len(free), len(store))} memories {'has' if len(free) == 1 else 'have'} no owner"
    if not context.has_routes:
        return Check(kind, title, "unknown", f"{ratio} ({listed(free)}); there are no rankings that show who saw them.")
    rows = context.rows[context.rows["memory_id"].isin(free)]
    grouped = rows.groupby("memory_id", sort=False)
    evidence = grouped.agg(
        namespaces=("asker", "nunique"),
        queries=("query_id", "nunique"),
        best_rank=("rank", "min"),
        arms=("arm", lambda names: listed(names)),
        seen_by=("asker", lambda names: listed(names.dropna())),
    ).reset_index()
    if evidence.empty:
        return Check(kind, title, "clear", f"{ratio} ({listed(free)}), and no route returned one.", _OWNER_ADVICE)
    several = evidence[evidence["namespaces"] > 1]
    most = int(evidence["namespaces"].max())
    if len(several):
        whom = f"{len(several):,} of them to askers of more than one namespace (up to {most:,})"
    else:
        whom = "each to askers of one namespace only" if most else "to askers without a namespace"
    return Check(
        kind, title, "found",
        f"{ratio}. {count(len(evidence), 'was', 'were')} returned ({listed(evidence['memory_id'])}), {whom}. Unless a "
        f"label settles it, scope is unresolved: nothing on record says whose they are. {_SCOPE_COLUMN}",
        _OWNER_ADVICE,
        "Some may be meant for all: then give them a namespace of their own and a policy label that says so.",
        _sorted(evidence, ["namespaces", "queries"], [False, False]),
    )  # fmt: skip


_OWNER_ADVICE = "Give every row an owner when it is written, and let a missing owner match nobody."
_SCOPE_COLUMN = (
    "Labels that state scope for some pairs must state it for every pair they list: in a column scope an empty cell is "
    "unresolved, even where both namespaces are known."
)


def late_filter(context: Context) -> Check:
    """Look for routes that are shorter than k while the asker's namespace holds more.

    An arm that returns another owner's memories to a named asker has no scope filter that could run late: it is left
    out. An arm whose routes are all of one length shows no cut: that length is its k, whatever depth is stated.
    """
    kind, title = "late_filter", "The scope filter runs after the top-k cut"
    if not context.has_routes:
        return Check(kind, title, "unknown", "There are no rankings.")
    routes = _lengths(context)
    if routes.empty:
        return Check(kind, title, "unknown", "No query names a namespace, so nothing can be said of its size.")
    if nobody(context.store["namespace"]).all():
        return Check(kind, title, "unknown", "No memory names its owner, so nobody knows what a namespace holds.")
    open_arms = _unfiltered(context)
    exempt = (
        f" Not counted are routes of {listed(open_arms, 3)}: named askers receive other owners' memories there, so no "
        f"scope filter could have run late."
        if len(open_arms)
        else ""
    )
    routes = routes[~routes["arm"].isin(open_arms)]
    pure = routes["strangers"] == 0
    short = routes[pure & (routes["items"] < routes["k"])].copy()
    short["left_behind"] = _left_behind(context, short) if len(short) else pd.Series(dtype="int64")
    hits = short[short["left_behind"] > 0]
    if hits.empty:
        return Check(
            kind, title, "clear",
            "No route that stays within the asker's namespace ends before its k while that namespace holds more."
            + exempt,
        )  # fmt: skip
    per_arm = hits.groupby("arm", sort=False).size()
    asked = routes.groupby("arm", sort=False).size()
    worst = str((per_arm / asked.reindex(per_arm.index)).idxmax())
    lost = (hits["k"] - hits["items"]).clip(upper=hits["left_behind"])
    return Check(
        kind, title, "found",
        f"{count(len(hits), 'route holds', 'routes hold')} only the asker's memories and "
        f"{'ends' if len(hits) == 1 else 'end'} "
        "before k although the namespace holds more that nothing known forbids; most often those of "
        f"{worst} ({share(per_arm[worst], asked[worst])}). On average {lost.mean():.1f} places stayed empty."
        f"{exempt}",
        "Filter first, then take the k nearest (a filtered search, or an index per namespace). Until then search "
        "deeper than k and cut after filtering.",
        f"A score threshold, a router, or a filter on another field leaves the same trace; {_k_from(context, routes)} "
        f"{_in_force(context)}".strip(),
        _sorted(hits[["arm", "query_id", "k", "items", "left_behind"]], ["left_behind"], [False]),
    )  # fmt: skip


def _k_from(context: Context, routes: pd.DataFrame) -> str:
    """Say where k comes from."""
    if context.top_k is None:
        return "and k is each arm's longest route (state it with --top-k)."
    even = (
        " An arm whose routes are all of one length is held to that length."
        if (routes["k"] < context.top_k).any()
        else ""
    )
    return f"and k is as stated.{even}"


def _in_force(context: Context) -> str:
    """Say what decided whether a memory left behind is still in force."""
    if not context.store["state"].isin(_OUTDATED).any():
        return ""
    if context.intake.lifecycle_from_state:
        return "Memories that their state and the question's intent rule out are not counted as left behind."
    return (
        "Outdated and forgotten memories count as left behind unless a label says that they are no longer in force; "
        "--lifecycle-from-state reads it from their states."
    )


def _unfiltered(context: Context) -> pd.Series:
    """Name the arms that return another owner's memories to an asker who is named; a label may share a memory."""
    rows, queries = context.rows, context.records.queries
    unnamed = queries.loc[nobody(queries["namespace"]) | _no_principal(queries), "query_id"]
    foreign = rows["owner"].notna() & (rows["owner"] != rows["asker"]) & ~rows["scope"].fillna(False).astype(bool)
    return rows.loc[foreign & ~rows["query_id"].isin(unnamed), "arm"].drop_duplicates()


def _lengths(context: Context) -> pd.DataFrame:
    """Return length and k of every route of a named asker; a query that an arm gave nothing has length 0."""
    rankings = context.records.rankings
    assert rankings is not None
    arms = list(dict.fromkeys(rankings["arm"]))
    queries = context.records.queries
    asked = queries.loc[~nobody(queries["namespace"]), ["query_id", "namespace"]]
    full = asked.merge(pd.DataFrame({"arm": pd.Series(arms, dtype="str")}), how="cross")
    rows = context.rows
    strange = (rows["owner"].notna() & (rows["owner"] != rows["asker"])) | rows["ghost"]
    counts = rows.assign(strangers=strange.astype(int)).groupby(["arm", "query_id"])
    found = counts.agg(items=("rank", "size"), strangers=("strangers", "sum")).reset_index()
    full = full.merge(found, on=["arm", "query_id"], how="left").fillna({"items": 0, "strangers": 0})
    held = full["items"].where(full["items"] > 0).groupby(full["arm"])
    longest = held.transform("max").fillna(0)
    even = held.transform("min") == longest  # not so where an arm gave named askers nothing
    full["k"] = longest if context.top_k is None else longest.where(even, context.top_k)
    return full.astype({"items": "int64", "strangers": "int64", "k": "int64"})


def _left_behind(context: Context, routes: pd.DataFrame) -> pd.Series:
    """Count what the asker's namespace held, was not returned, and is not known to be forbidden."""
    store = context.store
    own = store.assign(moment=moments(store["time"]))[["memory_id", "namespace", "moment", "state"]]
    queries = context.records.queries
    when = queries.assign(asked=moments(queries["time"]))[["query_id", "asked", "intent"]]
    wanted = routes[["query_id", "namespace"]].drop_duplicates()
    pairs = wanted.merge(when, on="query_id").merge(own, on="namespace")
    # A time that cannot be read hides nothing.
    pairs = pairs[~(pairs["moment"] >= pairs["asked"])].reset_index(drop=True)
    known = PairLabels.from_records(context.records)
    labels = known.lookup(
        encode(pairs["query_id"], known.queries, "queries", "query_id"),
        encode(pairs["memory_id"], known.memories, "memories", "memory_id"),
    )
    if context.intake.lifecycle_from_state:  # take_in derived it for the pairs that are listed, ranked or exposed
        labels["lifecycle"] = labels["lifecycle"].fillna(logic.lifecycle(pairs["state"], pairs["intent"]))
    forbidden = labels[["scope", "policy", "lifecycle"]].eq(False).fillna(False).any(axis=1)
    pairs = pairs.loc[~forbidden.to_numpy(bool), ["query_id", "memory_id"]]
    held = pairs.groupby("query_id").size()
    returned = context.rows[["arm", "query_id", "memory_id"]].merge(pairs, on=["query_id", "memory_id"])
    taken = returned.groupby(["arm", "query_id"]).size()
    place = pd.MultiIndex.from_frame(routes[["arm", "query_id"]])
    left = routes["query_id"].map(held).fillna(0).to_numpy() - taken.reindex(place).fillna(0).to_numpy()
    return pd.Series(left.astype("int64"), index=routes.index)


# --- what is still in force ----------------------------------------------------------------------------------------


def superseded(context: Context) -> Check:
    """Look for superseded facts that are returned beside or above what corrects them."""
    kind, title = "superseded", "Superseded facts are returned beside or above their correction"
    source = context.intake.states_from
    if source == "none":
        return Check(
            kind, title, "unknown",
            "Memories have neither a state nor a supersedes link, so nothing says which facts were corrected.",
            "Record supersedes links when a fact is corrected; they cost one id.",
        )  # fmt: skip
    if not context.has_routes:
        return Check(kind, title, "unknown", "There are no rankings.")
    old = context.rows[context.rows["state"].eq("superseded") & context.rows["intent"].ne("history")]
    number = int(context.store["state"].eq("superseded").sum())
    told = "states were derived from supersedes links" if source == "links" else "states are as the memories give them"
    if old.empty:
        return Check(
            kind, title, "clear",
            f"None of the {number:,} superseded memories was returned to a question that is not about the past "
            f"({told}).",
        )  # fmt: skip
    evidence = _beside(old, context)
    loose = int((evidence["stands"] == "unlinked").sum())
    evidence = evidence[evidence["stands"] != "unlinked"].reset_index(drop=True)
    apart = f" {loose:,} more superseded items have no link that names their correction." if loose else ""
    if evidence.empty:
        return Check(
            kind, title, "unknown",
            f"Superseded memories were returned {loose:,} times to questions that are not about the past ({told}), "
            f"but no supersedes link says what corrects them. They count as lifecycle violations where labels say so.",
            "Record supersedes links when a fact is corrected; they cost one id.",
        )  # fmt: skip
    counts = evidence["stands"].value_counts()
    parts = [f"{counts[word]:,} {phrase}" for word, phrase in _STANDS.items() if word in counts]
    asked = context.rows.loc[context.rows["intent"].ne("history"), "query_id"].nunique()
    return Check(
        kind, title, "found",
        f"Superseded memories stand in routes of {share(evidence['query_id'].nunique(), asked)} queries whose "
        f"question is not about the past: {'; '.join(parts)} ({told}).{apart}",
        "Drop superseded memories unless the question is about the past, and rank a correction above what it corrects. "
        "Keep them for history: deleting them would break those answers.",
        "" if context.records.queries["intent"].notna().all() else "Queries without an intent count as not about the "
        "past.",
        evidence,
    )  # fmt: skip


_STANDS = {
    "above": "above the correction",
    "beside": "beside it, further down",
    "alone": "without it",
}


def _beside(old: pd.DataFrame, context: Context) -> pd.DataFrame:
    """Pair every superseded row with the best-ranked of its corrections in the same route."""
    links = _descendants(context.intake.links)
    route = context.rows[["arm", "query_id", "memory_id", "rank"]]
    pairs = old[["arm", "query_id", "memory_id", "rank"]].merge(links, left_on="memory_id", right_on="old")
    pairs = pairs.merge(
        route.rename(columns={"memory_id": "new", "rank": "correction_rank"}), on=["arm", "query_id", "new"]
    )
    best = pairs.sort_values("correction_rank").drop_duplicates(["arm", "query_id", "memory_id"])
    key = ["arm", "query_id", "memory_id"]
    table = old[[*key, "rank", "intent"]].merge(best[[*key, "new", "correction_rank"]], on=key, how="left")
    linked = table["memory_id"].isin(links["old"])
    first = links.drop_duplicates("old").set_index("old")["new"]
    table["correction"] = table["new"].where(table["new"].notna(), table["memory_id"].map(first))
    table["correction_rank"] = table["correction_rank"].astype("Int64")
    above = (table["rank"] < table["correction_rank"]).fillna(False).to_numpy(bool)
    absent = table["correction_rank"].isna().to_numpy()
    table["stands"] = np.select([~linked & absent, absent, above], ["unlinked", "alone", "above"], "beside")
    table["intent"] = table["intent"].fillna("not given")
    order = table["stands"].map({word: place for place, word in enumerate(_STANDS)})
    table = table.assign(order=order).sort_values(["order", "arm", "query_id", "rank"], kind="stable")
    return table[
        ["arm", "query_id", "memory_id", "rank", "correction", "correction_rank", "stands", "intent"]
    ].reset_index(drop=True)


def _descendants(links: pd.DataFrame) -> pd.DataFrame:
    """Follow chains of corrections: every later version corrects every earlier one."""
    every = links[["new", "old"]]
    step = every
    while len(step):
        further = step.merge(links, left_on="new", right_on="old", suffixes=("", "_next"))
        step = pd.DataFrame({"new": further["new_next"], "old": further["old"]})
        step = step[step["new"] != step["old"]].drop_duplicates()
        fresh = step.merge(every, how="left", indicator=True)["_merge"].eq("left_only").to_numpy()
        step = step[fresh]
        every = pd.concat([every, step], ignore_index=True)
    return every.reset_index(drop=True)


def stale_twins(context: Context) -> Check:
    """Look for near duplicates of an outdated fact that nobody marked."""
    kind, title = "stale_twins", "Stale twins: copies of an outdated fact were never marked"
    store = context.store
    if context.intake.states_from == "none":
        return Check(kind, title, "unknown", "Memories have neither a state nor a supersedes link.")
    if store["text"].isna().all():
        return Check(kind, title, "unknown", "The memories carry no text, so copies cannot be recognised.")
    pairs = _near_duplicates(context)
    outdated = int(store["state"].isin(_OUTDATED).sum())
    if pairs.empty:
        return Check(
            kind, title, "clear",
            f"None of the {outdated:,} outdated memories has a near duplicate that is still taken as current.",
            limits=_TWIN_LIMITS,
        )  # fmt: skip
    returned = pd.Series(0, index=pairs.index)
    if context.has_routes:
        now = context.rows[context.rows["intent"].ne("history")]
        returned = pairs["twin"].map(now.groupby("memory_id").size()).fillna(0).astype("int64")
    evidence = pairs.assign(routes=returned.to_numpy())
    seen = int((evidence.drop_duplicates("twin")["routes"] > 0).sum())
    return Check(
        kind, title, "found",
        f"{count(evidence['twin'].nunique(), 'memory repeats', 'memories repeat')} one of the {outdated:,} outdated "
        f"memories of the same owner almost word for word and nobody marked it ({listed(evidence['twin'])}); {seen:,} "
        f"{'was' if seen == 1 else 'were'} returned to questions that are not about the past.",
        "When a fact is superseded or forgotten, mark or remove its copies too: look for near duplicates at that "
        "moment, and have a person confirm.",
        _TWIN_LIMITS,
        _sorted(evidence, ["routes", "similarity"], [False, False]),
    )  # fmt: skip


_CELLS = 10_000_000
_OUTDATED = ("superseded", "stale", "forgotten")
_TWIN_LIMITS = (
    "Copies are recognised by their wording (cosine of character n-grams at least "
    f"{TWIN_SIMILARITY:g}, the same numbers, the same owner). A paraphrase is not found."
)


def _near_duplicates(context: Context) -> pd.DataFrame:
    """Compare outdated memories with the unmarked ones of the same owner, one owner at a time."""
    store = context.store[context.store["text"].notna()].reset_index(drop=True)
    # A text of megabytes says what it says in its beginning; its n-grams would fill the memory.
    text = store["text"].astype("str").str.slice(0, 20_000).str.normalize("NFKC").str.casefold()
    numbers = text.str.findall(r"\d+(?:[.,]\d+)*").map(" ".join)
    links = _descendants(context.intake.links)
    later = set(zip(links["old"], links["new"], strict=True))
    rows = []
    for found_at in store.groupby(store["namespace"].fillna(""), sort=False).indices.values():
        place = np.asarray(found_at)
        state = store["state"].to_numpy()[place]
        old = place[np.isin(state, _OUTDATED)]
        open_ = place[~np.isin(state, _OUTDATED)]
        if len(old) and len(open_):
            rows += _similar(text, old, open_)
    ids = store["memory_id"].to_numpy()
    found = [
        (ids[a], ids[b], store["state"].iloc[a], cosine, store["text"].iloc[a], store["text"].iloc[b])
        for a, b, cosine in rows
        if numbers.iloc[a] == numbers.iloc[b] and (ids[a], ids[b]) not in later
    ]
    columns = ["memory_id", "twin", "state", "similarity", "text", "twin_text"]
    return pd.DataFrame(found, columns=columns)


def _similar(text: pd.Series, old: np.ndarray, others: np.ndarray) -> list[tuple[int, int, float]]:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.preprocessing import normalize

    grams = CountVectorizer(analyzer="char_wb", ngram_range=(3, 5), binary=True, lowercase=False)
    try:
        both = normalize(grams.fit_transform(text.iloc[np.concatenate([old, others])]))
    except ValueError:  # nothing but spaces
        return []
    right = both[len(old) :].T.tocsr()
    step = max(1, _CELLS // len(others))  # common n-grams fill the product, so it is made in strips
    found = []
    for first in range(0, len(old), step):
        product = (both[first : min(first + step, len(old))] @ right).tocoo()
        near = product.data >= TWIN_SIMILARITY
        cells = zip(product.row[near] + first, product.col[near], product.data[near], strict=True)
        found += [(int(old[a]), int(others[b]), float(cosine)) for a, b, cosine in cells]
    return found


def ghosts(context: Context) -> Check:
    """Look for ids that a route returned, or a prompt held, though the store no longer has them."""
    kind, title = "ghosts", "Ghosts: ids are returned that the store no longer holds"
    parts = []
    if context.has_routes:
        rows = context.rows[context.rows["ghost"]]
        parts.append(rows[["memory_id", "arm", "query_id", "rank"]].assign(place="route"))
    ledger = context.records.ledger
    if ledger is not None:
        held = ledger["exposed"].fillna(False) | ledger["retrieved"].fillna(False)
        rows = ledger[ledger["memory_id"].isin(context.intake.ghosts) & held]
        place = rows["exposed"].fillna(False).map({True: "prompt", False: "route"})
        parts.append(rows[["memory_id", "arm", "query_id"]].assign(place=place))
    if not parts:
        return Check(kind, title, "unknown", "There are neither rankings nor a ledger.")
    seen = pd.concat(parts, ignore_index=True)
    if seen.empty:
        return Check(kind, title, "clear", f"Every id returned is one of the {len(context.store):,} stored memories.")
    grouped = seen.groupby("memory_id", sort=False)
    evidence = grouped.agg(
        queries=("query_id", "nunique"),
        arms=("arm", lambda names: listed(names)),
        in_queries=("query_id", lambda names: listed(names)),
    ).reset_index()
    prompts = (
        seen[seen["place"] == "prompt"].drop_duplicates(["memory_id", "query_id", "arm"]).groupby("memory_id").size()
    )
    evidence["prompts"] = evidence["memory_id"].map(prompts).fillna(0).astype("int64")
    evidence["lifecycle"] = _ghost_lifecycle(context, evidence["memory_id"])
    return Check(
        kind, title, "found",
        f"{count(len(evidence), 'id is', 'ids are')} in routes or prompts of "
        f"{count(seen['query_id'].nunique(), 'query', 'queries')} though the store does not hold "
        f"{'it' if len(evidence) == 1 else 'them'} ({listed(evidence['memory_id'])})."
        " The lifecycle is unresolved here: the records do not say whether it was deleted, expired or moved.",
        "Delete from every index when you delete from the store, and check at retrieval that an id still exists. "
        "Until that is settled, companion score refuses these records.",
        "A store exported later than the log was written makes ghosts of its own.",
        _sorted(evidence, ["prompts", "queries"], [False, False]),
    )  # fmt: skip


def _ghost_lifecycle(context: Context, ids: pd.Series) -> pd.Series:
    labels = context.records.labels
    ended: set[str] = set()
    if "lifecycle" in labels:
        ended = set(labels.loc[labels["lifecycle"].eq(False).fillna(False), "memory_id"])
    return ids.isin(ended).map({True: "ended for some queries", False: "unresolved"})


def _sorted(table: pd.DataFrame, columns: list[str], ascending: list[bool]) -> pd.DataFrame:
    return table.sort_values(columns, ascending=ascending, kind="stable", ignore_index=True)


CHECKS: tuple[Callable[[Context], Check], ...] = (
    wildcard, ownerless, late_filter, superseded, stale_twins, ghosts,
)  # fmt: skip
