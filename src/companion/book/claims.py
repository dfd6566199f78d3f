"""The claims page: every published figure as a row that can be filtered, and the chain of the front page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd

from companion.book.render import Bundle
from companion.book.tables import check_name, csv_link, inline_markdown, table_html
from companion.errors import InputError

#: Where each claim is computed: chapter, element on its page; and the command that repeats it.
WHERE: dict[str, tuple[str, str]] = {
    "C5": ("02-support", "table-every-arm"),
    "C9": ("02-support", "fig-populations"),
    "C9-controls": ("02-support", "fig-pools"),
    "C9-bounds": ("01-admissibility", "fig-hiding"),
    "C9-scope": ("02-support", "fig-effect"),
    "C9-typed": ("02-support", "fig-effect"),
    "C13-by-source": ("05-readers", "table-c13"),
    "C9-source": ("02-support", "table-beside-published"),
    "C13-source": ("02-support", "fig-effect"),
    "C10": ("03-verification", "fig-axes"),
    "C10-corruption": ("03-verification", "fig-break-even"),
    "C11": ("03-verification", "fig-curves"),
    "C11-controlled": ("03-verification", "fig-controlled"),
    "agreement": ("03-verification", "table-agreement"),
    "C8": ("04-exposure", "table-recomputed"),
    "C12": ("04-exposure", "table-recomputed"),
    "C13": ("05-readers", "table-c13"),
}
STATUS_LABELS = {
    "recomputed": "recomputed",
    "consistent": "consistent",
    "replicated": "replicated",
    "needs-data": "needs data",
    "quoted": "quoted",
}
_ROWS = (
    *("claim", "stage", "finding", "published", "published_low", "published_high", "value", "low", "high"),
    *("status", "verdict", "population", "computed", "anchor", "command", "note"),
)
_FETCH = {"C13": "companion fetch evidence"}
_COLUMNS = {
    "claim": "claim",
    "finding": "finding, population",
    "published": "published",
    "value": "here",
    "status": "status",
    "computed": "computed in, repeat with",
}


def command_of(claim: str, stage: str, status: str) -> str:
    """Return the command that repeats a row, or that fetches what it needs."""
    if status == "quoted":
        return ""
    if status == "needs-data":
        return _FETCH.get(claim, "companion fetch memops")
    if claim in {"C8", "C12"}:
        return "companion exposure data/published/exposure_outcomes.csv"
    return f"companion reproduce --stage {stage}"


def words_of(subject: str, contrast: str, metric: str) -> str:
    """Say in words which quantity a row is about, as in ``namespace_dense − global_dense: evidence recall``."""
    what = metric.replace("_", " ").replace("penalized admissibility upper risk", "loss")
    what = what.replace("penalized non usable upper risk", "loss, non-usable family")
    who = subject.replace("-global_", " − global_").replace("-namespace_", " − namespace_")
    return f"{who}: {what}" + (f" ({contrast.replace('_', ' ')})" if contrast else "")


def verdict_of(status: str, agrees: Any) -> str:
    """Say whether a row agrees: equal when recomputed, inside our interval when replicated, a dash otherwise."""
    if pd.isna(agrees):
        return "–"
    if status == "consistent":
        return "identity holds" if agrees else "identity fails"
    if status == "replicated":
        return "inside our interval" if agrees else "outside our interval"
    return "equal" if agrees else "differs"


def claims_rows(reproduced: pd.DataFrame, chapters: Iterable[str]) -> pd.DataFrame:
    """Turn what ``reproduce`` returns into the rows of the claims page."""
    unknown = sorted(set(reproduced["status"]) - set(STATUS_LABELS))
    if unknown:
        raise InputError(f"status {unknown[0]!r}: expected one of {', '.join(STATUS_LABELS)}")
    known = set(chapters)
    rows = reproduced.copy()
    places = [WHERE.get(claim, ("", "")) for claim in rows["claim"]]
    texts = zip(rows["subject"], rows["contrast"].fillna(""), rows["metric"], strict=True)
    keys = zip(rows["claim"], rows["stage"], rows["status"], strict=True)
    return rows.assign(
        finding=[words_of(*text) for text in texts],
        verdict=[verdict_of(*pair) for pair in zip(rows["status"], rows["agrees"], strict=True)],
        computed=[chapter if chapter in known else "–" for chapter, _ in places],
        anchor=[anchor if chapter in known else "" for chapter, anchor in places],
        command=[command_of(*key) or "–" for key in keys],
    )[list(_ROWS)]


def claims_table(rows: pd.DataFrame, *, name: str, caption: str, link: str = "{chapter}.html") -> Bundle:
    """Build the table of claims with its filters, without displaying it."""
    check_name(name)
    shown = rows[[*list(_COLUMNS), "published_low", "published_high", "low", "high"]]
    body = table_html(
        shown.assign(status=shown["status"].map(STATUS_LABELS)),
        name=name,
        caption=caption,
        intervals={"published": ("published_low", "published_high"), "value": ("low", "high")},
        formats={"published": ".5g", "value": ".5g"},
        labels=_COLUMNS,
    )
    # Its columns have set widths that fit paper as well.
    body = _with_links(body.replace(" companion-wide", "", 1), rows, link)
    script = (resources.files("companion.book") / "assets" / "claims.js").read_text(encoding="utf-8")
    page = (
        f'<div class="companion-block companion-claims" id="claims-{name}">'
        f'<div class="companion-filters" hidden></div>{body}{csv_link(rows, name)}<script>{script}</script></div>'
    )
    return Bundle({"text/html": page, "text/plain": shown.to_string(index=False, max_rows=60)})


def _with_links(body: str, rows: pd.DataFrame, link: str) -> str:
    """Mark each row with what it can be filtered by; add verdict, link and command to the cells they belong to."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(body, "html.parser")

    def add(cell: Any, name: str, text: str, **attributes: str) -> None:
        part = soup.new_tag(name, attrs=attributes)
        part.string = text
        cell.append(part)

    for element, row in zip(soup.select("tbody tr"), rows.astype("object").to_dict("records"), strict=True):
        element["data-stage"], element["data-status"] = str(row["stage"]), str(row["status"])
        finding, *_, status, computed = element.find_all("td")
        finding.append(" ")
        add(finding, "span", str(row["population"]), **{"class": "companion-beside"})
        status["title"] = str(row["note"])
        if row["verdict"] != "–":
            status.append(" ")
            add(status, "span", str(row["verdict"]), **{"class": "companion-beside"})
        if row["computed"] != "–":
            target = link.format(chapter=row["computed"]) + ("#" + str(row["anchor"]) if row["anchor"] else "")
            computed.clear()
            add(computed, "a", str(row["computed"]), href=target)
        if row["command"] != "–":
            computed.append(" ")
            add(computed, "code", str(row["command"]))
    return str(soup)


