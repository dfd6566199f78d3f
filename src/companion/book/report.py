"""An audit report: chapter 06 run on somebody else's records, as one page, without a kernel or a network.

The report is rendered from the same notebook as the chapter. Cells tagged ``example`` speak of the example and are left
out; cells tagged ``given`` compute what the caller has already. Everything that came from the records passes through
`companion.audit.shown` and HTML escaping, so that text in an id or a memory can neither run nor hide.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from companion.audit import Audit, shown, shown_table
from companion.book import charts
from companion.book.notebook import _PREFIX
from companion.book.page import frame
from companion.book.render import Bundle, display_bundle, displayed_to, show
from companion.book.tables import csv_link, table_html
from companion.book.text import interval, number
from companion.tables import listing

ROWS = 5
_WORDS = {"found": "Found", "clear": "Not found", "unknown": "Cannot be known"}
_FORMATS = {"named_askers_that_cross": ".1%", "similarity": ".2f", "sure": ".5f", "most": ".5f"}
_LABELS = {
    "arm": "route",
    "query_id": "question",
    "memory_id": "memory",
    "exposed": "in a prompt",
    "sure": "narrows by at least",
    "most": "at most",
}
ROUTES = {
    "evidence_recall": "evidence recall",
    "feasible_rate": "feasible queries",
    "loss": "loss",
    "lower_bound": "violations, at least",
    "upper_bound": "violations, at most",
    "label_coverage": "label coverage",
}
PROMPT = {
    "admissible": "admissible",
    "unresolved": "unresolved",
    "inadmissible": "inadmissible",
    "wrong_scope": "wrong scope",
    "policy_disallowed": "policy disallowed",
    "lifecycle_incompatible": "lifecycle incompatible",
}


# --- what chapter and report show ----------------------------------------------------------------------------------


def show_rows(
    data: pd.DataFrame, name: str, caption: str, rows: int = ROWS, file: str = "", total: int | None = None
) -> None:
    """Display the first rows of a table of an audit; text of the records in it is made harmless."""
    display_bundle(Bundle({"text/html": f"<div class='companion-block'>{_table(data, name, caption, rows, file, total)}"
                     f"{'' if file else csv_link(shown_table(data.head(rows)), name)}</div>",
                     "text/plain": data.head(rows).to_string(index=False)}))  # fmt: skip


def _table(data: pd.DataFrame, name: str, caption: str, rows: int, file: str, total: int | None = None) -> str:
    some = shown_table(data.head(rows), 240)
    formats = {column: fmt for column, fmt in _FORMATS.items() if column in some}
    labels = {column: text for column, text in _LABELS.items() if column in some}
    body = table_html(some, name=name, caption=caption, formats=formats, labels=labels)
    more = (len(data) if total is None else total) - len(some)
    where = f" in <code>{file}</code>" if file else ""
    verb = "row is" if more == 1 else "rows are"
    return f"{body}<p class='companion-more'>{more:,} more {verb}{where}.</p>" if more > 0 and file else body


def show_finding(found: Audit, kind: str, rows: int = 3) -> None:
    """Display one check: what the records show, its evidence with texts, and what to do."""
    check = found[kind]
    parts = [f"<h3>{_text(check.title)}</h3>", f"<p><span class='audit-word'>{_WORDS[check.outcome]}.</span> "
             f"{_text(check.says)}</p>"]  # fmt: skip
    if check.instances:
        evidence = found.with_texts(check.evidence.drop(columns=["text", "twin_text"], errors="ignore").head(rows))
        caption = f"Evidence: {check.title[0].lower()}{check.title[1:]}."
        name = f"evidence-{kind.replace('_', '-')}"
        parts.append(_table(evidence, name, caption, rows, f"check_{kind}.csv", check.instances))
    parts += [f"<p><span class='audit-word'>What to do.</span> {_text(check.advice)}</p>"] if check.advice else []
    parts += [f"<p class='audit-note'>{_text(check.limits)}</p>"] if check.limits else []
    opening = f"<section class='audit-check audit-{check.outcome}' id='check-{kind}' aria-label='{_text(check.title)}'>"
    page = f"{opening}{''.join(parts)}</section>"
    display_bundle(Bundle({"text/html": page, "text/plain": f"{check.title}: {check.says}"}))


def show_lines(lines: Sequence[str], title: str = "") -> None:
    """Display a sentence, or several as a list, under a heading; text of the records in them is escaped."""
    heading = f"<h2>{_text(title)}</h2>" if title else ""
    body = "".join(f"<li>{_text(line)}</li>" for line in lines)
    body = f"<ul>{body}</ul>" if len(lines) > 1 else f"<p>{_text(lines[0])}</p>"
    display_bundle(Bundle({"text/html": heading + body, "text/plain": "\n".join(lines)}))


def show_prompt(found: Audit) -> None:
    """Display what reached the prompt, route by route."""
    crossing = found.crossing
    if crossing is None:
        show_lines(["Neither rankings nor a ledger say what reached a prompt."])
        return
    wide = crossing.assign(arm=_names(crossing["arm"])).pivot(index="arm", columns="metric", values="estimate")
    wide = wide.reindex(list(dict.fromkeys(_names(crossing["arm"]))))[["inadmissible", "unresolved", "admissible"]]
    wide = wide[wide["inadmissible"].notna()]
    if wide.empty:
        show_lines(["For every route some source has no item at all, so no average over sources is defined."])
        return
    worst = str(wide["inadmissible"].idxmax())
    show(
        charts.bars(
            wide.rename_axis("arm").reset_index().melt("arm", var_name="status", value_name="share"),
            y="arm", value="share", part="status", title="share of the memories in the prompt",
        ),
        name="prompt",
        caption=f"What reached the prompt: {held(found)}. The hatched part is what the labels leave open.",
        alt="Stacked bars, one per route, of known inadmissible, unresolved and known admissible shares. The known "
        f"inadmissible share is largest for {worst}: {number(wide.loc[worst, 'inadmissible'], '.1%')}.",
        table=estimates(crossing, PROMPT),
    )  # fmt: skip


def held(found: Audit) -> str:
    """Say how many memories reached a prompt, and how that is known."""
    if found.crossing_from == "ledger":
        assert found.records.ledger is not None
        book = found.records.ledger[found.records.ledger["exposed"].fillna(False)]
        most = int(book.groupby(["arm", "query_id"]).size().max())
        return f"by the ledger, {'one memory' if most == 1 else f'up to {most:,} memories'} for each question"
    depth = found.options.items or found.options.top_k
    top = f"the first {depth:,} of each route stand" if depth and depth > 1 else "the first of each route stands"
    return f"no ledger says what reached it, so {top if depth else 'all returned memories stand'} in for it"


def estimates(rows: pd.DataFrame, columns: Mapping[str, str], fmt: str = ".3f") -> pd.DataFrame:
    """Put estimates with their intervals into one table, one row per route."""
    table: dict[str, Any] = {"route": list(dict.fromkeys(rows["arm"]))}
    for metric, heading in columns.items():
        part = rows[rows["metric"] == metric].set_index("arm").reindex(table["route"])
        cells = zip(part["estimate"], part["low"], part["high"], strict=True)
        table[heading] = [interval(*ends, fmt) for ends in cells]
    return pd.DataFrame(table).assign(route=lambda made: _names(made["route"]))


def show_routes(found: Audit) -> None:
    """Display the routes at matched recall, or say what that needs."""
    if found.summary is None:
        show_lines(["Recall, feasibility, loss and bounds at matched recall need rankings and at least one query with "
                    "a memory known to be relevant and admissible. There is none here."])  # fmt: skip
        return
    rows = found.summary.intervals[found.summary.intervals["source"] == "macro"]
    show_rows(estimates(rows, ROUTES), "routes", f"Routes at target recall {found.options.target_recall}.", 50)
    if len(found.summary.contrasts):
        against = found.summary.contrasts[found.summary.contrasts["source"] == "macro"]
        columns = {name: ROUTES[name] for name in ("evidence_recall", "feasible_rate", "loss")}
        caption = "Differences from the reference route, from the same resamples."
        show_rows(estimates(against, columns, "+.3f"), "contrasts", caption, 50)


def show_worst(found: Audit, rows: int = ROWS) -> None:
    """Display the queries with most violations, counting everything that was returned."""
    if found.worst.empty:
        show_lines(["No query misses its evidence, and no violation or unresolved item was found."])
        return
    table = found.worst[["query_id", "arm", "violations", "loss", "unresolved", "reasons"]]
    show_rows(
        table, "worst", "The worst questions: most known violations, then highest loss.", rows, "worst_queries.csv"
    )


def show_labels(found: Audit, rows: int = ROWS) -> None:
    """Display the unresolved labels whose settling narrows the bounds most."""
    if found.widths is None or found.narrowing.empty:
        show_lines(
            ["No unresolved label stands in a matched prefix, so there are no bounds that a label would narrow."]
        )
        return
    caption = "Unresolved labels whose settling narrows the bounds most, added over the routes."
    show_rows(found.unresolved(), "labels", caption, rows, "unresolved.csv")


def show_summary(found: Audit, baseline: str = "") -> None:
    """Display the first lines of a report: the worst finding, what else was found, and what is odd in the tables."""
    records, arms = found.records, found.per_query["arm"].nunique() if found.per_query is not None else 0
    sizes = (len(records.memories) - len(found.intake.ghosts), len(records.queries), len(records.labels), arms)
    first = f"<p class='audit-first'><strong>{_text(found.headline)}</strong></p>"
    links = "".join(f"<li><a href='#check-{c.kind}'>{_text(c.title)}</a>: {c.instances:,}</li>" for c in found.found)
    counts = "Memories {:,}; questions {:,}; labels {:,}; routes {:,}.".format(*sizes)
    parts = [first, f"<p>{_text(baseline)}</p>" if baseline else "", f"<ul>{links}</ul>" if links else "",
             f"<p>{counts}</p>"]  # fmt: skip
    odd = listing(found.intake.warnings)
    if len(odd):
        caption = "Oddities in the tables; none of them was corrected."
        parts.append(
            _table(odd[["file", "row", "column", "what", "fix"]], "oddities", caption, 6, "table_warnings.csv")
        )
    display_bundle(Bundle({"text/html": "".join(parts), "text/plain": found.headline}))


def method(found: Audit) -> list[str]:
    """Say how the numbers were computed."""
    options, intake, how = found.options, found.intake, found.options.resampling
    said = [
        f"Target recall {options.target_recall}; depth {options.top_k or 'as long as the routes are'}; loss of an "
        f"infeasible query {options.infeasibility_cost:g}.",
        f"Intervals are {100 * how.confidence:g}% percentile bootstrap intervals, {how.replicates:,} replicates, seed "
        f"{how.seed}, resampling groups within sources.",
        "An unresolved label is never counted as yes or no; bounds hold whichever way it turns out.",
    ]
    reason = "" if found.crossing is None else str(found.crossing.attrs.get("no_interval", ""))
    said += [f"No intervals are given: {reason}."] if reason else []
    if intake.nameless:
        said.append(f"Queries without namespace and group ({len(intake.nameless):,}) form one group of their own.")
    if intake.ghosts:
        said.append("Ids that the store does not hold keep their place in the routes; their lifecycle is unresolved "
                    "unless a label says that it had ended.")  # fmt: skip
    if intake.lifecycle_from_state:
        said.append("Lifecycle labels that were not given were derived from state, end of validity and intent; a query "
                    "without an intent counts as about the present.")  # fmt: skip
    if len(intake.links):
        said.append("A supersedes link outranks a state, for questions asked after the correction was written.")
    said.append("All tables stand in CSV files beside this page, whole and unrounded; companion.audit.read_csv reads "
                "them back with every id as it was.")  # fmt: skip
    return said


def _names(arms: pd.Series) -> list[str]:
    return [str(shown(arm, 60)) for arm in arms]


def _text(text: str) -> str:
    return html.escape(str(shown(text, 2000)), quote=True)


# --- the page ------------------------------------------------------------------------------------------------------

_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$|^\+\+\+ *(\{[^\n]*\})? *$", re.MULTILINE | re.DOTALL)
_CLIP = re.compile(r"((?:%23|#|id=%22|id=\")[\w-]*clip)(\d+)")


def page(found: Audit, source: Path, baseline: str = "") -> str:
    """Render the notebook of chapter 06 as the report of an audit."""
    title = f"Audit of {shown(found.records.name or 'your records', 60)}"
    namespace: dict[str, Any] = {"__name__": "report", "found": found, "report": True, "baseline": baseline}
    glued: dict[str, str] = {}
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for tags, code, text in cells(source.read_text(encoding="utf-8")):
        if {"example", "given"} & tags:
            continue
        if not code:
            parts.append(_markdown(text, glued))
            continue
        made: list[Bundle] = []
        with displayed_to(made.append):
            exec(compile(text, str(source), "exec"), namespace)
        for bundle in made:
            name = bundle.metadata.get("scrapbook", {}).get("name")
            if name:
                glued[name] = str(bundle.data[f"{_PREFIX}text/html"])
            else:
                parts.append(str(bundle.data["text/html"]))
    clips: dict[str, str] = {}  # numbered by their place: the same records give the same bytes
    body = "\n".join(parts)
    body = _CLIP.sub(lambda hit: f"{hit[1]}{clips.setdefault(hit[2], str(len(clips) + 1))}", body)
    return frame(title, body)


def cells(text: str) -> Iterator[tuple[set[str], bool, str]]:
    """Yield the cells of a MyST notebook: tags, whether it is code, and source."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    place, tags = 0, set[str]()
    for hit in _CELL.finditer(text):
        if text[place : hit.start()].strip():
            yield tags, False, text[place : hit.start()].strip()
        place = hit.end()
        if hit[1] is None:
            tags = set(re.findall(r"[\w-]+", hit[2] or "")) - {"tags"}
            continue
        named = re.match(r":tags: *\[(.*?)\]\n", hit[1])
        tags = set()
        yield set(re.findall(r"[\w-]+", named[1])) if named else set(), True, hit[1][named.end() if named else 0 :]
    if text[place:].strip():
        yield tags, False, text[place:].strip()


def _markdown(text: str, glued: Mapping[str, str]) -> str:
    from markdown_it import MarkdownIt

    text = re.sub(r"\{(?:term|ref|doc)\}`([^`<]+?)(?: *<[^`]*>)?`", r"\1", text)
    text = re.sub(r"\{glue:text\}`(\w+)`", "\ue000\\1\ue001", text)
    made: str = MarkdownIt("js-default").render(text)
    return re.sub("\ue000(\\w+)\ue001", lambda hit: glued.get(hit[1], "–"), made)
