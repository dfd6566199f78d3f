"""Checks of ids: those that the store no longer holds, prompts that nothing retrieved, and ids that differ in form."""

from __future__ import annotations

import pandas as pd

from companion.audit.context import ROUTE, Context, Finding, check, clear, count, found, known, listed, per_route, share
from companion.audit.context import unknown as unseen
from companion.tables.values import folded


@check("Ghosts: ids are returned that the store no longer holds", routes=False)
def ghosts(context: Context) -> Finding:
    """Look for ids that a route returned, or a prompt held, though the store no longer has them."""
    ledger, key = context.records.ledger, [*ROUTE, "memory_id"]
    parts = [context.rows[key]] if context.has_routes else []
    if ledger is not None:
        parts.append(ledger.loc[ledger["exposed"].fillna(False) | ledger["retrieved"].fillna(False), key])
    if not parts:
        return unseen("There are neither rankings nor a ledger.")
    seen = pd.concat(parts, ignore_index=True)
    seen = seen[seen["memory_id"].isin(context.intake.ghosts)]
    if seen.empty and context.intake.from_log:
        why = "The store holds exactly what was returned, as a store made out of the log itself would"
        advice = "Give the audit an export of the real store."
        return unseen(f"{why}: what it no longer holds cannot be known.", advice)
    if seen.empty:
        return clear(f"Every id returned is one of {count(len(context.store), 'stored memory', 'stored memories')}.")
    grouped = seen.groupby("memory_id", sort=False)
    evidence = grouped.agg(queries=("query_id", "nunique"), arms=("arm", listed), in_queries=("query_id", listed))
    evidence = evidence.reset_index()
    prompts = context.exposures["memory_id"].value_counts()
    evidence["prompts"] = evidence["memory_id"].map(prompts).fillna(0).astype("int64")
    ended = context.records.labels
    over = ended["memory_id"][known(ended["lifecycle"], False)] if "lifecycle" in ended else pd.Series(dtype="str")
    evidence["lifecycle"] = evidence["memory_id"].isin(over).map({True: "ended for some queries", False: "unresolved"})
    routes = f" ({per_route(context.rows, context.rows['ghost'].to_numpy(bool))})" if context.has_routes else ""
    return found(
        f"{count(len(evidence), 'id is', 'ids are')} in routes or prompts of "
        f"{count(seen['query_id'].nunique(), 'query', 'queries')} though the store does not hold "
        f"{'it' if len(evidence) == 1 else 'them'}: {listed(evidence['memory_id'])}{routes}. The lifecycle is "
        "unresolved here: the records do not say whether it was deleted, expired or moved.",
        "Delete from every index when you delete from the store, and check at retrieval that an id still exists. "
        "Until that is settled, companion score refuses these records.",
        "A store exported later than the log was written makes ghosts of its own.",
        evidence.sort_values(["prompts", "queries"], ascending=False, kind="stable"),
    )  # fmt: skip


@check("Memories reach the prompt without having been retrieved", routes=False)
def exposed_unretrieved(context: Context) -> Finding:
    """Look for memories that reached a prompt although no route retrieved them."""
    ledger, prompts, key = context.records.ledger, context.exposures, [*ROUTE, "memory_id"]
    if ledger is None or ledger["exposed"].isna().all():
        return unseen("No ledger says which memories reached the prompt.")
    odd = ledger.loc[known(ledger["exposed"], True) & known(ledger["retrieved"], False), key].reset_index(drop=True)
    if odd.empty:
        return clear(f"Every one of {count(len(prompts), 'exposed memory', 'exposed memories')} was retrieved first.")
    rows = context.described(odd)
    foreign, open_ = int(known(rows["scope"], False).sum()), int(rows["scope"].isna().sum())
    whose = [f"{foreign:,} of another owner"] if foreign else []
    whose += [f"{open_:,} of an owner that is unresolved"] if open_ else []
    bad = pd.MultiIndex.from_frame(prompts[key]).isin(pd.MultiIndex.from_frame(odd))
    return found(
        f"{share(len(rows), len(prompts))} memories in prompts {'was' if len(rows) == 1 else 'were'} not retrieved for "
        f"the question ({per_route(prompts, bad)}): {', '.join(whose) or 'all of the asker'}.",
        "What a cache, a summary or an earlier turn brings into a prompt has passed no filter: send it through the "
        "same checks, with the asker of now.", "",
        rows.sort_values("scope", kind="stable")[[*key, "asker", "owner", "scope", "policy", "lifecycle"]],
    )  # fmt: skip


# --- forms ---------------------------------------------------------------------------------------------------------

_INVISIBLE = "[\u200b-\u200f\u2060\ufeff\u00ad]"


@check("Ids differ only in the form in which they are written", routes=False)
def id_forms(context: Context) -> Finding:
    """Look for ids and namespaces that differ only in the form in which they are written."""
    records = context.records
    spaces = pd.concat([records.memories["namespace"], records.queries["namespace"]]).dropna()
    names = {"memory_id": records.memories["memory_id"], "namespace": spaces, "query_id": records.queries["query_id"]}
    evidence = pd.concat([_pairs(column, ids) for column, ids in names.items()], ignore_index=True)
    if evidence.empty:
        return clear("No two ids or namespaces differ only in blanks, case, zeros or Unicode form.")
    gone = evidence[["one", "other"]].isin(context.intake.ghosts).any(axis=1) & evidence["column"].eq("memory_id")
    wrong = f" {count(int(gone.sum()), 'pair names', 'pairs name')} an id that the store lacks." if gone.any() else ""
    some = "; ".join(f"{a!r} and {b!r}" for a, b in evidence[["one", "other"]].head(3).itertuples(index=False))
    return found(
        f"{count(len(evidence), 'pair')} of ids or namespaces {'differs' if len(evidence) == 1 else 'differ'} only in "
        f"blanks, case, zeros or Unicode form ({some}{', ...' if len(evidence) > 3 else ''}).{wrong} They were not "
        "taken as the same.",
        "Write every id in one form where it enters the system, as text: 007 is not 7. Then run the audit again; "
        "ghosts and other owners' memories may vanish.", "",
        evidence.assign(not_stored=gone).sort_values("not_stored", ascending=False, kind="stable"),
    )  # fmt: skip


def _pairs(column: str, names: pd.Series) -> pd.DataFrame:
    """Pair each name with the first that has the same form."""
    unique = pd.Series(names.unique(), dtype="str").sort_values(ignore_index=True)
    forms = pd.Series(folded(pd.Index(unique.str.replace(_INVISIBLE, "", regex=True))))
    again = forms.duplicated()
    first = unique[~again].set_axis(forms[~again])
    return pd.DataFrame({"column": column, "one": forms[again].map(first).array, "other": unique[again].array})
