"""The abstract, sentence by sentence, beside what is found here; and what the companion adds to the paper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from companion import exposure
from companion.bootstrap import MACRO, Resampling
from companion.stages import headline, published

SAME, HOLDS, SIGN, UNCHECKED = "same data: equal", "identity holds", "other encoder: same sign", "not checked"
_FAILS = {SAME: "same data: differs", HOLDS: "identity fails", SIGN: "other encoder: other sign"}
_WIDE, _NARROW, _RANDOM = "global_dense", "namespace_dense", "size_matched_random_partition"
_PAIR, _LOSS = f"{_NARROW}-{_WIDE}", "penalized_admissibility_upper_risk"
_OUTLIER = "time-consent"

SENTENCES = {
    "support": "Searching only the asker's own memories finds more of the evidence",
    "loss": "and puts less that is forbidden in front of it, mostly because more queries find enough",
    "work": "with 98% fewer comparisons.",
    "identity": "It is whose memories they are that counts, not how few.",
    "scope": "It removes wrong scope; what policy and time forbid inside the namespace stays.",
    "filters": "Filtering by metadata can help or hurt, and needs metadata that are right.",
    "verifiers": "A model that reads only the text misses most violations, and flips verdicts that should stay.",
    "downstream": "Answers get better by five to seven points of a hundred.",
    "disclosure": "A reader discloses what it is shown: much more when that is admissible.",
    "agreement": "Annotators agree on scope and usefulness, and hardly on what is prohibited.",
}
"""The paper's story in ten plain sentences; each published figure belongs to one of them."""


def sentence_of(claim: str, subject: str, metric: str) -> str:
    """Name the sentence (a key of ``SENTENCES``) that a published figure belongs to."""
    if metric == "candidates_scored":
        return "work"
    plain = {_WIDE, _NARROW, _PAIR}
    if claim == "C5" or (claim == "C9-controls" and subject not in plain):
        return "identity"
    by_claim = {
        "C9-scope": "scope", "C9-typed": "scope", "C10": "filters", "C10-corruption": "filters", "C11": "verifiers",
        "C11-controlled": "verifiers", "C13": "downstream", "C13-by-source": "downstream", "C8": "disclosure",
        "C12": "disclosure", "agreement": "agreement",
    }  # fmt: skip
    found = metric in {"evidence_recall", "feasible_rate", "matched_query_count"}
    return by_claim.get(claim, "support" if found else "loss")


_READERS = ("deepseek-v4-pro", "gemini-3.6-flash", "gpt-5.6-luna")
_SHOWN = {"C8": ("gpt-5.6-sol", "gemini-3.6-flash", "deepseek-v4-pro"), "C12": ("claude-opus-5",)}
_FRONT: list[tuple[str, str, str]] = [
    ("support", "evidence recall, everything", f"C9 {_WIDE} top_20 evidence_recall"),
    ("support", "evidence recall, own memories only", f"C9 {_NARROW} top_20 evidence_recall"),
    ("support", "evidence recall, own minus everything", f"C9 {_PAIR} top_20 evidence_recall"),
    ("support", "queries that find enough, everything", f"C9 {_WIDE} top_20 feasible_rate"),
    ("support", "queries that find enough, own memories only", f"C9 {_NARROW} top_20 feasible_rate"),
    ("support", "queries that find enough, own minus everything", f"C9 {_PAIR} top_20 feasible_rate"),
    ("loss", "loss", f"C9 {_PAIR} top_20 {_LOSS}"),
    ("loss", "forbidden share at least, everything", f"C9-bounds {_WIDE} top_20 conditional_lower_bound"),
    ("loss", "forbidden share at most, everything", f"C9-bounds {_WIDE} top_20 conditional_upper_bound"),
    ("loss", "forbidden share at least, own memories only", f"C9-bounds {_NARROW} top_20 conditional_lower_bound"),
    ("loss", "forbidden share at most, own memories only", f"C9-bounds {_NARROW} top_20 conditional_upper_bound"),
    ("loss", "upper bound, own minus everything", f"C9-bounds {_PAIR} top_20 conditional_upper_bound"),
    (
        "identity",
        "evidence recall, anchors kept among strangers",
        "C9-controls anchor_preserving_same_size top_20 evidence_recall",
    ),
    ("scope", "policy-disallowed share, everything", f"C9-typed {_WIDE} top_20 policy_disallowed"),
    ("scope", "policy-disallowed share, own memories only", f"C9-typed {_NARROW} top_20 policy_disallowed"),
    ("filters", "loss, policy and lifecycle filters", f"C10 policy_and_lifecycle-{_NARROW} top_100 {_LOSS}"),
    ("filters", "loss, lifecycle filter alone", f"C10 lifecycle_only-{_NARROW} top_100 {_LOSS}"),
    (
        "filters",
        "share of own memories that may be denied",
        "C10-corruption namespace_false_deny top_100 last_dominating_rate",
    ),
    ("verifiers", "ROC-AUC, GPT-5.6 Sol", "C11 gpt-5.6-sol selected_operating_point roc_auc"),
    ("verifiers", "ROC-AUC, Gemini 3.6 Flash", "C11 gemini-3.6-flash selected_operating_point roc_auc"),
    *[("downstream", f"correct answers, {name}", f"C13 {name} {_PAIR} answer_correct") for name in _READERS],
    (
        "downstream",
        "correct answers with a text verifier, gemini-3.6-flash",
        f"C13 gemini-3.6-flash text_verifier-{_NARROW} answer_correct",
    ),
    (
        "downstream",
        "outdated answers with a policy filter, gemini-3.6-flash",
        f"C13-by-source gemini-3.6-flash policy_gate-{_NARROW}:memops stale_disclosure",
    ),
    *[
        ("disclosure", f"selectivity gap, {name}", f"{claim} {name} exposed_minus_withheld selectivity_gap")
        for claim, names in _SHOWN.items()
        for name in names
    ],
    ("agreement", "alpha, prohibited", "agreement prohibited two_annotators krippendorff_alpha"),
    ("agreement", "alpha, scope", "agreement scope two_annotators krippendorff_alpha"),
]
"""Sentence, figure in words, and claim, subject, contrast and metric of the published row."""


