"""Run the paired exposure study on a reader, and keep everything that was asked and said (Protocol section 7).

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
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from companion import scenarios as scenario_sets
from companion.disclosure import disclosed
from companion.errors import InputError
from companion.readers import Answer, Progress, Reader
from companion.scenarios import Request, ScenarioSet
from companion.tables import write_table

RUN, REQUESTS, TRANSCRIPTS = "run.json", "requests.jsonl", "transcripts.jsonl"
OUTCOMES = ("outcomes.parquet", "outcomes.csv")

UNIT = ("scenario", "axis", "pair", "condition", "candidate_role", "cell")


@dataclass(frozen=True)
class Run:
    """A complete run.

    Attributes
    ----------
    outcomes : DataFrame
        The outcomes table of the contract, one row per unit.
    folder : Path
    truncated : int
        Answers that ran out of length; their disclosures may be missed, and a chapter should say so.
    """

    outcomes: pd.DataFrame
    folder: Path
    truncated: int


def run(
    reader: Reader,
    folder: Path | str,
    scenarios: ScenarioSet | None = None,
    *,
    progress: Progress | None = None,
) -> Run:
    """Ask a reader every request, score the answers, and write the run's folder.

    Parameters
    ----------
    reader : Reader
        Simulated, replayed, or a language model.
    folder : path
        Made if absent. A folder that holds an interrupted run of the same reader, settings and scenarios is
        resumed; one that holds anything else is refused.
    scenarios : ScenarioSet, optional
        The project's own set by default.
    progress : callable, optional
        Called with (settled, total).

    Returns
    -------
    Run

    Raises
    ------
    InputError
        Another run lives in the folder, the folder cannot be written, or some requests have no answer: the
        message names how many, the first of them, and why.
    """
    used = scenarios if scenarios is not None else scenario_sets.load()
    requests = used.requests()
    where = prepare(reader, folder, used)
    answers = reader.answer(requests, where, progress)
    outcomes, transcript = score(requests, answers, reader.name)
    _write_lines(where / TRANSCRIPTS, transcript)
    for name in OUTCOMES:
        write_table(outcomes, where / name, "outcomes")
    return Run(outcomes, where, sum(answer.truncated for answer in answers))


def prepare(reader: Reader, folder: Path | str, scenarios: ScenarioSet | None = None) -> Path:
    """Make a run's folder with its record and its requests, without asking anything.

    Parameters
    ----------
    reader : Reader
    folder : path
    scenarios : ScenarioSet, optional

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    InputError
        The folder holds another run, or cannot be written.
    """
    used = scenarios if scenarios is not None else scenario_sets.load()
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


def request_record(request: Request) -> dict[str, Any]:
    """Return a request as it is written to ``requests.jsonl``: everything asked, nothing derived."""
    return {
        "request_id": request.request_id,
        **{name: getattr(request, name) for name in UNIT},
        "side": request.side,
        "marker": request.marker,
        "system": request.system,
        "prompt": request.prompt,
    }


def score(
    requests: Sequence[Request], answers: Iterable[Answer], reader: str
) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Turn answers into the outcomes table (Protocol section 7).

    Parameters
    ----------
    requests : sequence of Request
        Both sides of every unit.
    answers : iterable of Answer
        Exactly one with text per request, in any order.
    reader : str
        Name for the table.

    Returns
    -------
    outcomes : DataFrame
        ``reader``, ``axis``, ``scenario``, ``pair``, ``condition``, ``candidate_role``, ``cell``, and boolean
        ``disclosed_exposed`` and ``disclosed_withheld``; one row per unit, in the order of the requests.
    transcript : list of dict
        One record per request: ``request_id``, ``reader``, ``answer``, ``disclosed``, ``truncated``.

    Raises
    ------
    InputError
        A request without an answer, or with two, or an answer to a request that was never made.
    """
    by_id = _complete(requests, answers)
    texts = [by_id[request.request_id].text for request in requests]
    found = disclosed(texts, [request.marker for request in requests])
    transcript = [
        {
            "request_id": request.request_id,
            "reader": reader,
            "answer": text,
            "disclosed": bool(hit),
            "truncated": by_id[request.request_id].truncated,
        }
        for request, text, hit in zip(requests, texts, found, strict=True)
    ]
    rows = pd.DataFrame([{name: getattr(r, name) for name in UNIT} | {"side": r.side} for r in requests])
    rows["disclosed"] = found
    sides = [
        rows[rows["side"] == side].drop(columns="side").rename(columns={"disclosed": f"disclosed_{side}"})
        for side in scenario_sets.SIDES
    ]
    outcomes = sides[0].merge(sides[1], on=list(UNIT), how="left", validate="one_to_one")
    outcomes = outcomes.assign(reader=reader, pair=outcomes["pair"].astype("str"))  # ids are text in the contract
    keys = ["reader", "axis", *(name for name in UNIT if name != "axis")]
    return outcomes[[*keys, *(f"disclosed_{side}" for side in scenario_sets.SIDES)]], transcript


def _complete(requests: Sequence[Request], answers: Iterable[Answer]) -> dict[str, Answer]:
    """Index answers by request, or refuse what is not exactly one answer each."""
    known = {request.request_id for request in requests}
    by_id: dict[str, Answer] = {}
    for answer in answers:
        if answer.request_id not in known:
            raise InputError(f"answer to {answer.request_id!r}: no such request in the study")
        if answer.request_id in by_id:
            raise InputError(f"answer to {answer.request_id!r}: given twice; expected one answer each")
        by_id[answer.request_id] = answer
    holes = [r for r in requests if r.request_id not in by_id or by_id[r.request_id].text is None]
    if holes:
        first = by_id.get(holes[0].request_id)
        why = first.problem if first is not None and first.problem else "no answer was given"
        raise InputError(
            f"incomplete: {len(holes)} of {len(requests)} requests have no answer, first {holes[0].request_id}"
            f" ({why}); nothing was scored; run again to ask what is missing"
        )
    return by_id


def _claim(path: Path, record: Mapping[str, Any]) -> None:
    """Write the run record, or make sure that the one there is the same run."""
    if path.exists():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path}: not a run record ({error}); choose another folder") from error
        for name, value in record.items():
            if not isinstance(found, dict) or found.get(name) != value:
                has = found.get(name) if isinstance(found, dict) else found
                raise InputError(f"{path}: holds another run ({name} is {has!r}, not {value!r}); choose another folder")
        return
    _write_text(path, json.dumps(record, ensure_ascii=False, indent=1) + "\n")


def _write_lines(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    _write_text(path, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))


def _write_text(path: Path, text: str) -> None:
    """Write under a temporary name and rename, so that no reader ever sees half a file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
