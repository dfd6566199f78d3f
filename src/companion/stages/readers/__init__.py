"""Stage three, readers: scenarios, the paired requests made of them, what answers, and what it disclosed."""

from companion.stages.readers.answering import (
    CHAT_LOG,
    SIMULATED,
    Answer,
    ChatReader,
    Reader,
    ReplayReader,
    SimulatedReader,
    erring,
    perfect,
    quoting,
    rates_from,
)
from companion.stages.readers.run import OUTCOMES, REQUESTS, RUN, TRANSCRIPTS, Run, prepare, provenance, run, score
from companion.stages.readers.scenarios import Candidate, Pair, Request, ScenarioSet, cell_of, load_scenarios, problems

__all__ = [
    "CHAT_LOG",
    "OUTCOMES",
    "REQUESTS",
    "RUN",
    "SIMULATED",
    "TRANSCRIPTS",
    "Answer",
    "Candidate",
    "ChatReader",
    "Pair",
    "Reader",
    "ReplayReader",
    "Request",
    "Run",
    "ScenarioSet",
    "SimulatedReader",
    "cell_of",
    "erring",
    "load_scenarios",
    "perfect",
    "prepare",
    "problems",
    "provenance",
    "quoting",
    "rates_from",
    "run",
    "score",
]
