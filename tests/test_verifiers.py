"""Verifiers: what they may see, what they answer, and the chat one against a stub server."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from _made_up import made_up
from test_chat import Stub, good, stub  # noqa: F401 - the fixture

from companion.errors import InputError
from companion.stages import verification as v
from companion.stages.chat import ChatAnswer, ChatSettings
from companion.stages.verification import (
    ChatVerifier,
    KeepAll,
    ReleasedMetadata,
    Replay,
    TextPairs,
    calibrate,
    judge,
    with_texts,
)
from companion.stages.verification.verifiers import read_probability


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    records, rankings = made_up(5)
    memories = records.memories.assign(text="memory " + records.memories["memory_id"])
    queries = records.queries.assign(text="query " + records.queries["query_id"])
    records = type(records)(memories, queries, records.labels, rankings)
    return with_texts(records, v.candidates(records, rankings, top_k=10))


class FakeEncoder:
    """Vectors in which the violation can be read off the memory text."""

    def __init__(self, bad: set[str]) -> None:
        self.bad = bad

    def encode(self, texts: list[str], kind: str = "document") -> np.ndarray:
        sign = [1.0 if t in self.bad else -1.0 for t in texts]
        return np.c_[sign, np.ones(len(texts))].astype(np.float32) / np.sqrt(2)


def test_a_verifier_sees_the_texts_and_what_it_asked_for(table: pd.DataFrame) -> None:
    assert (table["memory_text"] == "memory " + table["memory_id"]).all()
    assert (table["query_text"] == "query " + table["query_id"]).all()
    records, rankings = made_up(5)
    with pytest.raises(InputError, match="has no text"):
        with_texts(records, v.candidates(records, rankings, top_k=3))
    seen: list[list[str]] = []

    class Spy(KeepAll):
        needs = ("state",)

        def probability(self, candidates: pd.DataFrame) -> pd.Series:
            seen.append(list(candidates))
            return super().probability(candidates)

    judge(Spy(), table)
    assert seen == [["query_id", "memory_id", "query_text", "memory_text", "state"]]
    Spy.needs = ("violation",)
    with pytest.raises(InputError, match="asks for 'violation'"):
        judge(Spy(), table)


@pytest.mark.parametrize(
    "answer",
    [
        lambda c: pd.Series(0.5, index=c.index[:-1]),
        lambda c: pd.Series(1.5, index=c.index),
        lambda c: [0.5] * len(c),
        lambda c: pd.Series(0.5, index=c.index[::-1]),
    ],
)
def test_a_broken_verifier_is_refused(table: pd.DataFrame, answer: Any) -> None:
    class Broken(KeepAll):
        def probability(self, candidates: pd.DataFrame) -> pd.Series:
            out: pd.Series = answer(candidates)
            return out

    with pytest.raises(InputError):
        judge(Broken(), table)


def test_references_know_everything_and_nothing(table: pd.DataFrame) -> None:
    judged = judge(ReleasedMetadata(), table)
    pd.testing.assert_series_equal(judged["probability"], table["violation"].astype("Float64"), check_names=False)
    (row,) = v.measure(judged, 0.5).to_dict("records")
    assert row["roc_auc"] == row["violation_recall"] == row["violation_precision"] == 1
    assert row["required_anchor_false_denial"] == row["brier"] == 0
    (row,) = v.measure(judge(KeepAll(), table), 0.5).to_dict("records")
    assert row["roc_auc"] == 0.5 and row["retained_fraction"] == 1 and row["violation_recall"] == 0


def test_text_pairs_learns_what_can_be_read_and_nothing_else(table: pd.DataFrame) -> None:
    known = table[table["violation"].notna()]
    by_memory = known.groupby("memory_text")["violation"].mean()
    readable = FakeEncoder(set(by_memory[by_memory > 0.5].index))
    cases = sorted(table["query_id"].unique())
    calibration, rest = table[table["query_id"].isin(cases[:12])], table[table["query_id"].isin(cases[12:])]
    verifier = TextPairs(readable)
    fitted = calibrate(verifier, calibration)
    assert fitted["probability"].notna().all()
    assert v.measure(judge(verifier, rest), 0.5)["roc_auc"].item() > 0.75
    with pytest.raises(InputError, match="both statuses"):
        calibrate(verifier, calibration.assign(violation=pd.array([True] * len(calibration), dtype="boolean")))
    blind = TextPairs(FakeEncoder(set()))
    with pytest.raises(InputError, match="not trained"):
        judge(blind, table)
    calibrate(blind, calibration)
    assert v.measure(judge(blind, rest), 0.5)["roc_auc"].item() == 0.5


def test_text_pairs_never_judges_a_case_it_learnt_from(table: pd.DataFrame) -> None:
    """Marks each case in its text; in-sample probabilities would then be near perfect, cross-fitted ones are not."""

    class Memoriser(FakeEncoder):
        def encode(self, texts: list[str], kind: str = "document") -> np.ndarray:
            rng = [np.random.default_rng(zlib.crc32(f"{kind}{t}".encode())).normal(size=400) for t in texts]
            vectors = np.array(rng, dtype=np.float32)
            return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    noise = np.random.default_rng(0).random(len(table)) < 0.4
    shuffled = table.assign(
        violation=pd.array(noise, dtype="boolean"), memory_text=table["memory_text"] + table["query_id"]
    )
    verifier = TextPairs(Memoriser(set()), strength=100.0)
    fitted = calibrate(verifier, shuffled)
    assert v.measure(judge(verifier, shuffled), 0.5)["roc_auc"].item() > 0.98
    assert v.measure(fitted, 0.5)["roc_auc"].item() < 0.65


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_replay_gives_the_file_back(table: pd.DataFrame, tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(1)
    p = pd.Series(rng.random(len(table)).round(3)).where(rng.random(len(table)) > 0.2)
    frame = table[["query_id", "memory_id"]].assign(probability=p.to_numpy()).sample(frac=1, random_state=2)
    path = tmp_path / f"mine{suffix}"
    {".csv": frame.to_csv, ".parquet": frame.to_parquet}.get(suffix, lambda *a, **k: 0)(path, index=False)
    if suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    verifier = v.get(str(path))
    assert verifier.name == "mine"
    got = judge(verifier, table)["probability"]
    assert np.allclose(got.to_numpy(float, na_value=-1), p.fillna(-1))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.iloc[1:], "1 of 240 candidates are not listed"),
        (lambda t: pd.concat([t, t.iloc[:1]]), r"row 241.*listed twice"),
        (lambda t: t.assign(probability=7), r"p\.csv, probability, row 1"),
        (lambda t: t.drop(columns="probability"), "no column 'probability'"),
    ],
)
def test_replay_refuses_what_it_cannot_use(table: pd.DataFrame, tmp_path: Path, change: Any, match: str) -> None:
    path = tmp_path / "p.csv"
    change(table[["query_id", "memory_id"]].assign(probability=0.5)).to_csv(path, index=False)
    with pytest.raises(InputError, match=match):
        judge(Replay(path), table)
    with pytest.raises(InputError, match="expected keep_all"):
        v.get("oracle")


def test_chat_verifier_reads_probabilities_and_resumes(
    table: pd.DataFrame,
    stub: Stub,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STUB_KEY", "sk-0123456789")
    few = table.head(6)

    def script(text: str, attempt: int) -> tuple[int, Any]:
        number = int(text[-3:])
        reply = f'```json\n{{"violation_probability": {number / 100}}}\n```' if number % 2 else "hard to say"
        return 200, good(reply)

    stub.script = script
    settings = ChatSettings("stub/model", stub.url, key_env="STUB_KEY", retries=0)
    verifier = ChatVerifier(settings, tmp_path)
    got = judge(verifier, few)["probability"]
    numbers = few["memory_id"].str[1:].astype(int)
    expected = (numbers / 100).where(numbers % 2 == 1)
    assert got.to_numpy(float, na_value=-1).tolist() == pytest.approx(expected.fillna(-1).tolist())
    assert verifier.unreadable == int(expected.isna().sum())
    sent = sum(stub.seen.values())
    judge(verifier, few)
    assert sum(stub.seen.values()) == sent == 6
    prompts = [e["request"]["messages"][1]["content"] for e in verifier.log.events() if e["event"] == "sent"]
    assert all("memory m" in p and "query q" in p for p in prompts)
    assert not any(word in p for p in prompts for word in ("namespace", "superseded", "policy"))


def test_chat_verifier_refuses_an_incomplete_set(
    table: pd.DataFrame,
    stub: Stub,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STUB_KEY", "sk-0123456789")
    stub.script = lambda text, attempt: (200, good('{"violation_probability": 0.1}'))
    tight = ChatSettings(
        "stub", stub.url, key_env="STUB_KEY", price_input=1.0, price_output=1.0, price_cap=0.003, max_tokens=9
    )
    with pytest.raises(InputError, match=r"not sent of 240 requests .*run again"):
        judge(ChatVerifier(tight, tmp_path), table)
    assert 0 < sum(stub.seen.values()) < 240


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"violation_probability": 0.25}', 0.25),
        ('Sure. {"violation_probability": 1} as asked', 1.0),
        ('{"note": "x"} {"violation_probability": 0}', 0.0),
        ('{"violation_probability": "0.3"}', None),
        ('{"violation_probability": 1.3}', None),
        ('{"violation_probability": true}', None),
        ('{"violation_probability": 0.3', None),
        ("0.3", None),
        (None, None),
    ],
)
def test_only_a_stated_probability_counts(text: str | None, expected: float | None) -> None:
    assert read_probability(ChatAnswer("x", "answered", text)) == expected


def test_controlled_units_are_complete_and_their_metadata_decide_them() -> None:
    units = v.scenario_units()
    assert len(units) == 16 * 2 * 2 * 3 and not units.duplicated(["query_id", "memory_id"]).any()
    judged = judge(ReleasedMetadata(), units)
    got = v.controlled_measures(judged, 0.5)
    assert got["estimate"].tolist() == [1, 0, 0, 0] and got["n"].tolist() == [32, 64, 64, 64]
    pairs = units[units["candidate_role"] == "focal"].groupby(["scenario", "pair"])
    assert (pairs["query_text"].nunique() == 2).all() and (pairs["memory_text"].nunique() < 2).all()
    keep = v.controlled_measures(judge(KeepAll(), units), 0.5)
    assert keep["estimate"].tolist() == [0, 0, 0, 1]
