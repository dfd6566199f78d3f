"""Compare runs: which parameter moved which headline number, how far, and against which intervals.

Runs are compared only with runs that are alike in every other parameter. Their intervals belong to each run by
itself: runs of one notebook usually share data and resamples, so an interval of the *change* cannot be had from
them, and none is claimed.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from companion.book.sweep import FAILED_FILE, PLAN_FILE, RUNS_FOLDER, read_record
from companion.errors import InputError
from companion.paths import read_text

_ENDS = ("estimate", "low", "high")
_MOST_PANELS = 12
_MOST_COLOURS = 6
# Two numbers with intervals in a row, and all that tells the runs apart, need more room than prose.
_STYLE = ".companion-page { max-width: min(68rem, 100%); } .companion-page > p { max-width: 46rem; }"


@dataclass(frozen=True)
class Comparison:
    """The runs of a folder side by side."""

    runs: pd.DataFrame
    numbers: pd.DataFrame
    effects: pd.DataFrame
    varied: tuple[str, ...]


def compare(folder: str | os.PathLike[str]) -> Comparison:
    """Read every run of a folder and compare them."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: expected the folder of a sweep or of reruns")
    found = _of_sweep(folder) if (folder / PLAN_FILE).is_file() else _of_records(folder)
    if not found:
        raise InputError(f"{folder}: holds no runs; expected what companion sweep or companion rerun wrote")
    varied = _varied(found)
    heads = [_head(run, varied) for run in found]
    # Objects: in a column of numbers a parameter that some notebook lacks would turn 5 into 5.0.
    runs = pd.DataFrame(heads, columns=["run", "notebook", "status", *varied, *_ABOUT], dtype=object)
    runs["seconds"] = runs["seconds"].astype("float64")
    rows = [
        {
            **{name: head[name] for name in ("run", "notebook", *varied)},
            "number": item["name"],
            **{end: item.get(end) for end in _ENDS},
        }
        for run, head in zip(found, heads, strict=True)
        for item in run["headline"]
    ]
    numbers = pd.DataFrame(rows, columns=["run", "notebook", *varied, "number", *_ENDS], dtype=object)
    return Comparison(runs, numbers, effects(numbers, varied), varied)


_ABOUT = ("seconds", "started", "commit", "error")
_EFFECT_COLUMNS = (
    "notebook",
    "number",
    "parameter",
    "from_value",
    "to_value",
    *(f"from_{end}" for end in _ENDS),
    *(f"to_{end}" for end in _ENDS),
    "change",
    "intervals_apart",
    "sets",
    "typical_change",
    "others",
)


def effects(numbers: pd.DataFrame, varied: Sequence[str]) -> pd.DataFrame:
    """Find how far each parameter moves each number while all others stay the same."""
    usable = numbers.assign(**{end: pd.to_numeric(numbers[end], errors="coerce").astype("float64") for end in _ENDS})
    usable = usable[usable["estimate"].notna()]
    rows = []
    for (notebook, number), part in usable.groupby(["notebook", "number"], sort=False):
        own = [_effect(part, name, [other for other in varied if other != name]) for name in varied]
        moved = [{"notebook": notebook, "number": number, **row} for row in own if row is not None]
        rows += sorted(moved, key=lambda row: -abs(row["change"]))
    table = pd.DataFrame(rows, columns=list(_EFFECT_COLUMNS), dtype=object)
    floats = ["change", "typical_change", *(f"{side}_{end}" for side in ("from", "to") for end in _ENDS)]
    return table.astype({"intervals_apart": "boolean", "sets": "int64", **dict.fromkeys(floats, "float64")})


def _effect(part: pd.DataFrame, name: str, others: Sequence[str]) -> dict[str, Any] | None:
    """Describe the largest change of one number that goes with one parameter, or None where it never varies alone."""
    place = {value: rank for rank, value in enumerate(ordered(part[name]))}
    keyed = part.assign(_place=part[name].map(lambda value: place[_text(value)]))
    keys = [keyed[other].map(_text) for other in others] or [pd.Series(0, index=keyed.index)]
    spreads = []
    for _, group in keyed.groupby(keys, sort=False):
        by_place, by_size = group.sort_values("_place"), group.sort_values("estimate", kind="stable")
        if by_place["_place"].iloc[0] == by_place["_place"].iloc[-1]:
            continue
        same = by_size["estimate"].iloc[0] == by_size["estimate"].iloc[-1]
        chosen = by_place if same else by_size  # where nothing moved, show the first and the last value
        spreads.append(sorted((chosen.iloc[0], chosen.iloc[-1]), key=lambda row: row["_place"]))
    if not spreads:
        return None
    changes = pd.Series([float(last["estimate"] - first["estimate"]) for first, last in spreads])
    first, last = spreads[int(changes.abs().argmax())]
    return {
        "parameter": name,
        "from_value": first[name],
        "to_value": last[name],
        **{f"from_{end}": float(first[end]) for end in _ENDS},
        **{f"to_{end}": float(last[end]) for end in _ENDS},
        "change": float(last["estimate"] - first["estimate"]),
        "intervals_apart": _apart(first, last),
        "sets": len(spreads),
        "typical_change": float(changes.abs().median()),
        "others": ", ".join(f"{other}={_shown(first[other])}" for other in others),
    }


