"""Checks of who may see what: other owners' memories, forbidden ones, empty names, ownerless rows, late filters."""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion import logic
from companion.audit.context import ROUTE, Context, Finding, check, clear, count, found, known, listed, per_route, share
from companion.audit.context import unknown as unseen
from companion.audit.intake import among, lifecycle, moments, states
from companion.scoring import label_ranked

SHOWN = [*ROUTE, "rank", "memory_id"]
_PAIRS = 500_000


def returned(context: Context, bad: np.ndarray, one: str, many: str, advice: str, columns: list[str]) -> Finding:
    """Report rows that must not have been returned, with their share of every route."""
    rows = context.rows
    if not bad.any():
        return clear(f"None of {count(len(rows), 'returned item')} {one}.")
    evidence = rows.loc[bad, [*SHOWN, *columns, "exposed"]]
    for name in evidence.select_dtypes("datetimetz"):
        evidence[name] = evidence[name].dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    says = f"{share(bad.sum(), len(rows))} returned items {one if bad.sum() == 1 else many} ({per_route(rows, bad)})."
    reached = f" {int(evidence['exposed'].sum()):,} of them reached a prompt." if len(context.exposures) else ""
    return found(says + reached, advice, "", evidence)


@check("Another owner's memories are returned")
def wrong_scope(context: Context) -> Finding:
    """Look for memories of another owner that were returned."""
    if context.rows["scope"].isna().all():
        return unseen("Neither labels nor namespaces say whose any returned item is.")
    return returned(
        context, known(context.rows["scope"], False), "belongs to another owner", "belong to another owner",
        "Filter by the authenticated asker's namespace before the search, in the store itself. If some memories are "
        "meant for everybody, say so once: a column shared in memories, or --shared NAMESPACE.", ["asker", "owner"],
    )  # fmt: skip


@check("Memories that policy forbids are returned")
def policy(context: Context) -> Finding:
    """Look for memories that were returned although policy is known to forbid them."""
    if context.rows["policy"].isna().all():
        advice = "Label a sample of returned items for policy; the list of labels to settle first says which."
        return unseen("No label says of any returned item whether policy allows it.", advice)
    return returned(
        context, known(context.rows["policy"], False) & ~forgotten_rows(context), "is forbidden by policy",
        "are forbidden by policy", "Apply the policy of asker and purpose when candidates are chosen, not when the "
        "answer is written: what is in the prompt can be said.", ["principal"],
    )  # fmt: skip


def forgotten_rows(context: Context) -> np.ndarray:
    """Mark returned rows of forgotten memories, unless the question is known to be about the forgetting itself."""
    rows = context.rows
    return (rows["state"].eq("forgotten") & ~(rows["asks"].eq("past") & known(rows["policy"], True))).to_numpy(bool)


@check("An empty principal or namespace acts as a wildcard", routes=False)
def wildcard(context: Context) -> Finding:
    """Look for askers without a name whose routes range over namespaces."""
    queries, blank = context.records.queries, context.unnamed
    if queries["namespace"].isna().all():
        lost = "an asker whose name was lost cannot be told from records that never held one"
        return unseen(f"No query has a namespace, so {lost}.")
    if blank.empty:
        also = "and a principal" if queries["principal"].notna().any() else "(principals are not recorded)"
        return clear(f"Every query names a namespace {also}.")
    told = f"{count(len(blank), 'query has', 'queries have')} no namespace or no principal"
    if not context.has_routes:
        return unseen(f"{told}, and no rankings show what was returned.")
    routes, nameless = _reach(context.rows, blank), set(queries.loc[queries["namespace"].isna(), "query_id"])
    empty = routes["query_id"].isin(nameless)
    hits = routes.assign(empty=np.where(empty, "namespace", "principal"))
    hits = hits[np.where(empty, routes["namespaces"] > 1, routes["foreign"] > 0)]
    if hits.empty:
        quiet = f"{told}; no such query was answered from a namespace that is not its own."
        return clear(quiet, "Refuse such requests, rather than searching without a filter.")
    hits = hits.assign(named_askers_that_cross=hits["arm"].map(_crossing_share(context)))
    evidence = hits[[*ROUTE, "empty", "namespaces", "items", "named_askers_that_cross", "returned_from"]]
    return found(
        f"{told}; {count(hits['query_id'].nunique(), 'was', 'were')} answered from up to "
        f"{count(hits['namespaces'].max(), 'namespace')} ({listed(hits['query_id'])}). "
        f"{_contrast(hits['named_askers_that_cross'])}",
        "Refuse a request without an authenticated principal, and make an empty filter match nothing. Test it: a query "
        "with an empty namespace must return nothing.", "Whether the answers used what was returned is not shown here.",
        evidence.sort_values(["named_askers_that_cross", "namespaces"], ascending=[True, False]),
    )  # fmt: skip


