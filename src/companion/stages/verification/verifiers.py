"""Verifiers: candidates in, a probability of violation for each out.

A verifier of your own is any object with ``name``, ``description``, ``needs``, ``fit`` and ``probability`` (see
:class:`Verifier`), or a file of probabilities (:class:`Replay`).
"""

from __future__ import annotations

import abc
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion import logic
from companion.errors import InputError
from companion.stages.chat import ChatAnswer, ChatLog, ChatRequest, ChatSettings, complete, incomplete
from companion.stages.verification.measures import as_floats

TEXT_COLUMNS = ("query_id", "memory_id", "query_text", "memory_text")
"""What every verifier is shown."""

METADATA_COLUMNS = (
    *logic.AXES,
    "query_namespace",
    "memory_namespace",
    "state",
    "intent",
    "principal",
)
"""What a verifier may ask for by name; the first three are the released values of the axes."""

_KEY = ["query_id", "memory_id"]
SYSTEM = (
    "You check memories before an assistant may use them. A memory may be used for a question only if it belongs to "
    "the person who asks (scope), may be shown to them for this purpose (policy), and is neither outdated nor "
    "withdrawn for what the question asks about (lifecycle). Whether it is relevant plays no part. Judge from the "
    'two texts alone. Answer with one JSON object and nothing else: {"violation_probability": p}, where p from 0 to 1 '
    "is the probability that using the memory would break one of these conditions."
)
PROMPT = "Question:\n{query_text}\n\nMemory:\n{memory_text}"


@runtime_checkable
class Verifier(Protocol):
    """Judges candidates. ``needs`` names the metadata that it is shown beside the texts."""

    name: str
    description: str
    needs: tuple[str, ...]

    def fit(self, calibration: pd.DataFrame) -> pd.Series:
        """Learn from calibration cases; return probabilities for them that were not learnt from their own case."""
        ...

    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Return a probability of violation for each candidate, missing where it abstains, on the same index."""
        ...


class Untrained(abc.ABC):
    """Base of verifiers that learn nothing from calibration cases."""

    name = "untrained"
    description = ""
    needs: tuple[str, ...] = ()

    def fit(self, calibration: pd.DataFrame) -> pd.Series:
        """Learn nothing; judge the calibration cases like any others."""
        return self.probability(calibration)

    @abc.abstractmethod
    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Judge candidates."""


class KeepAll(Untrained):
    """Holds nothing for a violation: the route as it was."""

    name = "keep_all"
    description = "Gives every candidate probability 0."

    value = 0.0

    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Return the same value throughout."""
        return pd.Series(self.value, index=candidates.index, dtype="Float64")


class DenyAll(KeepAll):
    """Holds everything for a violation: what perfect detection costs when it is bought with the evidence."""

    name = "deny_all"
    description = "Gives every candidate probability 1."
    value = 1.0


class ReleasedMetadata(Untrained):
    """Reads the released axes, the labels that it is scored with: its ROC-AUC is 1 by construction."""

    name = "released_metadata"
    description = "Probability 1 where a released axis is 0, 0 where all are 1; abstains on what is unresolved."
    needs: tuple[str, ...] = logic.AXES

    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Return 1 for a known violation, 0 for known admissibility, ``<NA>`` otherwise."""
        status: pd.Series = logic.admissible(candidates["scope"], candidates["policy"], candidates["lifecycle"])
        return (~status).astype("Float64")


