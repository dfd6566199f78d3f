"""Stage two from end to end on the demo corpus's shape: splits, thresholds chosen blind, kept studies, the commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from _made_up import made_up
from typer.testing import CliRunner

from companion.bootstrap import Resampling
from companion.cli import verify as commands
from companion.errors import InputError
from companion.stages import support, verification
from companion.stages.verification.cases import stable_order
from companion.tables import Records


@pytest.fixture(scope="module")
def world() -> Records:
    records, rankings = made_up(11, queries=96)
    memories = records.memories.assign(text="memory " + records.memories["memory_id"])
    queries = records.queries.assign(text="query " + records.queries["query_id"])
    return Records(memories, queries, records.labels, rankings.assign(arm="namespace_dense"), None).check()


class Noisy(verification.Untrained):
    """Sees the truth through noise; keyed by ids, so that it is the same on every call."""

    name = "noisy"
    needs = ("scope", "policy", "lifecycle")

    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        truth = verification.ReleasedMetadata().probability(candidates).fillna(0.5)
        noise = stable_order(candidates["query_id"] + candidates["memory_id"]) / 2**64
        return (0.6 * truth + 0.4 * noise.astype("Float64")).round(2)


def effect(study: verification.VerificationStudy, arm: str, metric: str) -> pd.Series:
    return verification.route_effect(study.effects, arm, metric)


@pytest.fixture(scope="module")
def study(world: Records) -> verification.VerificationStudy:
    chosen = [verification.ReleasedMetadata(), Noisy(), verification.DenyAll()]
    return verification.verify(world, chosen, resampling=Resampling(200))


def test_thresholds_are_chosen_on_calibration_cases_only(study: verification.VerificationStudy) -> None:
    for judged in study.judged.values():
        curve = verification.operating_curve(judged.calibration, verification.THRESHOLDS, "x")
        best = verification.select(curve)
        assert judged.threshold == (np.inf if best is None else best["threshold"])
        pd.testing.assert_frame_equal(
            judged.calibration_curve[np.isfinite(judged.calibration_curve["threshold"])].drop(columns="verifier"),
            curve.drop(columns="verifier"),
        )
        told = judged.analysis_curve.set_index("threshold").loc[0.5, "violation_recall"]
        assert told == verification.measure(judged.analysis, 0.5)["violation_recall"].item()
        assert not set(judged.calibration["query_id"]) & set(judged.analysis["query_id"])
        assert set(judged.analysis["split"]) == {"analysis"}


def test_perfect_metadata_costs_nothing_and_deny_all_everything(study: verification.VerificationStudy) -> None:
    rates = study.rates().set_index(["verifier", "metric"])["estimate"]
    assert rates[("released_metadata", "violation_recall")] == 1
    assert rates[("released_metadata", "required_anchor_false_denial")] == 0
    assert effect(study, "released_metadata", "loss")["estimate"] < 0
    assert effect(study, "released_metadata", "evidence_recall")["estimate"] >= 0
    # deny_all never qualifies, so its tuned route keeps everything; untuned it loses everything
    assert not study.judged["deny_all"].qualifies
    assert effect(study, "deny_all", "loss")["estimate"] == 0
    gone = study.per_case[(study.per_case["arm"] == "deny_all at 0.5") & (study.per_case["anchors"] > 0)]
    assert gone["evidence_recall"].eq(0).all() and gone["loss"].eq(1).all()
    verdicts = study.verdicts().set_index("verifier")["verdict"]
    assert verdicts["released_metadata"].startswith("detects violations")
    assert verdicts["deny_all"] == "no threshold qualifies"


def test_measures_are_those_of_the_analysis_cases(study: verification.VerificationStudy) -> None:
    table = study.measures().set_index("verifier")
    judged = study.judged["noisy"]
    (row,) = verification.measure(judged.analysis, judged.threshold).to_dict("records")
    assert table.loc["noisy", "roc_auc"] == row["roc_auc"]
    assert set(study.curves("calibration")["verifier"]) == {"released_metadata", "noisy", "deny_all"}


def test_names_must_differ(world: Records) -> None:
    with pytest.raises(InputError, match="different names"):
        verification.verify(world, [Noisy(), Noisy()])
    taken = Noisy()
    taken.name = "unfiltered"
    with pytest.raises(InputError, match="none of them unfiltered"):
        verification.verify(world, [taken])
    with pytest.raises(InputError, match="no rankings of global_bm25"):
        verification.verify(world, [Noisy()], arm="global_bm25")


def test_controlled_pairs_leave_out_who_cannot_be_asked(study: verification.VerificationStudy, tmp_path: Path) -> None:
    listed = study.judged["noisy"].analysis
    listed.assign(probability=0.5)[["query_id", "memory_id", "probability"]].to_csv(tmp_path / "p.csv", index=False)
    halves = listed.assign(split=np.where(listed.index < 50, "calibration", "analysis"))
    replay = verification.judge_split(verification.Replay(tmp_path / "p.csv"), halves, verification.THRESHOLDS, 0.01)
    got = verification.ask_controlled([*study.judged.values(), replay])
    assert list(dict.fromkeys(got["verifier"])) == ["released_metadata", "noisy", "deny_all"]
    assert got.set_index(["verifier", "metric"]).loc[("deny_all", "stable_admissible_false_denial"), "estimate"] == 1


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, world: Records) -> tuple[CliRunner, typer.Typer]:
    def live(corpus: str, arms: list[str], top_k: int, **_: object) -> Records:
        assert corpus == "demo" and world.rankings is not None
        rows = world.rankings.assign(arm=arms[0])
        work = pd.DataFrame({"arm": arms[0], "query_id": world.queries["query_id"], "candidates_scored": 100})
        return Records(world.memories, world.queries, world.labels, rows, work)

    monkeypatch.setattr(support, "live", live)
    app = typer.Typer()
    commands.register(app)
    return CliRunner(), app


def test_corrupt_command(runner: tuple[CliRunner, typer.Typer], tmp_path: Path) -> None:
    cli, app = runner
    arguments = ["corrupt", "demo", "--channel", "policy_missing", "--channel", "namespace_swap", "--seeds", "2"]
    result = cli.invoke(app, [*arguments, "--rate", "0", "--rate", "0.3", "--keep", str(tmp_path / "k"), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [b["channel"] for b in told["brackets"]] == ["policy_missing", "namespace_swap"]
    assert len(told["curves"]) == 4 and told["settings"]["seeds"] == [0, 1]
    meta = json.loads((tmp_path / "k" / "meta.json").read_text())
    assert meta["command"].startswith("companion corrupt demo --channel policy_missing")
    bad = cli.invoke(app, ["corrupt", "demo", "--channel", "typo"])
    assert isinstance(bad.exception, InputError)


def test_candidates_command_writes_texts_and_no_labels(runner: tuple[CliRunner, typer.Typer], tmp_path: Path) -> None:
    cli, app = runner
    out = tmp_path / "candidates.csv"
    result = cli.invoke(app, ["candidates", "demo", "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    table = pd.read_csv(out)
    assert list(table) == ["query_id", "memory_id", "split", "query_text", "memory_text"]
    counts = {row["split"]: row["candidates"] for row in json.loads(result.stdout)}
    assert counts == table["split"].value_counts().to_dict()
    # filled in, the file is a verifier
    table.assign(probability=0.5).to_csv(out, index=False)
    verification.get(str(out))
