"""The claims page: every published figure as a row that can be searched, and the abstract sentence by sentence."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd

from companion.book.palette import ARM_NAMES
from companion.book.render import Bundle
from companion.book.tables import check_name, csv_link, inline_markdown, table_html
from companion.errors import InputError
from companion.stages.findings import SENTENCES, sentence_of

_STRATA = "03-verification#a-mean-over-strata-hides-the-one-it-fails-in"
_AGREEMENT = "03-verification#two-people-agree-on-nearly-all-of-it-except-on-yes"
_ANSWERS = "05-readers#answers-get-better-whoever-reads"
#: The cell that computes a claim, by status: what nothing computes has no place.
WHERE: dict[str, dict[str, str]] = {
    "recomputed": {
        "C9": "02-support#fig-headline",
        "C13-source": "02-support#fig-parts",
        "C9-controls": "02-support#fig-pools",
        "C10-corruption": "03-verification#fig-corruption",
        "C11": _STRATA,
        "C11-controlled": "03-verification#fig-controlled",
        "C8": "04-exposure#fig-effects",
        "C12": "04-exposure#fig-effects",
        "C13": _ANSWERS,
        "C13-by-source": _ANSWERS,
    },
    "consistent": {"agreement": _AGREEMENT, "C13": _ANSWERS, "": "07-claims#table-identities"},
    "replicated": {"C9-source": "02-support#fig-encoder"},
}
STATUS_LABELS = {
    "recomputed": "recomputed",
    "consistent": "consistent",
    "replicated": "replicated",
    "needs-data": "needs data",
    "quoted": "quoted",
}
#: One colour for each status, from what was computed to what was only read.
STATUS_COLOURS = dict(zip(STATUS_LABELS, ("#0072b2", "#5ba3d0", "#009e73", "#b87f00", "#8a929d"), strict=True))
_ROWS = (
    *("claim", "stage", "sentence", "finding", "published", "published_low", "published_high", "value", "low", "high"),
    *("status", "verdict", "population", "computed", "command", "note"),
)
_COLUMNS = {
    "claim": "claim",
    "finding": "finding, population",
    "published": "published",
    "value": "here",
    "status": "status",
    "computed": "computed in, repeat with",
}
_WORDS = {
    **ARM_NAMES,
    "gpt-5.6-sol": "GPT-5.6 Sol",
    "gpt-5.6-luna": "GPT-5.6 Luna",
    "gemini-3.6-flash": "Gemini 3.6 Flash",
    "deepseek-v4-pro": "DeepSeek V4 Pro",
    "claude-opus-5": "Claude Opus 5",
    "route": "the route",
    "released_metadata_reference": "filter by released metadata",
    "policy_gate": ARM_NAMES["namespace_policy_gate"],
    "text_verifier": ARM_NAMES["namespace_text_verifier"],
    "penalized_admissibility_upper_risk": "loss",
    "penalized_upper_risk": "loss",
    "penalized_non_usable_upper_risk": "loss, relevance included",
    "feasible_rate": "share of feasible questions",
    "infeasibility_component": "loss, part from infeasible questions",
    "feasible_prefix_component": "loss, part from what is read",
    "conditional_upper_risk": "upper bound on the share of violations",
    "conditional_upper_bound": "upper bound on the share of violations",
    "conditional_lower_bound": "lower bound on the share of violations",
    "matched_query_count": "number of feasible questions",
    "candidates_scored": "work: candidates scored",
    "answer_correct": "correct answers",
    "roc_auc": "ROC-AUC",
    "krippendorff_alpha": "Krippendorff's alpha",
    "selected_operating_point": "at its chosen threshold",
    "pairs": "controlled pairs",
    "minus_namespace_dense_top_20": "minus own memories only, first 20",
    "exposed_minus_withheld": "exposed minus withheld",
    "": "",
}


def command_of(claim: str, stage: str, status: str) -> str:
    """Return the command that repeats a row, or that fetches what it needs."""
    if status == "quoted":
        return ""
    if status == "needs-data":
        return "companion fetch " + ("evidence" if claim.startswith("C13") else "memops")
    if claim in {"C8", "C12"}:
        return "companion exposure data/published/exposure_outcomes.csv"
    return f"companion reproduce --stage {stage}"


def words_of(subject: str, contrast: str, metric: str) -> str:
    """Spell out which quantity a row is about, as in *own memories only minus search everything: evidence recall*."""
    known = subject in _WORDS or not re.search(r"-(?=global_|namespace_)", subject)
    sides = [subject] if known else re.split(r"-(?=global_|namespace_)", subject)
    who = " minus ".join(_spelled(side) for side in sides)
    pair, _, source = contrast.partition(":")
    pair = " minus ".join(_spelled(side) for side in re.split(r"-(?=global_|namespace_)", pair)) if pair else ""
    where = ", ".join(part for part in (pair, _SOURCES.get(source, source)) if part)
    return f"{who}: {_spelled(metric)}" + (f" ({where})" if where else "")


_SOURCES = {"rhelm": "RHELM", "memops": "MemOps"}


def _spelled(name: str) -> str:
    if name in _WORDS:
        return _WORDS[name]
    found = re.fullmatch(r"(?:(rhelm|memops)_)?top_(\d+)(?:_without_(\w+))?", name)
    if not found:
        return name.replace("_", " ")
    source, depth, axis = found.groups()
    parts = [_SOURCES[source]] if source else []
    return ", ".join([*parts, f"first {depth}", *([f"{axis} set aside"] if axis else [])])


def verdict_of(status: str, agrees: Any) -> str:
    """Say whether a row agrees, in the words of its status; a dash where nothing was computed."""
    if pd.isna(agrees):
        return "–"
    said = {
        "consistent": ("identity holds", "identity fails"),
        "replicated": ("inside our interval", "outside our interval"),
        "recomputed": ("equal", "differs"),
    }
    return said[status][0 if agrees else 1]


def place_of(claim: str, status: str) -> str:
    """Return chapter and element where a row is computed, as ``02-support#fig-headline``; nothing where it is not."""
    places = WHERE.get(status, {})
    return places.get(claim, places.get("", ""))