class Replay(Untrained):
    """Takes probabilities from a file (query_id, memory_id, probability), such as your own verifier's."""

    description = "Probabilities read from a file."

    def __init__(self, path: Path | str, name: str | None = None) -> None:
        from companion.tables.files import read_raw

        self.path = Path(path)
        self.name = name or self.path.stem
        frame, _ = read_raw(self.path)
        missing = [c for c in (*_KEY, "probability") if c not in frame]
        if missing:
            raise InputError(f"{self.path}: no column {missing[0]!r}; expected query_id, memory_id, probability")
        ids = frame[_KEY].astype("str")
        twice = ids.duplicated()
        if twice.any():
            row = int(twice.to_numpy().argmax())
            raise InputError(f"{self.path}, row {row + 1}: {tuple(ids.iloc[row])} is listed twice")
        stated = frame["probability"]
        stated = stated.mask(stated.astype("str") == "")  # an empty field of a text file is an abstention
        try:
            values = as_floats(stated)
        except InputError as error:
            raise InputError(f"{self.path}, {error}") from None
        self._values = ids.assign(probability=pd.Series(values, index=ids.index).astype("Float64"), _listed=True)

    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Look every candidate up; one that the file does not list is refused."""
        found = candidates[_KEY].merge(self._values, on=_KEY, how="left")
        absent = found["_listed"].isna()
        if absent.any():
            first = found.loc[absent, _KEY].iloc[0]
            raise InputError(
                f"{self.path}: {int(absent.sum())} of {len(found)} candidates are not listed, the first is query "
                f"{first['query_id']!r}, memory {first['memory_id']!r}; leave probability empty to abstain"
            )
        return found["probability"].set_axis(candidates.index)


class TextPairs:
    """Logistic regression on features of the pair of text embeddings.

    Query vector *u* and memory vector *v* give the features ``|u - v|``, ``u * v`` and their cosine. It is trained on
    the known candidates of the calibration cases and on nothing else, and stands for what a small model can read
    from two texts; it has no access to identity, policy or state.
    """

    name = "text_pairs"
    description = "Text only: logistic regression on features of the query and memory embeddings."
    needs: tuple[str, ...] = ()

    def __init__(self, encoder: Any = None, strength: float = 0.1, folds: int = 4) -> None:
        self._encoder = encoder
        self.strength, self.folds = strength, folds
        self._model: Any = None

    def fit(self, calibration: pd.DataFrame) -> pd.Series:
        """Train on candidates with a known status; return cross-fitted probabilities for all."""
        from sklearn.base import clone
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GroupKFold
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        known = calibration["violation"].notna().to_numpy()
        target = calibration["violation"].fillna(False).to_numpy(bool)  # only read where `known`
        cases = calibration["query_id"].to_numpy()
        if len(np.unique(target[known])) < 2 or len(np.unique(cases)) < 2:
            raise InputError(f"verifier {self.name}: calibration needs two cases and both statuses to learn from")
        features = self.features(calibration)
        blank = make_pipeline(StandardScaler(), LogisticRegression(C=self.strength, max_iter=2000))
        self._model = clone(blank).fit(features[known], target[known])
        out = np.full(len(calibration), np.nan)
        for rest, held in GroupKFold(min(self.folds, len(np.unique(cases)))).split(features, groups=cases):
            seen = rest[known[rest]]
            if len(np.unique(target[seen])) == 2:  # otherwise nothing can be learnt: abstain on this fold
                out[held] = clone(blank).fit(features[seen], target[seen]).predict_proba(features[held])[:, 1]
        return pd.Series(out, index=calibration.index).astype("Float64")

    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Apply the trained model."""
        if self._model is None:
            raise InputError(f"verifier {self.name}: not trained yet; calibrate it first")
        values = self._model.predict_proba(self.features(candidates))[:, 1]
        return pd.Series(values, index=candidates.index).astype("Float64")

    def features(self, candidates: pd.DataFrame) -> NDArray[np.float32]:
        """Return the features of every pair: float32, shape (n, 2 d + 1)."""
        u = self._vectors(candidates["query_text"], "query")
        v = self._vectors(candidates["memory_text"], "document")
        product = u * v
        return np.hstack([np.abs(u - v), product, product.sum(axis=1, keepdims=True)])

    def _vectors(self, texts: pd.Series, kind: str) -> NDArray[np.float32]:
        if self._encoder is None:
            from companion.retrieval import Encoder

            self._encoder = Encoder()
        codes, distinct = pd.factorize(texts)
        vectors: NDArray[np.float32] = self._encoder.encode(list(distinct), kind=kind)
        return vectors[codes]


