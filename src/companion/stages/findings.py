"""What the companion adds to the paper: findings of its own, each as one row with a number and its interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from companion import bootstrap, exposure, fixed_depth
from companion.corpora.frozen import frozen as frozen_corpora
from companion.corpora.frozen import load_frozen
from companion.retrieval.checks import namespace_never_worse
from companion.stages import agreement, coverage, published, studies, support

COLUMNS = ("name", "question", "estimate", "low", "high", "population", "reading", "chapter")
_WIDE, _NARROW, _RANDOM = "global_dense", "namespace_dense", "size_matched_random_partition"
_Z = 1.959963984540054  # of the simulation error in the row on coverage


def all_findings(
    *,
    frozen: Sequence[str] = ("rhelm", "gatemem"),
    top_k: int = 20,
    simulations: int = 1000,
    replicates: int = bootstrap.DEFAULT_REPLICATES,
    confidence: float = bootstrap.DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> pd.DataFrame:
    """Compute every finding."""
    settings = {"replicates": replicates, "confidence": confidence, "seed": seed}
    rows = [*_stratification(settings), *_seed_dependence(settings), *_coverage(simulations, confidence, seed)]
    rows += _agreement(settings)
    present = set(frozen_corpora())
    for corpus in frozen:
        if corpus in present:
            rows += _support(corpus, top_k, settings)
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(
        {"estimate": "float64", "low": "float64", "high": "float64"}
    )


def _row(name: str, question: str, value: Any, population: str, reading: str, chapter: str) -> dict[str, Any]:
    """Build one row; `value` is a number or something with estimate, low and high."""
    ends = {"estimate": value, "low": None, "high": None}
    if hasattr(value, "__getitem__"):
        ends = {key: value[key] for key in ends}
    return {
        "name": name, "question": question, **ends, "population": population, "reading": reading, "chapter": chapter
    }  # fmt: skip


def _stratification(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Ask whether the one effect that excludes zero does so under both ways of resampling scenarios."""
    outcomes = published.table("exposure_outcomes")
    by_rule = {
        rule: exposure.summarise(outcomes, stratify=rule, **settings)
        .query("metric == 'relevant_inadmissible'")
        .set_index("reader")
        for rule in ("axis", "none")
    }
    worst = str(by_rule["axis"]["estimate"].idxmax())
    words = {"axis": "within governing axes, as in the paper", "none": "all together"}
    for rule, table in by_rule.items():
        excluding = int((table["low"] > 0).sum())
        yield _row(
            f"stratification_{rule}",
            f"Effect of showing {worst} a forbidden memory, scenarios resampled {words[rule]}",
            table.loc[worst],
            "controlled-exposure-16",
            f"intervals that exclude zero: {excluding} of {len(table)} readers",
            "04-exposure",
        )


