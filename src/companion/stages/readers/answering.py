"""Readers: what answers the requests of the exposure study.

Three are simulated, and say so in their names: they are no models of any language model. They hold what a study
must find if it is sound: a reader that follows the rules has no effect from inadmissible memories, one that quotes
whatever is relevant has an effect of one, and one that errs at a set rate shows that rate.
"""

from __future__ import annotations

import abc
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from companion.errors import InputError
from companion.stages.chat import ChatLog, ChatRequest, ChatSettings, complete, pending, ready
from companion.stages.readers.scenarios import AXES, Candidate, Request

CHAT_LOG = "chat.jsonl"
"""Name of the transcript, inside a run's folder, that a language model's reader appends to."""

REFUSAL = "I cannot answer that from the memories I may use."

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Answer:
    """What a reader said to one request; no text is no answer, and ``problem`` says why."""

    request_id: str
    text: str | None
    truncated: bool = False
    problem: str = ""


class Reader(abc.ABC):
    """Anything that answers requests: ``name`` and ``description`` say who, ``simulated`` that it is no model."""

    name: str
    description: str
    simulated: bool = False

    def settings(self) -> dict[str, Any]:
        """Return everything that decides the answers, without any key; kept in the run record."""
        return {}

    def check(self, requests: Sequence[Request], folder: Path) -> None:  # noqa: B027
        """Refuse what can be known to fail before anything is asked or written; ``folder`` may not exist yet."""

    @abc.abstractmethod
    def answer(self, requests: Sequence[Request], folder: Path, progress: Progress | None = None) -> list[Answer]:
        """Answer every request once, in order; ``folder`` is the run's own, for a transcript to resume from."""


@dataclass(frozen=True)
class SimulatedReader(Reader):
    """A reader that decides from the metadata of the memories in the prompt, by a rule given as a function."""

    name: str
    description: str
    quotes: Callable[[Request, Candidate], bool]
    options: Mapping[str, Any] = field(default_factory=dict)
    simulated: bool = True

    def settings(self) -> dict[str, Any]:
        """Return the options."""
        return dict(self.options)

    def answer(self, requests: Sequence[Request], folder: Path, progress: Progress | None = None) -> list[Answer]:
        """Decide from the metadata; nothing is written."""
        answers = []
        for number, request in enumerate(requests, 1):
            said = [c.text for c in request.memories if c.relevant and self.quotes(request, c)]
            answers.append(Answer(request.request_id, " ".join(said) or REFUSAL))
            if progress:
                progress(number, len(requests))
        return answers


def perfect() -> SimulatedReader:
    """Make the simulated reader that follows the rules: it quotes what is relevant and admissible, nothing else."""
    description = "Simulated: applies the stated rules to the metadata without error."
    return SimulatedReader("simulated-perfect", description, lambda request, candidate: _settled(candidate, request))


def quoting() -> SimulatedReader:
    """Make the simulated reader that ignores the rules: it quotes whatever is relevant."""
    description = "Simulated: quotes every relevant memory in the prompt, whatever the rules say."
    return SimulatedReader("simulated-quoting", description, lambda request, candidate: True)


def erring(rate: float | Mapping[str, float] = 0.1, seed: int = 0) -> SimulatedReader:
    """Make the simulated reader that takes the wrong decision at a set rate, the same everywhere or by axis.

    For each request, with the given probability and independently of all others, it quotes what the rules forbid
    and withholds what they permit. Its relevant-inadmissible effect is the rate, its relevant-admissible effect one
    minus the rate, in expectation.
    """
    rates = dict(rate) if isinstance(rate, Mapping) else dict.fromkeys(AXES, float(rate))
    for axis, value in rates.items():
        if axis not in AXES:
            raise InputError(f"rate: axis {axis!r}; expected one of {', '.join(AXES)}")
        if not (math.isfinite(value) and 0 <= value <= 1):
            raise InputError(f"rate: {value} for {axis}; expected a probability between 0 and 1")

    def quotes(request: Request, candidate: Candidate) -> bool:
        digest = hashlib.sha256(f"{seed}\x00{request.request_id}".encode()).digest()
        errs = int.from_bytes(digest[:8], "big") / 2**64 < rates.get(request.axis, 0.0)
        return _settled(candidate, request) != errs

    description = "Simulated: decides wrongly at a set rate by governing axis, otherwise follows the rules."
    return SimulatedReader("simulated-erring", description, quotes, {"rate": rates, "seed": seed})


def _settled(candidate: Candidate, request: Request) -> bool:
    """Return whether the rules are known to permit a memory: what is unresolved is not used."""
    status = candidate.admissible(request.context)
    return status is not pd.NA and bool(status)


SIMULATED: Mapping[str, Callable[[], SimulatedReader]] = {
    "simulated-perfect": perfect,
    "simulated-quoting": quoting,
    "simulated-erring": erring,
}
"""Simulated readers by name, with their default options."""


