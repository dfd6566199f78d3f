"""Any OpenAI-compatible model as a text-only verifier."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from companion.errors import InputError
from companion.stages.chat import ChatAnswer, ChatLog, ChatPlan, ChatRequest, ChatSettings, complete, incomplete, plan
from companion.stages.verifiers.base import Untrained

SYSTEM = (
    "You check memories before an assistant may use them. A memory may be used for a question only if it belongs to "
    "the person who asks (scope), may be shown to them for this purpose (policy), and is neither outdated nor "
    "withdrawn for what the question asks about (lifecycle). Whether it is relevant plays no part. Judge from the "
    'two texts alone. Answer with one JSON object and nothing else: {"violation_probability": p}, where p from 0 to 1 '
    "is the probability that using the memory would break one of these conditions."
)
PROMPT = "Question:\n{query_text}\n\nMemory:\n{memory_text}"
FIELD = "violation_probability"


class ChatVerifier(Untrained):
    """Asks a chat model about every candidate, one request each."""

    description = "Text only: a chat model asked for the probability of a violation."

    def __init__(
        self, settings: ChatSettings, folder: Path | str, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.settings = settings
        self.name = settings.model
        self.unreadable = 0
        safe = re.sub(r"[^\w.-]+", "_", settings.model)
        self.log = ChatLog(Path(folder) / f"verifier-{safe}.jsonl")
        self._progress = progress

    def requests(self, candidates: pd.DataFrame) -> list[ChatRequest]:
        """Return one request per candidate; its id is ``query_id``, a line feed and ``memory_id``."""
        return [
            ChatRequest.ask(f"{row['query_id']}\n{row['memory_id']}", PROMPT.format_map(row), SYSTEM)
            for row in candidates.to_dict("records")
        ]

    def plan(self, candidates: pd.DataFrame) -> ChatPlan:
        """Say what judging would send and the most it could cost."""
        return plan(self.requests(candidates), self.settings, self.log)

    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Ask the model."""
        answers = complete(self.requests(candidates), self.settings, self.log, progress=self._progress)
        lacking = incomplete(answers)
        if lacking:
            told = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in lacking.items())
            first = next(a.error for a in answers if a.status != "answered")
            raise InputError(
                f"verifier {self.name}: {told} of {len(answers)} requests ({first}); run again to go on from "
                f"{self.log.path}"
            )
        values = pd.Series([read_probability(a) for a in answers], index=candidates.index, dtype="Float64")
        self.unreadable = int(values.isna().sum())
        return values


def read_probability(answer: ChatAnswer) -> float | None:
    """Take the probability out of an answer."""
    for found in re.finditer(r"\{[^{}]*\}", answer.text or ""):
        try:
            value = json.loads(found.group()).get(FIELD)
        except ValueError:
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
    return None
