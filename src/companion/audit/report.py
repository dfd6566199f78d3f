"""The audit as one standalone HTML page, with CSV files beside it.

Everything that came from the records passes through `companion.audit.cells.shown` first and through HTML escaping
afterwards, so that text in an id or a memory can neither run nor hide.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from companion import bootstrap
from companion.audit.cells import shown, shown_table, write_csv
from companion.audit.context import count
from companion.audit.core import Audit
from companion.audit.faults import listing
from companion.audit.findings import Check
from companion.book import charts, figure, interval, number
from companion.book.page import frame
from companion.book.tables import Format, table_html
from companion.errors import InputError
from companion.tables import atomic_path

_TABLES = (
    "checks",
    "unknown",
    "table_warnings",
    "axes",
    "routes",
    "intervals",
    "contrasts",
    "per_query",
    "crossing",
    "steps",
    "worst_queries",
    "unresolved",
    "unresolved_by_arm",
)
_CLIP = re.compile(r"(%23|#|id=%22|id=\")clip(\d+)")
_ROWS = 12
_EVIDENCE_ROWS = 8
_STYLE = """
.audit-check { margin: 1.5rem 0; padding: 0.9rem 1.1rem 1rem; border: 1px solid var(--companion-grid);
  border-left: 4px solid var(--companion-rule); border-radius: 4px; }