class ChatVerifier(Untrained):
    """Asks any OpenAI-compatible chat model about every candidate, one request each, from the two texts alone."""

    description = "Text only: a chat model asked for the probability of a violation."

    def __init__(
        self, settings: ChatSettings, folder: Path | str, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.settings, self.name, self.unreadable = settings, settings.model, 0
        safe = re.sub(r"[^\w.-]+", "_", settings.model)
        self.log = ChatLog(Path(folder) / f"verifier-{safe}.jsonl")
        self._progress = progress

    def requests(self, candidates: pd.DataFrame) -> list[ChatRequest]:
        """Return one request per candidate; its id is ``query_id``, a line feed and ``memory_id``."""
        rows = candidates.to_dict("records")
        return [ChatRequest.ask(f"{r['query_id']}\n{r['memory_id']}", PROMPT.format_map(r), SYSTEM) for r in rows]

    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Ask the model; an incomplete set of answers is refused, and a second call asks only what is missing."""
        answers = complete(self.requests(candidates), self.settings, self.log, progress=self._progress)
        lacking = incomplete(answers)
        if lacking:
            told = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in lacking.items())
            first = next(a.error for a in answers if a.status in lacking)
            raise InputError(
                f"verifier {self.name}: {told} of {len(answers)} requests ({first}); run again to go on from "
                f"{self.log.path}"
            )
        values = pd.Series([read_probability(a) for a in answers], index=candidates.index, dtype="Float64")
        self.unreadable = int(values.isna().sum())
        return values


def read_probability(answer: ChatAnswer) -> float | None:
    """Take the stated probability out of an answer; anything else is an abstention."""
    for found in re.finditer(r"\{[^{}]*\}", answer.text or ""):
        try:
            value = json.loads(found.group()).get("violation_probability")
        except ValueError:
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
    return None


LOCAL: dict[str, type[Any]] = {c.name: c for c in (KeepAll, DenyAll, ReleasedMetadata, TextPairs)}
"""Verifiers that run here, by name."""


def get(name: str) -> Verifier:
    """Make a verifier from a word or a file of probabilities."""
    if name in LOCAL:
        made: Verifier = LOCAL[name]()
        return made
    if Path(name).suffix in {".csv", ".parquet", ".jsonl", ".ndjson"}:
        return Replay(name)
    raise InputError(f"verifier {name!r}: expected {', '.join(LOCAL)} or a file .csv, .parquet, .jsonl or .ndjson")


def judge(verifier: Verifier, table: pd.DataFrame) -> pd.DataFrame:
    """Run a verifier on candidates with texts and hold it to its contract: adds the column ``probability``."""
    return table.assign(probability=_checked(verifier, verifier.probability(_shown(verifier, table)), table))


def calibrate(verifier: Verifier, table: pd.DataFrame) -> pd.DataFrame:
    """Let a verifier learn from calibration cases; it sees ``violation`` of these, and of no others."""
    view = _shown(verifier, table).assign(violation=table["violation"])
    return table.assign(probability=_checked(verifier, verifier.fit(view), table))


def _shown(verifier: Verifier, table: pd.DataFrame) -> pd.DataFrame:
    """Cut a table to what a verifier is entitled to see."""
    unknown = [n for n in verifier.needs if n not in METADATA_COLUMNS]
    if unknown:
        raise InputError(
            f"verifier {verifier.name}: asks for {unknown[0]!r}; expected some of {', '.join(METADATA_COLUMNS)}"
        )
    wanted = [*TEXT_COLUMNS, *verifier.needs]
    missing = [c for c in wanted if c not in table]
    if missing:
        raise InputError(f"verifier {verifier.name}: candidates have no column {missing[0]!r}")
    return table[wanted]


def _checked(verifier: Verifier, values: Any, table: pd.DataFrame) -> pd.Series:
    if not isinstance(values, pd.Series) or not values.index.equals(table.index):
        raise InputError(f"verifier {verifier.name}: expected one probability per candidate, on the same index")
    as_floats(values)
    return values.astype("Float64")