def _contrast(crossing: pd.Series) -> str:
    if crossing.isna().all():
        return "No named asker used these routes, so whether they filter for those that have a name is not shown."
    if (crossing.fillna(0) < 0.5).any():
        own = "On the same routes most named askers receive their own memories only"
        return f"{own}, so the filter works and the empty name switches it off."
    return "Named askers of these routes cross namespaces too: the routes have no scope filter at all."


def _crossing_share(context: Context) -> pd.Series:
    """Return the share of named askers' routes that hold another owner's memories, by arm."""
    rows = context.rows[~among(context.rows["query_id"], context.unnamed)]
    foreign = pd.Series(known(rows["scope"], False), index=rows.index)
    return foreign.groupby([rows["arm"], rows["query_id"]]).any().groupby(level="arm").mean()


def _reach(rows: pd.DataFrame, queries: pd.Series) -> pd.DataFrame:
    """Count, for the routes of some queries, their items, the namespaces they come from, and the items of others."""
    rows = rows[rows["query_id"].isin(queries)]
    table = rows.assign(foreign=known(rows["scope"], False)).groupby(ROUTE, sort=False)
    reach = table.agg(items=("rank", "size"), namespaces=("owner", "nunique"), foreign=("foreign", "sum")).reset_index()
    pairs = rows[[*ROUTE, "owner"]].dropna().drop_duplicates()
    names = pairs.groupby(ROUTE, sort=False)["owner"].agg(listed).rename("returned_from").reset_index()
    return reach.merge(names, on=ROUTE, how="left")


_OWNER_ADVICE = (
    "Give every row an owner when it is written, and let a missing owner match nobody. If some are meant for "
    "everybody, say so once: a column shared in memories."
)


@check("Rows without an owner are visible to everyone", routes=False)
def ownerless(context: Context) -> Finding:
    """Look for memories that belong to nobody and are returned."""
    store = context.store
    common = known(store["shared"], True) if "shared" in store else False
    free = store.loc[store["namespace"].isna() & ~np.asarray(common), "memory_id"]
    if free.empty:
        return clear(f"Each of {count(len(store), 'memory', 'memories')} names its owner.")
    if len(free) == len(store):
        return unseen("No memory names its owner, so a row that lost its owner cannot be told from the others.")
    ratio = f"{share(len(free), len(store))} memories {'has' if len(free) == 1 else 'have'} no owner"
    if not context.has_routes:
        return unseen(f"{ratio} ({listed(free)}); no rankings show who saw them.")
    if context.intake.from_log == "said":
        why = "the store was made out of the log, which names the owners that it happens to know"
        return unseen(f"{ratio}, but {why}.", "Give the audit an export of the real store.")
    bad = among(context.rows["memory_id"], free)
    grouped = context.rows[bad].groupby("memory_id", sort=False)
    evidence = grouped.agg(
        namespaces=("asker", "nunique"), queries=("query_id", "nunique"), best_rank=("rank", "min"),
        arms=("arm", listed), seen_by=("asker", lambda names: listed(names.dropna())),
    ).reset_index()  # fmt: skip
    if evidence.empty:
        return clear(f"{ratio} ({listed(free)}), and no route returned one.", _OWNER_ADVICE)
    several, most = int((evidence["namespaces"] > 1).sum()), int(evidence["namespaces"].max())
    whom = f"{several:,} of them to askers of more than one namespace (up to {most:,})" if several else (
        "each to askers of one namespace only" if most else "to askers without a namespace")  # fmt: skip
    return found(
        f"{ratio}; {count(len(evidence), 'was', 'were')} returned ({per_route(context.rows, bad)}), {whom}. Unless a "
        "label settles it, scope is unresolved: nothing on record says whose they are.", _OWNER_ADVICE,
        "Labels that state scope for some pairs must state it for every pair they list: in a column scope an empty "
        "cell is unresolved, even where both namespaces are known.",
        evidence.sort_values(["namespaces", "queries"], ascending=False, kind="stable"),
    )  # fmt: skip