.audit-check h3 { margin: 0 0 0.4rem; overflow-wrap: anywhere; }
.audit-check p { margin: 0.5rem 0; overflow-wrap: anywhere; }
.audit-found { border-left-color: #d55e00; }
.audit-clear { border-left-color: #0072b2; }
.audit-word { font-weight: 600; }
.audit-note { color: var(--companion-muted); font-size: 0.92rem; }
.companion-page h1, .companion-page li, .companion-page > p { overflow-wrap: anywhere; }
.companion-page code { overflow-wrap: anywhere; }
/* Six intervals side by side fit the page with a little less room between them. */
@media (min-width: 48rem) {
  .companion-page table.companion-table :is(th, td):not(.gt_right) { padding-right: 0.45rem; }
}
"""
_WORDS = {"found": "Found", "clear": "Not found", "unknown": "Cannot be known"}
_ROUTE_COLUMNS = {
    "evidence_recall": "evidence recall",
    "feasible_rate": "feasible queries",
    "loss": "loss",
    "lower_bound": "violations, at least",
    "upper_bound": "violations, at most",
    "label_coverage": "label coverage",
}
_TYPED_COLUMNS = {
    "wrong_scope": "wrong scope",
    "policy_disallowed": "policy disallowed",
    "lifecycle_incompatible": "lifecycle incompatible",
    "any_violation": "queries with a violation",
    "violation_count": "violations per query",
}
_CROSSING_COLUMNS = {
    "admissible": "admissible",
    "unresolved": "unresolved",
    "inadmissible": "inadmissible",
    "wrong_scope": "wrong scope",
    "policy_disallowed": "policy disallowed",
    "lifecycle_incompatible": "lifecycle incompatible",
}


def check_out(out: str | PathLike[str]) -> None:
    """Refuse a name that would say of the report that it is something else."""
    if Path(out).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{out}: the report is an HTML page; expected a name that ends in .html or .htm")


def write(found: Audit, out: str | PathLike[str], tables: str | PathLike[str] | None = None) -> dict[str, Path]:
    """Write the report and its tables."""
    check_out(out)
    out = Path(out)
    folder = Path(tables) if tables is not None else out.with_name(f"{out.stem}-tables")
    written = {name: write_csv(table, folder / f"{name}.csv") for name, table in csv_tables(found).items()}
    for name in {*_TABLES, *(f"check_{check.kind}" for check in found.checks)} - set(written):
        (folder / f"{name}.csv").unlink(missing_ok=True)  # of an earlier report in the same place
    with atomic_path(out) as temporary:
        temporary.write_text(page(found, folder.name), encoding="utf-8", newline="\n")
    return {"report": out, **written}


def csv_tables(found: Audit) -> dict[str, pd.DataFrame]:
    """Return every table of the audit, whole and unrounded."""
    checks = pd.DataFrame(
        [(c.kind, c.title, c.outcome, c.says, c.advice, c.limits, len(c.evidence)) for c in found.checks],
        columns=["kind", "title", "outcome", "says", "advice", "limits", "rows"],
    )
    tables: dict[str, pd.DataFrame | None] = {
        "checks": checks,
        "unknown": pd.DataFrame({"cannot_be_known": found.unknown}, dtype="str"),
        "table_warnings": listing(found.intake.warnings),
        "axes": found.axes,
        "per_query": found.per_query,
        "crossing": found.crossing,
        "steps": found.steps,
        "worst_queries": found.worst,
        "unresolved": found.unresolved() if len(found.narrowing) else None,
        "unresolved_by_arm": found.narrowing,
    }
    if found.summary is not None:
        tables["routes"], tables["intervals"] = found.summary.arms, found.summary.intervals
        tables["contrasts"] = found.summary.contrasts
    tables |= {f"check_{c.kind}": _short_texts(c.evidence) for c in found.found}
    return {name: table for name, table in tables.items() if table is not None and len(table.columns) and len(table)}


def _short_texts(evidence: pd.DataFrame) -> pd.DataFrame:
    texts = [name for name in evidence.columns if name in ("text", "twin_text")]
    return evidence.assign(**{name: evidence[name].map(lambda text: shown(text, 300)) for name in texts})


def page(found: Audit, folder: str = "") -> str:
    """Return the report as one HTML document."""
    name = shown(found.records.name or "your records", 60)
    parts = [
        f"<h1>Audit of {_escape(name)}</h1>",
        _summary(found),
        "<h2 id='unknown'>What these records cannot show</h2>",
        _unknown(found),
        *_oddities(found),
        "<h2 id='failures'>Failures looked for</h2>",
        *(_check(check) for check in sorted(found.checks, key=lambda c: list(_WORDS).index(c.outcome))),
        "<h2 id='routes'>Routes at matched recall</h2>",
        _routes(found),
        "<h2 id='prompt'>What reached the prompt</h2>",
        _prompt(found),
        "<h2 id='worst'>The worst queries</h2>",
        _worst(found),
        "<h2 id='labels'>Labels that would narrow the bounds</h2>",
        _labels(found),
        "<h2 id='method'>How this was computed</h2>",
        _method(found, folder),
    ]
    made = frame(f"Audit of {name}", "\n".join(part for part in parts if part))
    return made.replace("</style>", f"{_STYLE}</style>", 1)


# --- sections ------------------------------------------------------------------------------------------------------


def _summary(found: Audit) -> str:
    records = found.records
    stored = len(records.memories) - len(found.intake.ghosts)
    arms = 0 if records.rankings is None else records.rankings["arm"].nunique()
    sizes = (
        f"{count(stored, 'memory', 'memories')}, {count(len(records.queries), 'query', 'queries')}, "
        f"{count(len(records.labels), 'label')}, {count(arms, 'route')}."
    )
    hits = found.found
    items = [f"<li><a href='#check-{c.kind}'>{_escape(c.title)}</a></li>" for c in hits]
    verdict = (
        f"<p><strong>{count(len(hits), 'failure')} found.</strong></p><ul>{''.join(items)}</ul>"
        if hits
        else "<p><strong>None of the failures looked for was found.</strong></p>"
    )
    unknown = [c for c in found.checks if c.outcome == "unknown"]
    rest = f"<p>{count(len(unknown), 'check')} could not be made; see below why.</p>" if unknown else ""
    return f"<p>{sizes}</p>{verdict}{rest}{_headline(found)}"


def _headline(found: Audit) -> str:
    if found.summary is None:
        return ""
    items = []
    for arm in dict.fromkeys(found.summary.intervals["arm"]):
        low, high = (found.summary.value(arm, metric) for metric in ("lower_bound", "upper_bound"))
        recall = found.summary.value(arm, "evidence_recall")
        items.append(
            f"<li><strong>{_escape(shown(arm, 60))}</strong> finds {_text(recall)} of the evidence. Of what it must "
            f"expose to reach the target, between {_text(low)} and {_text(high)} is inadmissible.</li>"
        )
    return f"<ul>{''.join(items)}</ul>"


def _unknown(found: Audit) -> str:
    if not found.unknown:
        return "<p>Every table and column that the report needs is there.</p>"
    return f"<ul>{''.join(f'<li>{_escape(text)}</li>' for text in found.unknown)}</ul>"


def _oddities(found: Audit) -> list[str]:
    """Show what looks odd in the tables themselves, if anything does."""
    warnings = listing(found.intake.warnings)
    if warnings.empty:
        return []
    table = _table(
        warnings[["file", "row", "column", "what", "fix"]], "oddities", "Oddities in the tables", rows=6, longest=300
    )
    return [
        "<h2 id='oddities'>What looks odd in the tables</h2>",
        "<p>None of this stops the audit, and none of it was corrected. If it is a mistake of the export, the numbers "
        "below are about the mistake.</p>",
        table,
    ]


def _check(check: Check) -> str:
    evidence = ""
    if len(check.evidence):
        formats = {"named_askers_that_cross": ".1%", "similarity": ".2f"}
        evidence = _table(
            check.evidence,
            f"evidence-{check.kind.replace('_', '-')}",
            f"Evidence: {check.title[0].lower()}{check.title[1:]}",
            {name: fmt for name, fmt in formats.items() if name in check.evidence},
            rows=_EVIDENCE_ROWS,
        )
    advice = f"<p><span class='audit-word'>What to do.</span> {_escape(check.advice)}</p>" if check.advice else ""
    limits = f"<p class='audit-note'>{_escape(check.limits)}</p>" if check.limits else ""
    return (
        f"<section class='audit-check audit-{check.outcome}' id='check-{check.kind}' "
        f"aria-label='{_escape(check.title)}'>"
        f"<h3>{_escape(check.title)}</h3>"
        f"<p><span class='audit-word'>{_WORDS[check.outcome]}.</span> {_escape(shown(check.says, 2000))}</p>"
        f"{evidence}{advice}{limits}</section>"
    )


def _routes(found: Audit) -> str:
    if found.summary is None:
        return (
            "<p>Recall, feasibility, loss and the bounds at matched recall need rankings and at least one query with "
            "a memory "
            "known to be relevant and admissible. There is none here; what routes hold is in the next section.</p>"
        )
    rows = found.summary.intervals
    macro = rows[rows["source"] == bootstrap.MACRO]
    sources = found.summary.arms["source"].nunique() - 1
    parts = [
        "<p>Each route is cut at the shortest prefix that holds the target share of the evidence, so that no route "
        "looks "
        "safe by finding little. Violations lie between the two edges of the hatched part, whatever the unresolved "
        "labels turn out to be.</p>",
        _composition(found, macro),
        _estimates(macro, _ROUTE_COLUMNS, "routes", "Routes at matched recall, with intervals"),
        _estimates(macro, _TYPED_COLUMNS, "typed", "Known violations by kind, as shares of the matched prefix"),
    ]
    if sources > 1:
        own = rows[
            (rows["source"] != bootstrap.MACRO) & rows["metric"].isin(["evidence_recall", "feasible_rate", "loss"])
        ]
        parts.append(
            _estimates(own, {k: _ROUTE_COLUMNS[k] for k in ("evidence_recall", "feasible_rate", "loss")}, "sources",
                       "The same by source; the tables above weigh sources equally")
        )  # fmt: skip
    if len(found.summary.contrasts):
        against = found.summary.contrasts[found.summary.contrasts["source"] == bootstrap.MACRO]
        columns = {k: _ROUTE_COLUMNS[k] for k in ("evidence_recall", "feasible_rate", "loss")}
        reference = _escape(shown(str(found.options.reference), 60))
        parts.append(f"<p>Differences from {reference}, from the same resamples:</p>")
        parts.append(_estimates(against, columns, "contrasts", "Differences from the reference route", "+.3f"))
    return "".join(parts)


def _composition(found: Audit, macro: pd.DataFrame) -> str:
    wide = macro.pivot(index="arm", columns="metric", values="estimate").reindex(list(dict.fromkeys(macro["arm"])))
    wide = wide[wide["lower_bound"].notna() & wide["upper_bound"].notna()]
    if wide.empty:
        return "<p>No route reaches the target for any query of some source, so there is no matched prefix to draw.</p>"
    shares = pd.DataFrame(
        {
            "inadmissible": wide["lower_bound"],
            "unresolved": wide["upper_bound"] - wide["lower_bound"],
            "admissible": 1 - wide["upper_bound"],
        }
    )
    best, worst = str(shares["inadmissible"].idxmin()), str(shares["inadmissible"].idxmax())
    return _bars(
        shares,
        "matched-prefix",
        f"What a matched prefix holds, target recall {found.options.target_recall}.",
        "share of the items needed to reach the target recall",
        f"Stacked bars, one per route, of known inadmissible, unresolved and known admissible shares. The known "
        f"inadmissible "
        f"share is largest for {shown(worst, 40)} ({number(shares.loc[worst, 'inadmissible'])}) and smallest for "
        f"{shown(best, 40)} ({number(shares.loc[best, 'inadmissible'])}).",
    )


def _prompt(found: Audit) -> str:
    if found.crossing is None:
        return "<p>The records hold neither rankings nor memories known to have been exposed.</p>"
    if found.crossing_from == "ledger":
        said = "The ledger says which memories reached the prompt; this is what they were."
    else:
        depth = found.options.items or found.options.top_k
        top = f"the first {depth} memories of each route" if depth else "all retrieved memories"
        said = f"No ledger says what reached the prompt, so {top} stand in for it."
    wide = found.crossing.pivot(index="arm", columns="metric", values="estimate").reindex(
        list(dict.fromkeys(found.crossing["arm"]))
    )
    parts = [
        f"<p>{said} Shares are averaged over queries within a source, then over sources.</p>",
        _prompt_bars(wide[wide["inadmissible"].notna()]),
        _estimates(found.crossing, _CROSSING_COLUMNS, "crossing", "What reached the prompt, with intervals"),
    ]
    if found.steps is not None:
        parts.append(_table(found.steps, "steps", "Counts from the ledger, over all queries"))
    return "".join(parts)


def _prompt_bars(wide: pd.DataFrame) -> str:
    if wide.empty:
        return "<p>For every route some source has no item at all, so no average over sources is defined.</p>"
    worst = str(wide["inadmissible"].idxmax())
    return _bars(
        wide[["inadmissible", "unresolved", "admissible"]],
        "prompt-content",
        "What reached the prompt.",
        "share of the items in the prompt",
        "Stacked bars, one per route, of known inadmissible, unresolved and known admissible shares. The known "
        f"inadmissible share is largest for {shown(worst, 40)}: {number(wide.loc[worst, 'inadmissible'])}.",
    )


def _worst(found: Audit) -> str:
    if found.worst.empty:
        return "<p>No query misses its evidence, and no violation or unresolved item was found.</p>"
    table = found.worst.head(_ROWS)[["query_id", "arm", "loss", "violations", "unresolved", "reasons"]]
    return (
        f"<p>{count(len(found.worst), 'route')} of single queries have something wrong or unresolved, counting each "
        f"arm. Sorted by loss, then by known violations; the reasons name ids and the axis that forbids them.</p>"
        + _table(table, "worst", "The worst queries", total=len(found.worst), longest=400)
    )


def _labels(found: Audit) -> str:
    axes = _table(
        found.axes,
        "axes",
        "Ranked pairs of query and memory, by what is known of each axis",
        {name: ",d" for name in ("yes", "no", "unresolved")},
    )
    if found.widths is None or found.narrowing.empty:
        reason = (
            "<p>No unresolved label stands in a matched prefix, so the bounds are as narrow as they can be.</p>"
            if found.widths is not None
            else "<p>Without a matched prefix there are no bounds to narrow.</p>"
        )
        return axes + reason
    best = found.unresolved()
    some = best.head(_ROWS)
    taken = float(some["sure"].clip(lower=0).sum())
    width = float(found.widths.sum())
    gain = (
        f"Settling the {count(len(some), 'label')} listed takes at least {number(taken, '.4f')} off the widths of all "
        f"routes together, which are {number(width, '.4f')} now. "
        if pd.notna(width) and not found.narrowing["changes_anchors"].any()
        else ""
    )
    return (
        axes
        + "<p>The bounds are as wide as the unresolved items make them. <em>At least</em> is what settling the label "
        "takes off "
        "the macro widths of all routes, whichever way it turns out; <em>at most</em> needs the better answer. "
        + gain
        + "Where a yes would make a memory an anchor, its query was scored again, and a negative number means that "
        "the bounds would widen.</p>"
        + _table(
            best.head(_ROWS),
            "narrowing",
            "Unresolved labels to settle first",
            {"sure": ".5f", "most": ".5f"},
            {"sure": "narrows by at least", "most": "at most"},
            total=len(best),
        )
    )


def _method(found: Audit, folder: str) -> str:
    options = found.options
    said = [
        f"Target recall {options.target_recall}; depth {options.top_k or 'as long as the routes are'}; loss of an "
        f"infeasible query {options.infeasibility_cost:g}.",
        f"Intervals are {100 * options.confidence:g}% percentile bootstrap intervals, {options.replicates:,} "
        f"replicates, seed {options.seed}, resampling groups within sources.",
        "An unresolved label is never counted as yes or no; bounds hold whichever way it turns out.",
    ]
    if found.summary is not None:
        groups = int(found.summary.settings["n_clusters"])
        few = " That is few: such intervals tend to be too narrow." if groups < 20 else ""
        said.append(
            f"{count(groups, 'group')} could be resampled.{few} Recall is evaluable for "
            f"{100 * found.summary.settings['evaluable_share']:.1f}% of queries."
        )
    if found.intake.nameless:
        names = count(len(found.intake.nameless), "query", "queries")
        said.append(f"{names} without namespace and group form one group of their own.")
    if found.intake.ghosts:
        said.append(
            "Ids that the store does not hold keep their place in the routes; their lifecycle is unresolved unless a "
            "label says that it had ended."
        )
    if found.intake.lifecycle_from_state:
        said.append("Lifecycle labels that were not given were derived from state and intent.")
    if found.intake.states_from == "links":
        said.append("States were derived from supersedes links; memories outside every chain are unknown.")
    files = (
        f"<p>All tables are in the folder <code>{_escape(shown(folder))}</code> as CSV files, whole and unrounded. "
        f"There, a "
        "backslash is doubled, characters that do not print are written as escapes, and a cell that begins with "
        "<code>=</code>, <code>+</code>, <code>-</code>, <code>@</code> or an apostrophe has one apostrophe before "
        "it, so that no spreadsheet runs it; <code>companion.audit.read_csv</code> undoes this.</p>"
        if folder
        else ""
    )
    return f"<ul>{''.join(f'<li>{_escape(text)}</li>' for text in said)}</ul>{files}"


# --- pieces --------------------------------------------------------------------------------------------------------


def _escape(text: str) -> str:
    return html.escape(str(text), quote=True)


def _text(row: pd.Series) -> str:
    return interval(row["estimate"], row["low"], row["high"])


def _table(
    data: pd.DataFrame,
    name: str,
    caption: str,
    formats: Mapping[str, Format] | None = None,
    labels: Mapping[str, str] | None = None,
    rows: int = _ROWS,
    total: int | None = None,
    longest: int = 90,
) -> str:
    body = table_html(shown_table(data.head(rows), longest), name=name, caption=caption, formats=formats, labels=labels)
    hidden = (len(data) if total is None else total) - min(len(data), rows)
    more = f"<p class='companion-more'>{hidden:,} more rows are in the CSV file.</p>" if hidden else ""
    return f"<div class='companion-block'>{body}{more}</div>"


def _estimates(rows: pd.DataFrame, columns: Mapping[str, str], name: str, caption: str, fmt: str = ".3f") -> str:
    """Put estimates with their intervals into one table, one row per route (and source)."""
    keys = ["arm", *(["source"] if "source" in rows and len(rows["source"].unique()) > 1 else [])]
    places = rows[keys].drop_duplicates()
    table: dict[str, Any] = {key: [shown(value, 60) for value in places[key]] for key in keys}
    for metric, heading in columns.items():
        part = places.merge(rows[rows["metric"] == metric], on=keys, how="left")
        ends = zip(part["estimate"], part["low"], part["high"], strict=True)
        table[heading] = [interval(*cells, fmt).replace(", ", ",\u00a0") for cells in ends]
    body = table_html(pd.DataFrame(table), name=name, caption=caption)
    return f"<div class='companion-block'>{body}</div>"


def _bars(shares: pd.DataFrame, name: str, caption: str, title: str, alt: str) -> str:
    long = shares.rename(index=lambda arm: shown(str(arm), 60)).rename_axis("arm").reset_index()
    long = long.melt(id_vars="arm", var_name="status", value_name="share")
    made = figure(charts.status_bars(long, y="arm", x_title=title), name=name, caption=caption, alt=alt, table=long)
    # The drawing library numbers its clips through the life of the process: number them by figure instead, so that
    # the same records give the same bytes.
    clips: dict[str, int] = {}
    return _CLIP.sub(
        lambda hit: f"{hit[1]}{name}-clip{clips.setdefault(hit[2], len(clips) + 1)}", str(made.data["text/html"])
    )