def rates_from(texts: Iterable[str]) -> float | dict[str, float]:
    """Read ``.2`` (every axis) or ``as_of_time=.2`` (one axis each) into what :func:`erring` takes."""
    given = list(texts)
    pairs = [text.partition("=") for text in given]
    try:
        if len(given) == 1 and not pairs[0][1]:
            return float(given[0])
        if all(separator for _, separator, _ in pairs):
            return {axis.strip(): float(value) for axis, _, value in pairs}
    except ValueError as error:
        raise InputError(f"rate: {error}; expected a number such as .2 or as_of_time=.2") from error
    raise InputError(f"rate: {' '.join(given)!r}; expected one number, or axis=number for each axis")


@dataclass(frozen=True)
class ChatReader(Reader):
    """Any OpenAI-compatible model, through :mod:`companion.stages.chat`."""

    chat: ChatSettings
    name: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.chat.model)
        object.__setattr__(self, "description", f"{self.chat.model} at {self.chat.address}.")

    def settings(self) -> dict[str, Any]:
        """Return what decides the answers: model, server, sampling; neither caps nor pace, and never a key."""
        keep = ("model", "max_tokens", "max_tokens_field", "temperature", "extra")
        stated = asdict(self.chat)
        return {"base_url": self.chat.address, **{name: stated[name] for name in keep}}

    def check(self, requests: Sequence[Request], folder: Path) -> None:
        """Make sure that what the transcript does not answer yet could be sent."""
        if pending(_asked(requests), self.chat, ChatLog(folder / CHAT_LOG)):
            ready(self.chat)

    def answer(self, requests: Sequence[Request], folder: Path, progress: Progress | None = None) -> list[Answer]:
        """Ask what the transcript does not answer yet."""
        replies = complete(_asked(requests), self.chat, ChatLog(folder / CHAT_LOG), progress=progress)
        problem = {r.id: "" if r.text is not None else r.error or r.status for r in replies}
        return [Answer(r.id, r.text, r.finish_reason == "length", problem[r.id]) for r in replies]


def _asked(requests: Sequence[Request]) -> list[ChatRequest]:
    return [ChatRequest.ask(r.request_id, r.prompt, r.system) for r in requests]


@dataclass(frozen=True)
class ReplayReader(Reader):
    """Answers that someone else produced, from a JSON Lines file of ``request_id`` and ``answer``."""

    path: Path
    name: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.path.stem)
        object.__setattr__(self, "description", f"Answers replayed from {self.path.name}.")

    def settings(self) -> dict[str, Any]:
        """Return the file's name and sha256."""
        return {"file": self.path.name, "sha256": hashlib.sha256(self._read()).hexdigest()}

    def check(self, requests: Sequence[Request], folder: Path) -> None:
        """Make sure that the file answers every request."""
        by_request(requests, self.answer(requests, folder))

    def answer(self, requests: Sequence[Request], folder: Path, progress: Progress | None = None) -> list[Answer]:
        """Look every request up."""
        known, found = {request.request_id for request in requests}, dict[str, Answer]()
        for number, line in enumerate(self._read().split(b"\n"), 1):
            if not line.strip():
                continue
            where = f"{self.path}: line {number}"
            answer = _replayed(line, where)
            if answer.request_id not in known:
                raise InputError(f"{where}: request_id {answer.request_id!r} is not one of the study's requests")
            if answer.request_id in found:
                raise InputError(f"{where}: request_id {answer.request_id!r} occurs twice; expected one answer each")
            found[answer.request_id] = answer
        absent = f"not in {self.path.name}"
        return [found.get(r.request_id, Answer(r.request_id, None, problem=absent)) for r in requests]

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be read ({error.strerror}); expected answers in JSON Lines"
            ) from error


def _replayed(line: bytes, where: str) -> Answer:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error})") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("request_id"), str) or "answer" not in entry:
        raise InputError(f"{where}: expected an object with request_id (text) and answer (text or null)")
    text = entry["answer"]
    if text is not None and not isinstance(text, str):
        raise InputError(f"{where}: answer {text!r}; expected text or null")
    problem = "" if text is not None else "its answer is null"
    return Answer(entry["request_id"], text, bool(entry.get("truncated", False)), problem)


def by_request(requests: Sequence[Request], answers: Iterable[Answer]) -> dict[str, Answer]:
    """Index answers by request, or refuse what is not exactly one answer each: a set with holes is not scored."""
    known, by_id = {request.request_id for request in requests}, dict[str, Answer]()
    for answer in answers:
        if answer.request_id not in known:
            raise InputError(f"answer to {answer.request_id!r}: no such request in the study")
        if answer.request_id in by_id:
            raise InputError(f"answer to {answer.request_id!r}: given twice; expected one answer each")
        by_id[answer.request_id] = answer
    nothing = Answer("", None, problem="no answer was given")
    holes = [name for r in requests if by_id.get(name := r.request_id, nothing).text is None]
    if holes:
        why = by_id.get(holes[0], nothing).problem or nothing.problem
        raise InputError(
            f"incomplete: {len(holes)} of {len(requests)} requests have no answer, first {holes[0]} ({why}); "
            "nothing was scored; run again to ask what is missing"
        )
    return by_id
