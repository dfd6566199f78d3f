"""Run the paired exposure study on a reader, and keep everything that was asked and said.

A run lives in one folder::

    run.json            what was run: reader, its settings, the scenario set's sha256
    requests.jsonl      every request, in full
    chat.jsonl          a language model's transcript as it grew (an interrupted run resumes from it)
    transcripts.jsonl   every answer with the disclosure it was scored as
    outcomes.parquet    the outcomes table (also outcomes.csv)

The last two appear only when every request has an answer: a set with holes is refused, not scored in part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from companion.disclosure import disclosed
from companion.errors import InputError
from companion.stages.chat import ChatLog
from companion.stages.readers.answering import CHAT_LOG, Answer, Progress, Reader, by_request
from companion.stages.readers.scenarios import SIDES, Request, ScenarioSet, load_scenarios
from companion.tables import atomic_path, write_table

RUN, REQUESTS, TRANSCRIPTS = "run.json", "requests.jsonl", "transcripts.jsonl"
OUTCOMES = ("outcomes.parquet", "outcomes.csv")
UNIT = ["scenario", "axis", "pair", "condition", "candidate_role", "cell"]


@dataclass(frozen=True)
class Run:
    """A complete run: its outcomes table, its folder, and how many answers ran out of length."""

    outcomes: pd.DataFrame
    folder: Path
    truncated: int


def run(
    reader: Reader, folder: Path | str, scenarios: ScenarioSet | None = None, *, progress: Progress | None = None
) -> Run:
    """Ask a reader every request, score the answers, and write the run's folder.

    Parameters
    ----------
    reader : Reader
        Simulated, a chat model, or answers from a file.
    folder : path
        Of this run alone; running again resumes.
    scenarios : ScenarioSet, optional
        Ours by default.
    progress : callable, optional
        Told how many requests are settled, and of how many.

    Returns
    -------
    Run

    Raises
    ------
    InputError
        When a request has no answer (nothing is scored then), or the folder holds another run.
    """
    used = scenarios if scenarios is not None else load_scenarios()
    requests = used.requests()
    reader.check(requests, Path(folder))  # first, so that a refusal leaves nothing behind
    where = prepare(reader, folder, used)
    answers = reader.answer(requests, where, progress)
    outcomes, transcript = score(requests, answers, reader.name)
    _write_lines(where / TRANSCRIPTS, transcript)
    for name in OUTCOMES:
        write_table(outcomes, where / name, "outcomes")
    return Run(outcomes, where, sum(answer.truncated for answer in answers))


def prepare(reader: Reader, folder: Path | str, scenarios: ScenarioSet | None = None) -> Path:
    """Make a run's folder with its record and its requests, without asking anything."""
    used = scenarios if scenarios is not None else load_scenarios()
    where = Path(folder)
    record = {
        "reader": reader.name,
        "description": reader.description,
        "simulated": reader.simulated,
        "settings": reader.settings(),
        "scenarios": used.name,
        "scenarios_sha256": used.digest,
        "requests": len(used.requests()),
    }
    try:
        where.mkdir(parents=True, exist_ok=True)
        _claim(where / RUN, json.loads(json.dumps(record)))
        _write_lines(where / REQUESTS, (request_record(request) for request in used.requests()))
    except OSError as error:
        raise InputError(f"{where}: cannot be written ({error.strerror}); expected a folder for the run") from error
    return where


def provenance(outcomes: Path | str) -> str:
    """Say in words where an outcomes table came from, if it lies in a run's folder."""
    path = Path(outcomes)
    try:
        record = json.loads((path.parent / RUN).read_text(encoding="utf-8"))
        lines = (path.parent / TRANSCRIPTS).read_text(encoding="utf-8").splitlines()
        cut = sum(bool(json.loads(line)["truncated"]) for line in lines)
        who, asked, digest = (str(record[name]) for name in ("description", "scenarios", "scenarios_sha256"))
        OUTCOMES.index(path.name)
    except (OSError, ValueError, KeyError, TypeError):
        return "Where they came from is not recorded beside the file."
    ended = f"{cut} of {len(lines)} answers ran out of length: a disclosure may be missed in them."
    return (
        f"{who} Asked: scenario set {asked} (SHA-256 {digest[:12]}). {ended if cut else 'No answer ran out of length.'}"
    )


def request_record(request: Request) -> dict[str, Any]:
    """Return a request as it is written to ``requests.jsonl``: everything asked, nothing derived."""
    return {name: getattr(request, name) for name in ("request_id", *UNIT, "side", "marker", "system", "prompt")}


def score(
    requests: Sequence[Request], answers: Iterable[Answer], reader: str
) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Turn answers into the outcomes table, one row per unit, and the transcript."""
    by_id = by_request(requests, answers)
    said = [by_id[request.request_id] for request in requests]
    rows = pd.DataFrame([{name: getattr(r, name) for name in ("request_id", *UNIT, "side")} for r in requests])
    rows["disclosed"] = disclosed([a.text for a in said], [request.marker for request in requests])
    rows = rows.assign(
        reader=reader, answer=pd.Series([a.text for a in said], dtype=object), truncated=[a.truncated for a in said]
    )
    transcript: list[Any] = rows[["request_id", "reader", "answer", "disclosed", "truncated"]].to_dict("records")
    # ids are text in the contract
    sides = rows.astype({"pair": "str"}).pivot(index=["reader", *UNIT], columns="side", values="disclosed")
    order = rows.loc[rows["side"] == SIDES[0], ["reader", "axis", *(n for n in UNIT if n != "axis")]]
    both = sides.add_prefix("disclosed_").reset_index().rename_axis(columns=None)
    outcomes = order.astype({"pair": "str"}).merge(both, how="left", validate="one_to_one")
    return outcomes[[*order, *(f"disclosed_{side}" for side in SIDES)]], transcript


def _claim(path: Path, record: Mapping[str, Any]) -> None:
    """Write the run record, or make sure that the one there is the same run or never got an answer."""
    if path.exists():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path}: not a run record ({error}); choose another folder") from error
        told = found if isinstance(found, dict) else {}
        other = [name for name, value in record.items() if told.get(name) != value]
        if not other:
            return
        if not told or _has_answers(path.parent):
            has, value = told.get(other[0], found if not told else None), record[other[0]]
            raise InputError(f"{path}: holds another run ({other[0]} is {has!r}, not {value!r}); choose another folder")
    _write_text(path, json.dumps(record, ensure_ascii=False, indent=1) + "\n")


def _has_answers(folder: Path) -> bool:
    """Tell whether a run in this folder got any answer; one that is at work right now is refused by its transcript."""
    if any((folder / name).exists() for name in (TRANSCRIPTS, *OUTCOMES)):
        return True
    log = ChatLog(folder / CHAT_LOG)
    if not log.path.exists():
        return False
    with log.writing():
        return bool(log.answers())


def _write_lines(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    _write_text(path, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))


def _write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