def _apart(first: pd.Series, last: pd.Series) -> Any:
    if pd.isna([first["low"], first["high"], last["low"], last["high"]]).any():
        return pd.NA
    return bool(first["high"] < last["low"] or last["high"] < first["low"])


def ordered(values: pd.Series) -> list[str]:
    """List the distinct values of a parameter as JSON text: numbers by size, others as they first appear."""
    distinct = {_text(value): value for value in values}
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in distinct.values())
    return sorted(distinct, key=lambda text: distinct[text]) if numeric else list(distinct)


def _text(value: Any) -> str:
    value = value.item() if hasattr(value, "item") else value
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else _text(value)


# --- reading -----------------------------------------------------------------------------------------------------


def _of_sweep(folder: Path) -> list[dict[str, Any]]:
    """List the runs of a sweep's plan, whatever became of them."""
    try:
        plan = json.loads(read_text(folder / PLAN_FILE))
        planned = [(str(run["run"]), dict(run["parameters"])) for run in plan["runs"]]
        notebook = str(plan["notebook"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{folder / PLAN_FILE}: not the plan of a sweep ({error!r})") from error
    return [
        {"run": name, "notebook": notebook, "parameters": values, "headline": [], **_state(folder / RUNS_FOLDER / name)}
        for name, values in planned
    ]


def _state(folder: Path) -> dict[str, Any]:
    record = read_record(folder)
    if record is not None:
        return {**record, "status": "finished"}
    failure = folder / FAILED_FILE
    if failure.is_file():
        try:
            return {"status": "failed", "error": str(json.loads(read_text(failure))["error"])}
        except (ValueError, LookupError, TypeError):
            return {"status": "failed", "error": "unknown"}
    return {"status": "waiting"}


def _of_records(folder: Path) -> list[dict[str, Any]]:
    """Find run records anywhere below a folder; names that begin with a dot are work in progress."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        inside = path.relative_to(folder)
        record = None if any(part.startswith(".") for part in inside.parts) else _record(path)
        if record is not None:
            found.append({**record, "run": inside.with_suffix("").as_posix(), "status": "finished"})
    return found


def _record(path: Path) -> dict[str, Any] | None:
    """Return a run record, or None for any other JSON."""
    try:
        content = json.loads(read_text(path))
    except (InputError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not content.keys() >= {"notebook", "parameters", "headline"}:
        return None
    items = content["headline"]
    sound = isinstance(content["notebook"], str) and isinstance(content["parameters"], dict) and isinstance(items, list)
    if not sound or not all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in items):
        raise InputError(f"{path}: not a run record (notebook, parameters or headline is of another kind)")
    return content


def _varied(found: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Name the parameters that differ between runs of one notebook, in the notebooks' order."""
    seen: dict[str, dict[str, set[str]]] = {}
    for run in found:
        for name, value in run["parameters"].items():
            seen.setdefault(name, {}).setdefault(run["notebook"], set()).add(_text(value))
    return tuple(name for name, by in seen.items() if any(len(values) > 1 for values in by.values()))


def _head(run: Mapping[str, Any], varied: Sequence[str]) -> dict[str, Any]:
    values = {name: run["parameters"].get(name) for name in varied}
    git, seconds = run.get("git"), run.get("seconds")
    return {
        **{name: run[name] for name in ("run", "notebook", "status")},
        **{name: _text(value) if isinstance(value, list | dict) else value for name, value in values.items()},
        "seconds": seconds if isinstance(seconds, int | float) else None,
        "started": run.get("started"),
        "commit": str(git.get("commit") or "")[:10] or None if isinstance(git, dict) else None,
        "error": run.get("error"),
    }


# --- the page ----------------------------------------------------------------------------------------------------


def page(comparison: Comparison, title: str = "Runs compared") -> str:
    """Lay a comparison out as one standalone HTML page."""
    from companion.book.page import frame

    runs, varied = comparison.runs, comparison.varied
    counts = runs["status"].value_counts()
    said = ", ".join(f"{counts[status]} {status}" for status in ("finished", "failed", "waiting") if status in counts)
    names = ", ".join(f"<code>{html.escape(name)}</code>" for name in varied)
    what = f"Parameters that vary: {names}." if names else "No parameter varies."
    body = [f"<h1>{html.escape(title)}</h1>", f"<p>{count(len(runs), 'run')}: {said}. {what}</p>"]
    if len(comparison.effects):
        body += ["<h2>What moved what</h2>", _effects_table(comparison.effects)]
        for number, name in enumerate(varied, 1):
            body += _panels(comparison, name, number)
    shown = runs.drop(columns=["error"]).assign(**{name: runs[name].map(_shown) for name in varied})
    constant = [name for name in ("notebook", "commit") if len(set(shown[name])) == 1]
    caption = "Every run, with the parameters that vary."
    body += ["<h2>All runs</h2>", _table(shown.drop(columns=constant), "runs", caption, formats={"seconds": ".1f"})]
    for _, row in runs[runs["status"] == "failed"].iterrows():
        body.append(f"<p><strong>{html.escape(row['run'])}</strong> failed: {html.escape(str(row['error']))}</p>")
    return frame(title, "\n".join(body)).replace("</style>", f"{_STYLE}</style>", 1)


def count(number: int, what: str) -> str:
    """Write a number of things: "1 run", "2 runs"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _table(shown: pd.DataFrame, name: str, caption: str, **how: Any) -> str:
    from companion.book import table

    return str(table(shown, name=name, caption=caption, **how).data["text/html"])


def _effects_table(effects: pd.DataFrame) -> str:
    shown = effects.drop(columns=["notebook"] if len(set(effects["notebook"])) == 1 else [])
    shown = shown.assign(
        **{name: shown[name].map(_shown) for name in ("from_value", "to_value")},
        # Without intervals the question does not arise; that is not the same as an unresolved label.
        intervals_apart=shown["intervals_apart"].map({True: "yes", False: "no"}).fillna("–"),
    )
    first = [name for name in (*_EFFECT_COLUMNS[:5], "change", "intervals_apart") if name in shown]
    return _table(
        shown[[*first, *(name for name in shown if name not in first)]],
        "effects",
        "The largest change of every number that goes with one parameter while all others stay the same. The intervals "
        "belong to the two runs, not to the change: runs share data and resamples.",
        formats={"change": "+.3f"},
        intervals={f"{side}_estimate": (f"{side}_low", f"{side}_high") for side in ("from", "to")},
        labels={"from_value": "from", "to_value": "to", "from_estimate": "at from", "to_estimate": "at to"},
    )


def _panels(comparison: Comparison, name: str, position: int) -> list[str]:
    """Draw every number against one parameter, with a colour for each group of runs alike in all else."""
    import altair as alt

    from companion.book import CATEGORICAL, figure

    mine = comparison.effects[comparison.effects["parameter"] == name]
    numbers = list(dict.fromkeys(mine["number"]))[:_MOST_PANELS]
    if not numbers:
        return []
    others = [other for other in comparison.varied if other != name]
    data = comparison.numbers[comparison.numbers["number"].isin(numbers)].copy()
    data[list(_ENDS)] = data[list(_ENDS)].apply(pd.to_numeric, errors="coerce")
    data["others"] = [
        ", ".join(f"{other}={_shown(value)}" for other, value in zip(others, values, strict=True)) or "all runs"
        for values in data[others].itertuples(index=False, name=None)
    ]
    order = [_shown(json.loads(text)) for text in ordered(data[name])]
    data = data.assign(value=data[name].map(_shown))[["run", "value", "others", "number", *_ENDS]]
    groups = list(dict.fromkeys(data["others"]))
    side_by_side: dict[str, Any] = {"color": alt.value(CATEGORICAL[0])}
    if 1 < len(groups) <= _MOST_COLOURS:
        scale = alt.Scale(domain=groups, range=list(CATEGORICAL[: len(groups)]))
        legend = alt.Legend(title=None, orient="top", columns=1, labelLimit=600)
        side_by_side = {
            "xOffset": alt.XOffset("others:N", sort=groups),
            "color": alt.Color("others:N", scale=scale, legend=legend),
        }
    panels = []
    for number in numbers:
        base = alt.Chart(data[data["number"] == number]).encode(
            x=alt.X("value:N", sort=order, title=name, axis=alt.Axis(labelAngle=0)),
            detail="others:N",
            tooltip=["run:N", "value:N", "others:N", *(alt.Tooltip(f"{end}:Q", format=".4f") for end in _ENDS)],
            **side_by_side,
        )
        height = alt.Y("low:Q", title=number, scale=alt.Scale(zero=False))
        layers = [
            base.mark_rule(opacity=0.6).encode(y=height, y2="high:Q"),
            base.mark_line(opacity=0.7).encode(y="estimate:Q"),
            base.mark_point(filled=True, size=60).encode(y="estimate:Q"),
        ]
        panels.append(alt.layer(*layers).properties(width=280, height=180))
    left = mine["number"].nunique() - len(numbers)
    rest = f" {count(left, 'more number')} in the table above." if left else ""
    made = figure(
        alt.concat(*panels, columns=2),
        name=f"parameter-{position}",
        caption=f"Headline numbers against {name.replace('_', ' ')}, with the interval of every run.{rest}",
        alt=f"One panel for each headline number, with the values of {name} across and the estimates upwards.",
        table=data,
    )
    return [f"<h2>{html.escape(name)}</h2>", str(made.data["text/html"])]