def claims_rows(reproduced: pd.DataFrame, chapters: Iterable[str]) -> pd.DataFrame:
    """Turn what ``reproduce`` returns into the rows of the claims page, in the order of the abstract's sentences."""
    unknown = sorted(set(reproduced["status"]) - set(STATUS_LABELS))
    if unknown:
        raise InputError(f"status {unknown[0]!r}: expected one of {', '.join(STATUS_LABELS)}")
    known = set(chapters)
    told = reproduced.fillna({"contrast": ""}).to_dict("records")
    places = [place_of(row["claim"], row["status"]) for row in told]
    rows = reproduced.assign(
        sentence=[sentence_of(row["claim"], row["subject"], row["metric"]) for row in told],
        finding=[words_of(row["subject"], row["contrast"], row["metric"]) for row in told],
        verdict=[verdict_of(row["status"], row["agrees"]) for row in told],
        computed=[place if place.partition("#")[0] in known else "–" for place in places],
        command=[command_of(row["claim"], row["stage"], row["status"]) or "–" for row in told],
    )[list(_ROWS)]
    order = {name: place for place, name in enumerate([*SENTENCES, *STATUS_LABELS])}
    keys = ["sentence", "status"]
    return rows.sort_values(keys, key=lambda c: c.map(order), kind="stable", ignore_index=True)


def claims_table(rows: pd.DataFrame, *, name: str, caption: str, link: str = "{chapter}.html") -> Bundle:
    """Build the table of claims, grouped by sentence, with its search and menus, without displaying it."""
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
    """Mark each row with what it can be filtered by; add verdict, link and command; a heading before each sentence."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(body, "html.parser")

    def add(cell: Any, name: str, text: str, **attributes: str) -> None:
        part = soup.new_tag(name, attrs=attributes)
        part.string = text
        cell.append(part)

    before = ""
    for element, row in zip(soup.select("tbody tr"), rows.astype("object").to_dict("records"), strict=True):
        if row["sentence"] != before:
            before = row["sentence"]
            heading = soup.new_tag("tr", attrs={"class": "companion-group"})
            add(heading, "th", SENTENCES[before], colspan="6", scope="rowgroup")
            element.insert_before(heading)
        element["data-stage"], element["data-status"] = str(row["stage"]), str(row["status"])
        finding, *_, status, computed = element.find_all("td")
        finding.append(" ")
        add(finding, "span", str(row["population"]), **{"class": "companion-beside"})
        status["title"] = str(row["note"])
        if row["verdict"] != "–":
            status.append(" ")
            add(status, "span", str(row["verdict"]), **{"class": "companion-beside"})
        if row["computed"] != "–":
            chapter, _, anchor = str(row["computed"]).partition("#")
            computed.clear()
            add(computed, "a", chapter, href=link.format(chapter=chapter) + "#" + anchor)
        if row["command"] != "–":
            computed.append(" ")
            add(computed, "code", str(row["command"]))
    return str(soup)


#: Where each sentence of the abstract is computed.
PLACES = {
    "support": "02-support#fig-headline",
    "loss": "02-support#fig-parts",
    "work": "07-claims#table-identities",
    "identity": "02-support#fig-pools",
    "scope": "02-support#what-goes-away-is-the-memories-of-others-and-nothing-else",
    "filters": "03-verification#fig-corruption",
    "verifiers": _STRATA,
    "downstream": _ANSWERS,
    "disclosure": "04-exposure#fig-effects",
    "agreement": _AGREEMENT,
}
_PLAIN_UNITS = {"ROC-AUC": ".3f", "alpha": ".3f", "share": "%0", "policy-disallowed": "%", "evidence recall, ": "%"}
_PLAIN_UNITS |= {"queries that find enough, ": "%", "forbidden share": "%"}


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
        chapter, _, anchor = PLACES[key].partition("#")
        name_of = "every claim" if chapter == "07-claims" else f"chapter {int(chapter[:2])}"
        link = f'<a href="{chapter}.html#{anchor}">{name_of}</a>'
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
    """Count the published figures by sentence and status."""
    keys = zip(reproduced["claim"], reproduced["subject"], reproduced["metric"], strict=True)
    table = reproduced.assign(sentence=[sentence_of(*key) for key in keys])
    counts = table.groupby(["sentence", "status"], sort=False).size().reset_index(name="figures")
    order = {name: place for place, name in enumerate([*SENTENCES, *STATUS_LABELS])}
    return counts.sort_values(["sentence", "status"], key=lambda c: c.map(order), ignore_index=True)