@dataclass(frozen=True)
class Step:
    """One station of the chain that a memory passes."""

    name: str
    means: str
    number: str
    interval: str
    says: str
    status: str
    href: str


def chain(steps: Iterable[Step], *, name: str, caption: str) -> Bundle:
    """Build the figure of the chain: plain HTML that stacks on a phone and reads in order."""
    check_name(name)
    items = "".join(
        f'<li class="companion-step"><span class="companion-step-name">{html.escape(step.name)}</span>'
        f'<span class="companion-step-means">{html.escape(step.means)}</span>'
        f'<span class="companion-step-number">{html.escape(step.number)}</span>'
        f'<span class="companion-step-interval">{html.escape(step.interval) or "&nbsp;"}</span>'
        f'<span class="companion-step-says">{inline_markdown(step.says)}</span>'
        f'<a class="companion-step-link" href="{html.escape(step.href, quote=True)}">'
        f"{html.escape(step.status)}"
        f'<span class="companion-sr">: where {html.escape(step.name)} is computed</span></a></li>'
        for step in steps
    )
    page = (
        f'<figure class="companion-figure companion-chain" id="fig-{name}"><ol>{items}</ol>'
        f"<figcaption>{inline_markdown(caption)}</figcaption></figure>"
    )
    return Bundle({"text/html": page, "text/plain": f"[Figure: {caption}]"})


#: Where each sentence of the abstract is computed.
PLACES = {
    "support": "02-support",
    "loss": "02-support",
    "work": "02-support",
    "identity": "02-support",
    "scope": "02-support",
    "filters": "03-verification",
    "verifiers": "03-verification",
    "downstream": "05-readers",
    "disclosure": "04-exposure",
    "agreement": "03-verification",
}
_PLAIN_UNITS = {"ROC-AUC": ".3f", "alpha": ".3f", "share": "%0", "policy-disallowed": "%", "evidence recall, ": "%"}