# --- the late filter -----------------------------------------------------------------------------------------------


@check("The scope filter runs after the top-k cut")
def late_filter(context: Context) -> Finding:
    """Look for routes that are shorter than k while the asker's namespace holds more.

    An arm that returns another owner's memories to a named asker has no scope filter that could run late: it is left
    out. An arm whose routes are all of one length shows no cut: that length is its k, whatever depth is stated.
    """
    if context.records.queries["namespace"].isna().all():
        return unseen("No query names a namespace, so nothing can be said of its size.")
    if context.store["namespace"].nunique() < 2:
        return unseen("The store names fewer than two owners, so a scope filter would have nothing to take out.")
    routes, open_arms = _lengths(context), _unfiltered(context)
    routes = routes[~routes["arm"].isin(open_arms)]
    why = "named askers receive other owners' memories there, so no scope filter could have run late"
    exempt = f" Not counted are routes of {listed(open_arms, 3)}: {why}." if len(open_arms) else ""
    held = routes["namespace"].map(context.store["namespace"].value_counts()).astype("float64")
    if len(routes) and not (held > routes["items"]).any():
        small = "No namespace holds more than its routes returned, so a filter after the cut would leave no trace."
        return unseen(small + exempt)
    short = routes[(routes["strangers"] == 0) & (routes["items"] < routes["k"])].copy()
    short["left_behind"] = _left_behind(context, short)
    hits = short[short["left_behind"] > 0]
    if hits.empty:
        quiet = "No route that stays within the asker's namespace ends before its k while that namespace holds more."
        return clear(quiet + exempt)
    places = (hits["k"] - hits["items"]).clip(upper=hits["left_behind"]).mean()
    bad = pd.MultiIndex.from_frame(routes[ROUTE]).isin(pd.MultiIndex.from_frame(hits[ROUTE]))
    verbs = ("holds", "ends") if len(hits) == 1 else ("hold", "end")
    return found(
        f"{share(len(hits), len(routes))} routes {verbs[0]} only the asker's memories and {verbs[1]} before k although "
        f"the namespace holds more that nothing known forbids ({per_route(routes, bad)}). On average {places:.1f} "
        f"{'place' if places == 1 else 'places'} stayed empty.{exempt}",
        "Filter first, then take the k nearest (a filtered search, or an index per namespace). Until then search "
        "deeper than k and cut after filtering.", _late_limits(context, routes),
        hits[[*ROUTE, "k", "items", "left_behind"]].sort_values("left_behind", ascending=False, kind="stable"),
    )  # fmt: skip


def _late_limits(context: Context, routes: pd.DataFrame) -> str:
    """Say where k comes from, and what decided whether a memory left behind is still in force."""
    even = (
        " An arm whose routes are all of one length is held to it."
        if (routes["k"] < (context.top_k or 0)).any()
        else ""
    )
    k = "each arm's longest route (state it with --top-k)" if context.top_k is None else "as stated"
    said = f"A score threshold, a router, or a filter on another field leaves the same trace; and k is {k}.{even}"
    if not context.store["state"].isin(["superseded", "stale"]).any():
        return said
    if context.intake.lifecycle_from_state:
        return f"{said} Memories that their state and the question's intent rule out are not counted as left behind."
    return (
        f"{said} Outdated memories count as left behind unless a label says that they are no longer in force; "
        "--lifecycle-from-state reads it from their states."
    )


