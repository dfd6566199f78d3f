"""Stage two from end to end: a corpus, a verifier, and what becomes of both (Protocol section 6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion import bootstrap, scoring
from companion.errors import InputError
from companion.paths import data_dir
from companion.stages import corruption, studies, verification, verifiers
from companion.tables import Records, atomic_path

ROUTE = "namespace_dense"
_STUDY_TABLES = ("per_seed", "per_query", "references")


@dataclass(frozen=True)
class Judged:
    """One verifier's judgement of the study's candidates."""

    verifier: verifiers.Verifier
    calibration: pd.DataFrame
    analysis: pd.DataFrame
    calibration_curve: pd.DataFrame
    analysis_curve: pd.DataFrame
    threshold: float
    qualifies: bool


@dataclass(frozen=True)
class VerificationStudy:
    """Verifiers side by side on the same cases."""

    records: Records
    cases: pd.DataFrame
    judged: dict[str, Judged]
    per_case: pd.DataFrame
    effects: scoring.Summary
    settings: dict[str, Any]

    def measures(self, by: str | None = None) -> pd.DataFrame:
        """Return every measure on analysis cases at the chosen threshold: verifier, threshold, then ``measure``."""
        parts = [
            verification.measure(j.analysis, j.threshold, by=by).assign(verifier=name, threshold=j.threshold)
            for name, j in self.judged.items()
        ]
        table = pd.concat(parts, ignore_index=True)
        first = ["verifier", "threshold", "part"]
        return table[[*first, *(c for c in table if c not in first)]]

    def curves(self, split: str = "analysis") -> pd.DataFrame:
        """Return the operating curves of all verifiers on one split, without the keep-all point."""
        tables = [j.analysis_curve if split == "analysis" else j.calibration_curve for j in self.judged.values()]
        both = pd.concat(tables, ignore_index=True)
        return both[np.isfinite(both["threshold"])].reset_index(drop=True)

    def verdicts(self) -> pd.DataFrame:
        """Hold every calibration curve against the limit; see ``verification.bar``."""
        return verification.bar(self.curves("calibration"), self.settings["false_denial_limit"])

    def rates(self) -> pd.DataFrame:
        """Give the rates at the chosen thresholds, on analysis cases, their intervals."""
        options = {k: self.settings[k] for k in ("replicates", "confidence", "seed")}
        parts = [
            verification.rate_intervals(j.analysis, [j.threshold], **options).assign(verifier=name)
            for name, j in self.judged.items()
        ]
        return pd.concat(parts, ignore_index=True)


def verify(
    records: Records,
    chosen: Sequence[verifiers.Verifier],
    *,
    arm: str = ROUTE,
    top_k: int = 20,
    false_denial_limit: float = verification.FALSE_DENIAL_LIMIT,
    thresholds: Sequence[float] = verification.THRESHOLDS,
    untuned: float = 0.5,
    target_recall: scoring.routes.Recall = 0.8,
    infeasibility_cost: float = 1.0,
    replicates: int = bootstrap.DEFAULT_REPLICATES,
    confidence: float = bootstrap.DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> VerificationStudy:
    """Calibrate verifiers, choose their thresholds, and judge them on cases they have not seen."""
    names = [c.name for c in chosen]
    if len(set(names)) != len(names) or verification.UNFILTERED in names:
        raise InputError(f"verifiers {', '.join(names)}: expected different names, none of them unfiltered")
    cases, table = judged_candidates(records, arm=arm, top_k=top_k)
    judged = {c.name: _judge(c, table, thresholds, false_denial_limit) for c in chosen}
    analysis = table[table["split"] == "analysis"].reset_index(drop=True)
    drops = {n: verification.dropped(j.analysis["probability"], j.threshold) for n, j in judged.items()}
    drops |= {
        f"{n} at {untuned:g}": verification.dropped(j.analysis["probability"], untuned) for n, j in judged.items()
    }
    per_case = verification.score_filtered(
        records, analysis, drops, target_recall=target_recall, infeasibility_cost=infeasibility_cost
    )
    resampling = {"replicates": replicates, "confidence": confidence, "seed": seed}
    effects = verification.route_effects(per_case, replicates=replicates, confidence=confidence, seed=seed)
    settings = {"arm": arm, "top_k": top_k, "false_denial_limit": false_denial_limit, **resampling}
    return VerificationStudy(records, cases, judged, per_case, effects, settings)


def judged_candidates(records: Records, *, arm: str = ROUTE, top_k: int = 20) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Draw the cases and list their candidates with texts and metadata."""
    if records.rankings is None or arm not in set(records.rankings["arm"]):
        raise InputError(f"verification: no rankings of {arm}; rank it first")
    anchored = records.queries["query_id"].isin(scoring.anchors_of(records)["query_id"])
    cases = verification.split_cases(records.queries[anchored])
    rows = records.rankings
    rows = rows[(rows["arm"] == arm) & rows["query_id"].isin(cases["query_id"])]
    table = verification.candidates(records, rows, top_k=top_k)
    table = verifiers.describe(records, table)
    return cases, table.merge(cases[["query_id", "split"]], on="query_id", validate="many_to_one")