def front_page(reproduced: pd.DataFrame, resampling: Resampling | None = None) -> pd.DataFrame:
    """Put the paper's number, ours and a verdict beside each sentence of the abstract.

    Parameters
    ----------
    reproduced : DataFrame
        From :func:`companion.stages.reproduce.reproduce`.
    resampling : Resampling, optional
        Of the few figures that are not in it.

    Returns
    -------
    DataFrame
        One row per figure, in the order of ``SENTENCES``: sentence (key), figure (words), published, published_low,
        published_high, value, low, high, verdict (one of ``SAME``, ``HOLDS``, ``SIGN``, ``UNCHECKED``, or what it
        reads where that fails), note.
    """
    table: Any = reproduced.set_index(["claim", "subject", "contrast", "metric"])
    rows = [_told(key, words, table.xs(tuple(at.split()))) for key, words, at in _FRONT]
    rows += [*_derived(table, resampling or Resampling())]
    order = {key: place for place, key in enumerate(SENTENCES)}
    return pd.DataFrame(rows).sort_values("sentence", key=lambda s: s.map(order), kind="stable", ignore_index=True)


def _told(sentence: str, words: str, row: pd.Series) -> dict[str, Any]:
    kinds = {"recomputed": SAME, "consistent": HOLDS}
    verdict = kinds.get(row["status"], UNCHECKED)
    if verdict != UNCHECKED and not row["agrees"]:
        verdict = _FAILS[verdict]
    ends = ("published", "published_low", "published_high", "value", "low", "high")
    return {
        "sentence": sentence,
        "figure": words,
        **{end: row[end] for end in ends},
        "verdict": verdict,
        "note": row["note"],
    }


def _derived(table: Any, how: Resampling) -> Iterator[dict[str, Any]]:
    """Figures that follow from several rows: the split of the loss, work, the loss without scope, random pools."""
    told = table["published"]
    pair = ("C9", _PAIR, "top_20")
    ours = headline.differences(resampling=how)
    share = headline.split(ours).set_index(["source", "metric"])["share"][MACRO, "infeasibility_component"]
    quoted = told[*pair, "infeasibility_component"] / told[*pair, _LOSS]
    yield _plain("loss", "share of it from queries that find enough", quoted, share, SAME, "support_group_deltas.csv")
    arms = {arm: table.xs(("C9-controls", arm, "top_20", "candidates_scored")) for arm in (_WIDE, _NARROW)}
    quoted, value = (arms[_NARROW][end] / arms[_WIDE][end] - 1 for end in ("published", "value"))
    yield _plain("work", "candidates scored, relative change", quoted, value, HOLDS, arms[_WIDE]["note"])
    key = ("C9-scope", "top_20_without_scope", "penalized_upper_risk")
    quoted = told[key[0], _NARROW, key[1], key[2]] - told[key[0], _WIDE, key[1], key[2]]
    aside = ours[(ours["metric"] == "loss_without_scope") & (ours["source"] == MACRO)].iloc[0]
    row = _plain("scope", "loss with scope set aside", quoted, aside["estimate"], SAME, "support_group_deltas.csv")
    yield row | {"low": aside["low"], "high": aside["high"]}
    yield _random_pool(told["C9-controls", _RANDOM, "top_20", "evidence_recall"], how)


def _plain(sentence: str, words: str, quoted: float, value: float, verdict: str, note: str) -> dict[str, Any]:
    verdict = verdict if np.isclose(quoted, value, rtol=0, atol=1e-9) else _FAILS[verdict]
    row = pd.Series({"published": quoted, "value": value, "status": "", "note": note}).reindex(
        ["published", "published_low", "published_high", "value", "low", "high", "status", "note"]
    )
    return _told(sentence, words, row) | {"verdict": verdict}