def _seed_dependence(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Ask how many seeds give the exact end of the published interval that is settled least."""
    exact = exposure.exact_intervals(
        published.table("exposure_outcomes"), confidence=settings["confidence"], replicates=settings["replicates"]
    )
    claims = published.figures().query("claim in ['C8', 'C12']")[["subject", "metric"]]
    exact = exact.merge(claims.rename(columns={"subject": "reader"}), on=["reader", "metric"])
    exact["settled"] = exact[["agree_low", "agree_high"]].min(axis=1)
    least = exact.sort_values("settled", kind="stable").to_dict("records")[0]
    firm = int((exact["settled"] > 0.99).sum())
    yield _row(
        "seed_dependence",
        f"Share of seeds that give the exact interval of {least['reader']}, {str(least['metric']).replace('_', ' ')}",
        float(least["settled"]),
        "controlled-exposure-16",
        f"the least settled of {len(exact)} intervals; the same ends under nearly every seed: {firm}",
        "04-exposure",
    )


def _coverage(simulations: int, confidence: float, seed: int) -> Iterator[dict[str, Any]]:
    """Ask how often an interval of this design holds the truth."""
    outcomes = published.table("exposure_outcomes")
    means = exposure.unit_effects(outcomes).query("cell == 'relevant_inadmissible'").groupby("reader")["effect"].mean()
    worst = str(means.idxmax())
    model = coverage.exposure_model(outcomes, worst)
    table = coverage.exposure_coverage(model, simulations=simulations, confidence=confidence, seed=seed)
    table = table[table["statistic"] == "relevant_inadmissible"].set_index("method")
    shares, errors = table["coverage"].astype(float), table["coverage_se"].astype(float)
    for method in ("percentile, within strata", "t, within strata"):
        share, error = float(shares[method]), float(errors[method])
        short = share + _Z * error < confidence
        reading = "less often than it says" if short else "as often as it says, within simulation error"
        yield _row(
            f"coverage_{method.partition(',')[0]}",
            f"Share of simulated studies whose nominal {100 * confidence:g}% interval holds the truth ({method})",
            {"estimate": share, "low": max(0.0, share - _Z * error), "high": min(1.0, share + _Z * error)},
            f"simulated like {worst}",
            reading,
            "04-exposure",
        )


def _agreement(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give the annotators' alpha an interval, from the tables that the published figures determine."""
    rows = agreement.recomputable(**settings)
    tables = agreement.published_tables()
    for row in rows[rows["metric"] == "krippendorff_alpha"].to_dict("records"):
        axis = str(row["subject"])
        table = tables[axis]
        yield _row(
            f"alpha_{axis}",
            f"Annotators' alpha, {axis.replace('_', ' ')}",
            {"estimate": row["value"], "low": row["low"], "high": row["high"]},
            "annotation-207",
            f"{table.both_yes} both yes, {table.split} split, {table.both_no} both no",
            "03-verification",
        )


def _support(corpus: str, top_k: int, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Ask one frozen corpus whether the namespace helps, whether identity or size does it, and what it leaves."""
    records = load_frozen(corpus, arms=[_WIDE, _NARROW, _RANDOM])
    study = studies.support(records, reference=_WIDE, top_k=top_k, **settings)
    told = published.figures()
    # A figure of another depth is no counterpart.
    quoted = told[(told["contrast"] == f"{corpus}_top_{top_k}") & (told["subject"] == _CONTRAST)]
    published_levels = dict(zip(quoted["metric"], quoted["published"], strict=True))
    names = {"evidence_recall": "evidence_recall", "loss": "penalized_admissibility_upper_risk"}
    for metric, theirs in names.items():
        beside = (
            "published under another encoder: " + f"{published_levels[theirs]:+.3f}".replace("-", "−")
            if theirs in published_levels
            else "not in the paper"
        )
        yield _row(
            f"{corpus}_{metric}",
            f"Own namespace minus everything: {metric.replace('_', ' ')}, top {top_k}",
            study.summary.contrast(_NARROW, metric),
            records.population,
            beside,
            "02-support",
        )
    pools = support.by_family(study.summary).query("metric == 'evidence_recall'").set_index("arm")
    if _RANDOM in pools.index:
        own = pools["estimate"].astype(float)[_NARROW]
        yield _row(
            f"{corpus}_random_pool",
            f"Evidence recall in a random pool of the namespace's size, top {top_k}",
            pools.loc[_RANDOM],
            records.population,
            f"own namespace: {float(own):.3f}; ends are the smallest and the largest seed",
            "02-support",
        )
    yield _never_worse(corpus, records)
    if {"privacy", "safety"} & set(fixed_depth.kinds_of(records.queries)):
        yield from _protected(corpus, records, top_k, settings)


_CONTRAST = f"{_NARROW}-{_WIDE}"


def _never_worse(corpus: str, records: Any) -> dict[str, Any]:
    worse = namespace_never_worse(records.rankings, records.labels, narrow=_NARROW, wide=_WIDE)
    return _row(
        f"{corpus}_never_worse",
        "Anchors that rank worse in the namespace than in the whole store",
        float(len(worse)),
        records.population,
        "must be none, whatever the encoder; checked, not assumed",
        "02-support",
    )


def _protected(corpus: str, records: Any, top_k: int, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Ask for what share of privacy and safety questions a protected memory comes along in the right namespace."""
    counted = fixed_depth.fixed_depth_exposure(records, depths=[top_k], arms=[_WIDE, _NARROW])
    table = fixed_depth.summarise_fixed_depth(counted, metrics=["protected"], **settings)
    table = table[(table["source"] == bootstrap.MACRO) & (table["arm"] == _NARROW) & table["reference"].isna()]
    for row in table.to_dict("records"):
        yield _row(
            f"{corpus}_protected_{row['kind']}",
            f"Share of {row['kind']} questions with a protected memory in the top {top_k} of the asker's own namespace",
            row,
            records.population,
            "what a namespace filter alone lets through",
            "04-exposure",
        )
