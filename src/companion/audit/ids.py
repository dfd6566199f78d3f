"""Checks of ids: those that the store no longer holds, prompts that nothing retrieved, and ids that differ in form."""

from __future__ import annotations

import re
import unicodedata

import pandas as pd

from companion.audit.context import ROUTE, Context, Finding, count, known, listed, per_route, share


def ghosts(context: Context) -> Finding:
    """Look for ids that a route returned, or a prompt held, though the store no longer has them."""
    kind, title = "ghosts", "Ghosts: ids are returned that the store no longer holds"
    ledger, gone = context.records.ledger, context.intake.ghosts
    if not context.has_routes and ledger is None:
        return Finding(kind, title, "unknown", "There are neither rankings nor a ledger.")
    seen = pd.DataFrame(columns=[*ROUTE, "memory_id"])
    if context.has_routes:
        seen = context.rows.loc[context.rows["ghost"], seen.columns]
    if ledger is not None:
        held = ledger["exposed"].fillna(False) | ledger["retrieved"].fillna(False)
        seen = pd.concat([seen, ledger.loc[ledger["memory_id"].isin(gone) & held, seen.columns]], ignore_index=True)
    if seen.empty and context.intake.from_log:
        return Finding(
            kind, title, "unknown",
            "The store holds exactly what was returned, as a store made out of the log itself would: what it no longer "
            "holds cannot be known.", "Give the audit an export of the real store.",
        )  # fmt: skip
    if seen.empty:
        stored = count(len(context.store), "stored memory", "stored memories")
        return Finding(kind, title, "clear", f"Every id returned is one of {stored}.")
    grouped = seen.groupby("memory_id", sort=False)
    evidence = grouped.agg(
        queries=("query_id", "nunique"), arms=("arm", listed), in_queries=("query_id", listed)
    ).reset_index()  # fmt: skip
    prompts = context.exposures["memory_id"].value_counts()
    evidence["prompts"] = evidence["memory_id"].map(prompts).fillna(0).astype("int64")
    ended = context.records.labels
    over = ended["memory_id"][known(ended["lifecycle"], False)] if "lifecycle" in ended else pd.Series(dtype="str")
    evidence["lifecycle"] = evidence["memory_id"].isin(over).map({True: "ended for some queries", False: "unresolved"})
    routes = f" ({per_route(context.rows, context.rows['ghost'].to_numpy(bool))})" if context.has_routes else ""
    return Finding(
        kind, title, "found",
        f"{count(len(evidence), 'id is', 'ids are')} in routes or prompts of "
        f"{count(seen['query_id'].nunique(), 'query', 'queries')} though the store does not hold "
        f"{'it' if len(evidence) == 1 else 'them'}: {listed(evidence['memory_id'])}{routes}. The lifecycle is "
        "unresolved here: the records do not say whether it was deleted, expired or moved.",
        "Delete from every index when you delete from the store, and check at retrieval that an id still exists. "
        "Until that is settled, companion score refuses these records.",
        "A store exported later than the log was written makes ghosts of its own.",
        evidence.sort_values(["prompts", "queries"], ascending=False, kind="stable", ignore_index=True),
    )  # fmt: skip