def _unit(figure: str) -> str:
    """Return the format of a figure of the abstract: points where it is a difference."""
    if figure.endswith("relative change"):
        return "%"
    if figure.endswith("minus everything"):
        return "pp"
    return next((fmt for start, fmt in _PLAIN_UNITS.items() if figure.startswith(start)), "pp")


def sentences_table(front: pd.DataFrame, said: Mapping[str, str], *, name: str, caption: str) -> Bundle:
    """Build the abstract as a table, without displaying it: a row for each sentence, with a link to its chapter.

    ``front`` is what ``stages.findings.front_page`` returns; ``said`` has the words (Markdown) of each sentence.
    """
    from companion.book.notebook import shown

    bodies = []
    for key, words in said.items():
        chapter = PLACES[key]
        link = f'<a href="{chapter}.html">chapter {int(chapter[:2])}</a>'
        rows = [
            f'<tr class="companion-group"><th colspan="4" scope="rowgroup">{inline_markdown(words)} {link}</th></tr>'
        ]
        for row in front[front["sentence"] == key].to_dict("records"):
            fmt = _unit(row["figure"])
            quoted = shown(row["published"], row["published_low"], row["published_high"], fmt)
            ours = shown(row["value"], row["low"], row["high"], fmt)
            told = (re.sub(r" (\[.*\])$", r" <span>\1</span>", cell) for cell in (quoted, ours))
            cells = "".join(f'<td class="gt_right">{cell}</td>' for cell in told)
            note = html.escape(str(row["note"]), quote=True)
            verdict = f'<td><span title="{note}">{html.escape(row["verdict"])}</span></td>'
            rows.append(f'<tr><th scope="row">{html.escape(row["figure"])}</th>{cells}{verdict}</tr>')
        bodies.append(f"<tbody>{''.join(rows)}</tbody>")
    right = {"paper", "here"}
    heads = "".join(
        f'<th scope="col"{" class=gt_right" if head in right else ""}>{head}</th>'
        for head in ("figure", "paper", "here", "so")
    )
    region = html.escape(caption, quote=True)
    names = "--n1:&#x27;paper&#x27;;--n2:&#x27;here&#x27;;--n3:&#x27;so&#x27;"
    page = (
        f'<div class="companion-block companion-abstract"><div class="companion-scroll" role="region" tabindex="0" '
        f'aria-label="{region}"><table class="companion-table companion-stack" id="table-{check_name(name)}" '
        f'style="{names}"><caption><span>{inline_markdown(caption)}</span></caption><thead><tr>{heads}</tr></thead>'
        f"{''.join(bodies)}</table></div>{csv_link(front, name)}</div>"
    )
    return Bundle({"text/html": page, "text/plain": front.to_string(index=False)})


def chapters_of(folder: Path) -> list[str]:
    """Return the names of the chapters in a folder of notebooks."""
    return sorted(path.stem for path in folder.glob("[0-9][0-9]-*.md"))


def status_counts(reproduced: pd.DataFrame) -> pd.DataFrame:
    """Count the published figures by stage and status."""
    counts = reproduced.groupby(["stage", "status"], sort=False).size().reset_index(name="figures")
    order = {status: place for place, status in enumerate(STATUS_LABELS)}
    counts["place"] = counts["status"].map(order)
    stages = {stage: place for place, stage in enumerate(dict.fromkeys(reproduced["stage"]))}
    return counts.sort_values(
        ["stage", "place"], key=lambda column: column.map(stages) if column.name == "stage" else column
    ).reset_index(drop=True)


def status_chart(counts: pd.DataFrame) -> Any:
    """Draw the counts as one bar per stage."""
    import altair as alt

    names = [STATUS_LABELS[status] for status in STATUS_LABELS]
    colours = ["#0072b2", "#5ba3d0", "#009e73", "#b87f00", "#8a929d"]
    return (
        alt.Chart(counts.assign(status=counts["status"].map(STATUS_LABELS)))
        .mark_bar(height={"band": 0.62})
        .encode(
            y=alt.Y("stage:N", sort=list(dict.fromkeys(counts["stage"])), title=None),
            x=alt.X("figures:Q", title="published figures"),
            color=alt.Color(
                "status:N",
                scale=alt.Scale(domain=names, range=colours),
                legend=alt.Legend(title=None, orient="top"),
            ),
            order=alt.Order("place:Q"),
            tooltip=["stage:N", "status:N", "figures:Q"],
        )
        .properties(height=alt.Step(38))
    )