def _strange(rows: pd.DataFrame) -> pd.Series:
    """Mark another owner's memories; a label, or the memory itself, may share them."""
    return rows["owner"].notna() & (rows["owner"] != rows["asker"]) & ~known(rows["scope"], True)


def _unfiltered(context: Context) -> pd.Series:
    """Name the arms that return another owner's memories to an asker who is named."""
    rows = context.rows
    return rows.loc[_strange(rows) & ~among(rows["query_id"], context.unnamed), "arm"].drop_duplicates()


def _lengths(context: Context) -> pd.DataFrame:
    """Return length and k of every route of a named asker; a query that an arm answered with nothing has length 0."""
    assert context.per_query is not None
    queries, rows = context.records.queries, context.rows
    full = context.per_query[ROUTE].merge(queries.loc[queries["namespace"].notna(), ["query_id", "namespace"]])
    counts = rows.assign(strangers=_strange(rows) | rows["ghost"]).groupby(ROUTE)
    sizes = counts.agg(items=("rank", "size"), strangers=("strangers", "sum")).reset_index()
    full = full.merge(sizes, on=ROUTE, how="left").fillna({"items": 0, "strangers": 0})
    held = full["items"].where(full["items"] > 0).groupby(full["arm"])
    longest = held.transform("max").fillna(0)
    even = held.transform("min") == longest  # not so where an arm gave named askers nothing
    full["k"] = longest if context.top_k is None else longest.where(even, context.top_k)
    return full.astype({"items": "int64", "strangers": "int64", "k": "int64"})


def _left_behind(context: Context, routes: pd.DataFrame) -> pd.Series:
    """Count what the asker's namespace held, was not returned, and is not known to be forbidden."""
    store, queries = context.store, context.records.queries
    own = store.assign(moment=moments(store["time"]))[["memory_id", "namespace", "moment"]]
    asked = queries.assign(asked=moments(queries["time"]))[["query_id", "namespace", "asked"]]
    wanted = asked[among(asked["query_id"], routes["query_id"])]
    size = wanted["namespace"].map(own["namespace"].value_counts()).astype("float64").fillna(0).cumsum() // _PAIRS
    parts = [_allowed(context, part.merge(own, on="namespace")) for _, part in wanted.groupby(size)]
    pairs = pd.concat(parts) if parts else pd.DataFrame(columns=["query_id", "memory_id"])
    held = routes["query_id"].map(pairs.groupby("query_id").size()).astype("float64").fillna(0).to_numpy()
    taken = context.rows[SHOWN].merge(pairs, on=["query_id", "memory_id"]).groupby(ROUTE).size()
    left = held - taken.reindex(pd.MultiIndex.from_frame(routes[ROUTE])).fillna(0).to_numpy()
    return pd.Series(left.astype("int64"), index=routes.index)


def _allowed(context: Context, pairs: pd.DataFrame) -> pd.DataFrame:
    """Keep the pairs that existed when it was asked (a time that cannot be read hides nothing) and may be used."""
    pairs = pairs[~(pairs["moment"] >= pairs["asked"])].reset_index(drop=True)
    labels = label_ranked(context.records, pairs[["query_id", "memory_id"]])
    state = states(context.records, context.intake.links, pairs)
    if context.intake.lifecycle_from_state:  # what labels, routes or prompts hold was settled before
        labels["lifecycle"] = labels["lifecycle"].fillna(lifecycle(context.records, state, pairs))
    forgotten = state.eq("forgotten") & ~known(labels["policy"], True)
    forbidden = forgotten | labels[list(logic.AXES)].eq(False).fillna(False).any(axis=1).to_numpy(bool)
    return pairs.loc[~forbidden, ["query_id", "memory_id"]]