def exposed_unretrieved(context: Context) -> Finding:
    """Look for memories that reached a prompt although no route retrieved them."""
    kind, title = "exposed_unretrieved", "Memories reach the prompt without having been retrieved"
    ledger = context.records.ledger
    if ledger is None or ledger["exposed"].isna().all():
        return Finding(kind, title, "unknown", "No ledger says which memories reached the prompt.")
    total = len(context.exposures)
    odd = ledger[known(ledger["exposed"], True) & known(ledger["retrieved"], False)]
    if odd.empty:
        return Finding(kind, title, "clear", f"Every one of {count(total, 'exposed memory', 'exposed memories')} was "
                       "retrieved first.")  # fmt: skip
    rows = context.described(odd[[*ROUTE, "memory_id"]].reset_index(drop=True))
    foreign, open_ = int(known(rows["scope"], False).sum()), int(rows["scope"].isna().sum())
    whose = [f"{foreign:,} of another owner"] if foreign else []
    whose += [f"{open_:,} of an owner that is unresolved"] if open_ else []
    columns = [*ROUTE, "memory_id", "asker", "owner", "scope", "policy", "lifecycle"]
    return Finding(
        kind, title, "found",
        f"{share(len(rows), total)} memories in prompts {'was' if len(rows) == 1 else 'were'} not retrieved for the "
        f"question ({per_route(context.exposures, _is_among(context.exposures, rows))}): "
        f"{', '.join(whose) or 'all of the asker'}.",
        "What a cache, a summary or an earlier turn brings into a prompt has passed no filter: send it through the "
        "same checks, with the asker of now.",
        evidence=rows[columns].assign(wrong=known(rows["scope"], False)).sort_values(
            "wrong", ascending=False, kind="stable", ignore_index=True).drop(columns="wrong"),
    )  # fmt: skip


def _is_among(table: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    key = [*ROUTE, "memory_id"]
    return pd.MultiIndex.from_frame(table[key]).isin(pd.MultiIndex.from_frame(rows[key]))


# --- forms ---------------------------------------------------------------------------------------------------------

_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff\u00ad]")


def form(name: str) -> str:
    """Return what is left of an id without case, blanks, Unicode forms, leading zeros and a decimal part of zero."""
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", name)).casefold()
    text = "".join(text.split())
    if re.fullmatch(r"[+-]?\d+(\.0*)?", text):
        return re.sub(r"\.0*$", "", text).lstrip("+").lstrip("0") or "0"
    return text


def id_forms(context: Context) -> Finding:
    """Look for ids and namespaces that differ only in the form in which they are written."""
    kind, title = "id_forms", "Ids differ only in the form in which they are written"
    records = context.records
    spaces = pd.concat([records.memories["namespace"], records.queries["namespace"]]).dropna()
    parts = [_pairs(records.memories["memory_id"], "memory_id"), _pairs(spaces, "namespace"),
             _pairs(records.queries["query_id"], "query_id")]  # fmt: skip
    evidence = pd.concat(parts, ignore_index=True)
    if evidence.empty:
        return Finding(
            kind, title, "clear", "No two ids or namespaces differ only in blanks, case, zeros or Unicode form."
        )
    loose = evidence[["one", "other"]].isin(context.intake.ghosts).any(axis=1) & evidence["column"].eq("memory_id")
    evidence["not_stored"] = loose
    names = "; ".join(f"{a!r} and {b!r}" for a, b in evidence[["one", "other"]].head(3).itertuples(index=False))
    wrong = (
        f" {count(int(loose.sum()), 'pair names', 'pairs name')} an id that the store does not hold."
        if loose.any()
        else ""
    )
    return Finding(
        kind, title, "found",
        f"{count(len(evidence), 'pair')} of ids or namespaces {'differs' if len(evidence) == 1 else 'differ'} only in "
        f"blanks, case, zeros or Unicode form ({names}{', ...' if len(evidence) > 3 else ''}).{wrong} They were not "
        "taken as the same.",
        "Write every id in one form where it enters the system, as text: 007 is not 7. Then run the audit again; "
        "ghosts and other owners' memories may vanish.",
        evidence=evidence.sort_values("not_stored", ascending=False, kind="stable", ignore_index=True),
    )  # fmt: skip


def _pairs(names: pd.Series, column: str) -> pd.DataFrame:
    """Pair each name with the first that has the same form."""
    unique = pd.Series(names.unique(), dtype="str").sort_values(ignore_index=True)
    forms = unique.map(form)
    again = forms.duplicated()
    first = unique[~again].set_axis(forms[~again])
    return pd.DataFrame({"column": column, "one": forms[again].map(first).array, "other": unique[again].array})