def _judge(verifier: verifiers.Verifier, table: pd.DataFrame, thresholds: Sequence[float], limit: float) -> Judged:
    calibration = table[table["split"] == "calibration"].reset_index(drop=True)
    analysis = table[table["split"] == "analysis"].reset_index(drop=True)
    fitted = verifiers.calibrate(verifier, calibration)
    judged = verifiers.judge(verifier, analysis)
    points = [*thresholds, verification.KEEP_ALL]
    curves = [verification.operating_curve(part, points, verifier.name) for part in (fitted, judged)]
    best = verification.select(curves[0][np.isfinite(curves[0]["threshold"])], limit)
    threshold = verification.KEEP_ALL if best is None else float(best["threshold"])
    return Judged(verifier, fitted, judged, curves[0], curves[1], threshold, best is not None)


def controlled(
    judged: Sequence[Judged],
    *,
    threshold: float = 0.5,
    replicates: int = bootstrap.DEFAULT_REPLICATES,
    confidence: float = bootstrap.DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> pd.DataFrame:
    """Put calibrated verifiers to our controlled pairs."""
    units = verifiers.controlled_units()
    options = bootstrap.Resampling(replicates, confidence, seed)
    parts = []
    for j in judged:
        if isinstance(j.verifier, verifiers.Replay) or not set(j.verifier.needs) <= set(units):
            continue
        table = verification.controlled_measures(verifiers.judge(j.verifier, units), threshold, options)
        parts.append(table.assign(verifier=j.verifier.name))
    columns = ["verifier", "metric", "estimate", "low", "high", "n"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def corruption_pool(
    corpus: str,
    *,
    channels: Sequence[str] = tuple(corruption.CHANNELS),
    split: str | None = "evaluation",
    encoder: str = "minilm",
) -> corruption.Pool:
    """Rank a corpus to full depth, as far as the channels need it."""
    everywhere = any(corruption.channel(name).field == "namespace" for name in channels)
    arm = "global_dense" if everywhere else "namespace_dense"
    records = studies.live(corpus, [arm], top_k=2**31 - 1, split=split, encoder=encoder).check()
    if records.rankings is None:  # pragma: no cover - `live` always ranks
        raise InputError(f"corpus {corpus}: no rankings")
    return corruption.Pool.from_rankings(records, records.rankings)


def keep_study(study: corruption.CorruptionStudy, folder: Path, about: dict[str, Any]) -> None:
    """Write a corruption study as numbers: three Parquet tables and ``meta.json``, each replaced at once."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _STUDY_TABLES:
        with atomic_path(folder / f"{name}.parquet") as path:
            getattr(study, name).to_parquet(path, index=False, compression="zstd")
    versions = {name: version(name) for name in ("numpy", "pandas", "faiss-cpu", "sentence-transformers", "torch")}
    meta = {**about, "settings": study.settings, "versions": versions}
    with atomic_path(folder / "meta.json") as path:
        path.write_text(json.dumps(meta, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


def kept_study(name: str) -> tuple[corruption.CorruptionStudy, dict[str, Any]]:
    """Load a corruption study of a public corpus that was run earlier."""
    root = data_dir() / "corruption"
    folder = root / name
    if not (folder / "meta.json").is_file():
        there = sorted(p.parent.name for p in root.glob("*/meta.json"))
        raise InputError(f"no corruption study {name!r} in {root}; there are: {', '.join(there) or 'none'}")
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    tables = {part: pd.read_parquet(folder / f"{part}.parquet") for part in _STUDY_TABLES}
    return corruption.CorruptionStudy(**tables, settings=meta["settings"]), meta


def corrupt(
    corpus: str,
    *,
    channels: Sequence[str] = tuple(corruption.CHANNELS),
    rates: Sequence[float] = corruption.RATES,
    seeds: Sequence[int] = corruption.SEEDS,
    top_k: int = 20,
    split: str | None = "evaluation",
    encoder: str = "minilm",
    progress: Callable[[str], None] | None = None,
) -> corruption.CorruptionStudy:
    """Run the corruption study on a corpus whose texts are here."""
    pool = corruption_pool(corpus, channels=channels, split=split, encoder=encoder)
    return corruption.study(pool, channels=channels, rates=rates, seeds=seeds, top_k=top_k, progress=progress)