def _random_pool(quoted: float, how: Resampling) -> dict[str, Any]:
    """Say whether random pools of the namespace's size find less than searching everything on RHELM too."""
    from companion.corpora.frozen import load_frozen
    from companion.stages import support

    study = support.study(load_frozen("rhelm", arms=[_WIDE, _NARROW, _RANDOM]), resampling=how)
    found = support.by_family(study.summary).query("metric == 'evidence_recall'").set_index("arm")
    ours, same = found.loc[_RANDOM], found["high"][_RANDOM] < found["estimate"][_WIDE]
    row = _plain("identity", "evidence recall, random pool of the same size", quoted, quoted, SAME, "")
    ends = {"value": ours["estimate"], "low": ours["low"], "high": ours["high"]}
    note = "rhelm only, ten seeds (ends: smallest and largest): below searching everything, as in the paper"
    return row | ends | {"verdict": SIGN if same else _FAILS[SIGN], "note": note}


# --- what the companion adds ----


def prefix_by_source(resampling: Resampling | None = None) -> pd.DataFrame:
    """Estimate the prefix part of the loss in each source, and what share of the reduction feasibility makes up."""
    table = headline.split(headline.differences(resampling=resampling))
    wide = table.pivot(index="source", columns="metric", values="share")["infeasibility_component"]
    parts = table[table["metric"] == "prefix_component"][["source", "estimate", "low", "high"]]
    return parts.assign(feasibility_share=parts["source"].map(wide)).reset_index(drop=True)


def withheld_disclosures(outcomes: pd.DataFrame | None = None) -> pd.DataFrame:
    """Count, by scenario, disclosures of a memory that was withheld: scenario, units, disclosed."""
    table = published.table("exposure_outcomes") if outcomes is None else outcomes
    counts = table.groupby("scenario", sort=False)["disclosed_withheld"].agg(units="size", disclosed="sum")
    return counts.reset_index().sort_values("disclosed", ascending=False, kind="stable", ignore_index=True)


def inadmissible_effects(
    outcomes: pd.DataFrame | None = None, without: str = _OUTLIER, resampling: Resampling | None = None
) -> pd.DataFrame:
    """Estimate the effect of showing a relevant forbidden memory: in strata or not, with one scenario or without.

    Returns
    -------
    DataFrame
        reader, rule ("stratified", "unstratified"), left_out ("" or the scenario), estimate, low, high, excludes_zero.
        Leaving a scenario out was decided after seeing the data: a sensitivity, not a result.
    """
    table = published.table("exposure_outcomes") if outcomes is None else outcomes
    parts = []
    for left_out in ("", without):
        for rule, strata in (("stratified", "axis"), ("unstratified", "none")):
            part = exposure.summarise(table[table["scenario"] != left_out], strata, resampling)  # type: ignore[arg-type]
            parts.append(part.query("metric == 'relevant_inadmissible'").assign(rule=rule, left_out=left_out))
    rows = pd.concat(parts, ignore_index=True)[["reader", "rule", "left_out", "estimate", "low", "high"]]
    return rows.assign(excludes_zero=(rows["low"] > 0) | (rows["high"] < 0))


def rhelm_beside(resampling: Resampling | None = None) -> pd.DataFrame:
    """Put every rhelm difference that the paper's rows give beside ours under the packaged encoder.

    Returns
    -------
    DataFrame
        metric, published, estimate, low, high, inside. Published differences are those of the two arms' published
        levels; ``prefix_component`` is loss plus feasibility.
    """
    from companion.corpora.frozen import load_frozen
    from companion.stages import support

    records = load_frozen("rhelm", arms=[_WIDE, _NARROW])
    ours = support.study(records, reference=_WIDE, resampling=resampling).summary
    levels = published.figures("C9-source").query("contrast == 'rhelm_top_20'")
    wide = levels.pivot(index="metric", columns="subject", values="published").rename(published.PUBLISHED_METRICS)
    told = (wide[_NARROW] - wide[_WIDE]).to_dict()
    told["infeasibility_component"] = -told["feasible_rate"]
    told["prefix_component"] = told["loss"] + told["feasible_rate"]
    names = ("evidence_recall", "feasible_rate", "loss", "infeasibility_component", "prefix_component", "lower_bound")
    rows = []
    for metric in (*names, "upper_bound", "any_violation", "violation_count"):
        mine = ours.contrast(_NARROW, metric)
        inside = bool(mine["low"] <= told[metric] <= mine["high"])
        rows.append((metric, told[metric], *mine[["estimate", "low", "high"]].astype(float), inside))
    return pd.DataFrame(rows, columns=["metric", "published", "estimate", "low", "high", "inside"])


def interval_coverage(reader: str = "deepseek-v4-pro", simulations: int = 1000, seed: int = 0) -> pd.DataFrame:
    """Simulate studies like the exposure study, and count how often each kind of 95% interval holds the truth."""
    from companion.stages import coverage

    model = coverage.exposure_model(published.table("exposure_outcomes"), reader)
    table = coverage.exposure_coverage(model, simulations=simulations, seed=seed)
    return table[table["statistic"] == "relevant_inadmissible"].reset_index(drop=True)
