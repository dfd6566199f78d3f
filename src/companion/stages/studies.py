"""From a corpus or frozen rankings to scores, summaries with intervals, and a comparison with the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from companion import bootstrap, logic, scoring
from companion.errors import InputError
from companion.stages import published
from companion.tables import Records


@dataclass(frozen=True)
class Study:
    """One population, ranked and scored."""

    records: Records
    per_query: pd.DataFrame
    summary: scoring.Summary
    options: dict[str, Any]

    @property
    def population(self) -> str:
        """Name of the population; estimates of different ones are never averaged."""
        return self.records.population


def support(
    records: Records,
    *,
    reference: str | None = None,
    axes: Sequence[str] = logic.AXES,
    family: str = "admissibility",
    target_recall: scoring.Recall = 0.8,
    top_k: int | None = 20,
    infeasibility_cost: float = 1.0,
    arms: Sequence[str] | None = None,
    anchors: pd.DataFrame | None = None,
    replicates: int = bootstrap.DEFAULT_REPLICATES,
    confidence: float = bootstrap.DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> Study:
    """Score the rankings of one population and summarise them (protocol, sections 2, 3 and 5)."""
    options = {
        "axes": tuple(axes),
        "family": family,
        "target_recall": target_recall,
        "top_k": top_k,
        "infeasibility_cost": infeasibility_cost,
        "arms": arms,
    }
    per_query = scoring.score_routes(records, anchors=anchors, **options)  # type: ignore[arg-type]
    summary = scoring.summarise(per_query, reference=reference, replicates=replicates, confidence=confidence, seed=seed)
    return Study(records, per_query, summary, options)


def live(
    corpus_name: str, arms: Sequence[str], top_k: int, split: str | None = "evaluation", encoder: str = "minilm"
) -> Records:
    """Load a corpus and rank it now."""
    from companion import corpora, retrieval

    corpus = corpora.load(corpus_name).restrict(split)
    rankings, work = retrieval.rank(corpus, list(arms), top_k=top_k, encoder=retrieval.Encoder(model=encoder))
    return corpus.records(rankings=rankings, work=work)


def natural_support(parts: Sequence[Records]) -> Records:
    """Put the frozen runs of the paper's two sources together: the population ``natural-support``."""
    sources = [tuple(part.queries["source"].unique()) for part in parts]
    if any(len(names) != 1 for names in sources) or len(set(sources)) != len(sources):
        raise InputError(f"natural support needs runs of one source each, all different; found {sources}")

    def joined(name: str) -> pd.DataFrame:
        return pd.concat([getattr(part, name) for part in parts], ignore_index=True)

    return Records(
        memories=joined("memories"),
        queries=joined("queries"),
        labels=joined("labels"),
        rankings=joined("rankings"),
        work=joined("work"),
        population="natural-support",
        name="natural-support",
    ).check()


def decomposition(summary: scoring.Summary, source: str = "macro") -> pd.DataFrame:
    """Split every difference in loss into its infeasibility part and its prefix part."""
    parts = {"infeasibility_component": "infeasibility", "prefix_component": "prefix"}
    rows = summary.contrasts[summary.contrasts["source"] == source]
    if rows.empty:
        raise InputError(f"no contrasts for source {source!r}: name a reference arm and a source of the records")
    total = rows[rows["metric"] == "loss"].set_index("arm")["estimate"]
    table = rows[rows["metric"].isin(parts)].copy()
    table["part"] = table["metric"].map(parts)
    table["share"] = table["estimate"] / table["arm"].map(total.where(total != 0))
    return table[["arm", "reference", "part", "estimate", "low", "high", "share"]].reset_index(drop=True)


def status_shares(summary: scoring.Summary, source: str = bootstrap.MACRO) -> pd.DataFrame:
    """Split the matched prefix of every arm into known inadmissible, unresolved and known admissible."""
    rows = summary.arms[summary.arms["source"] == source]
    parts = [
        rows.assign(status=status, share=share)[["arm", "status", "share"]]
        for status, share in {
            "inadmissible": rows["lower_bound"],
            "unresolved": rows["upper_bound"] - rows["lower_bound"],
            "admissible": 1 - rows["upper_bound"],
        }.items()
    ]
    return pd.concat(parts).sort_index(kind="stable").reset_index(drop=True)


def beside_published(study: Study, source: str, contrast: str) -> pd.DataFrame:
    """Put our estimates of one source beside the published ones of the same arms, metrics and depth."""
    rows = published.figures()
    rows = rows[rows["contrast"] == contrast]
    found = [_ours(study.summary, row, source) for row in rows.itertuples()]
    known = pd.Series([hit is not None for hit in found], index=rows.index, dtype=bool)
    kept = rows[known].reset_index(drop=True)
    ends = {"value": "estimate", "low": "low", "high": "high"}
    ours = {name: [float(hit[end]) for hit in found if hit is not None] for name, end in ends.items()}
    return kept.assign(**{name: pd.Series(values, dtype="float64") for name, values in ours.items()})


def _ours(summary: scoring.Summary, row: Any, source: str) -> pd.Series | dict[str, float] | None:
    """Find our counterpart of a published row, or None where there is none."""
    arm, _, reference = str(row.subject).partition("-")
    if row.metric == "matched_query_count" and not reference:
        return _feasible_count(summary, arm, source)
    metric = published.PUBLISHED_METRICS.get(row.metric)
    if metric is None:
        return None
    table = summary.contrasts if reference else summary.intervals
    found = table[(table["arm"] == arm) & (table["metric"] == metric) & (table["source"] == source)]
    if reference:
        found = found[found["reference"] == reference]
    return None if found.empty else found.iloc[0]


def _feasible_count(summary: scoring.Summary, arm: str, source: str) -> dict[str, float] | None:
    rows = summary.arms[(summary.arms["arm"] == arm) & (summary.arms["source"] == source)]
    if rows.empty:
        return None
    rate, queries = summary.value(arm, "feasible_rate", source), int(rows["evaluable"].iloc[0])
    return {end: round(float(rate[end]) * queries, 6) for end in ("estimate", "low", "high")}


CROSSING_METRICS = (
    "admissible",
    "unresolved",
    "inadmissible",
    "wrong_scope",
    "policy_disallowed",
    "lifecycle_incompatible",
)


def crossing(
    records: Records,
    *,
    top_k: int,
    arms: Sequence[str] | None = None,
    queries: Sequence[str] | None = None,
    replicates: int = bootstrap.DEFAULT_REPLICATES,
    confidence: float = bootstrap.DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> pd.DataFrame:
    """Say what the top of each route consists of: what would cross into a prompt of that many items."""
    labelled, present = _labelled_top(records, top_k, arms, queries)
    shares = _item_shares(labelled)
    by_arm = {arm: part.droplevel("arm").add_prefix(f"{arm}:") for arm, part in shares.groupby(level="arm")}
    wide = pd.concat(by_arm.values(), axis=1)
    unit = records.queries.set_index("query_id").loc[wide.index]
    result = bootstrap.ratio_means(
        wide.reset_index(drop=True),
        clusters=unit["group"].reset_index(drop=True),
        sources=unit["source"].reset_index(drop=True),
        replicates=replicates,
        confidence=confidence,
        seed=seed,
    )
    table = result.table[result.table["source"] == bootstrap.MACRO]
    names = table["statistic"].str.rpartition(":")
    table = table.assign(arm=names[0], metric=names[2])
    order = {arm: place for place, arm in enumerate(arms or present)}
    table = table.sort_values("arm", key=lambda column: column.map(order), kind="stable")
    return table[["arm", "metric", "estimate", "low", "high"]].reset_index(drop=True)


def open_axes(
    records: Records, *, top_k: int, arms: Sequence[str] | None = None, queries: Sequence[str] | None = None
) -> pd.DataFrame:
    """Say what keeps the unresolved items of each route's top unresolved: which axes nobody settled."""
    labelled, present = _labelled_top(records, top_k, arms, queries)
    unsettled = labelled[labelled["admissible"].isna()]
    missing = unsettled[list(logic.AXES)].isna().to_numpy()
    axes = [", ".join(axis for axis, is_open in zip(logic.AXES, row, strict=True) if is_open) for row in missing]
    counts = unsettled.assign(axes=pd.Series(axes, index=unsettled.index, dtype="str"))
    table = counts.groupby(["arm", "axes"], sort=False).size().rename("items").reset_index()
    table["share"] = table["items"] / table.groupby("arm")["items"].transform("sum")
    order = {arm: place for place, arm in enumerate(arms or present)}
    return table.sort_values("arm", key=lambda column: column.map(order), kind="stable", ignore_index=True)


def _labelled_top(
    records: Records, top_k: int, arms: Sequence[str] | None, queries: Sequence[str] | None
) -> tuple[pd.DataFrame, list[str]]:
    """Label the first items of the routes asked for; also name the arms there are."""
    if top_k < 1:
        raise InputError(f"top_k {top_k}: expected a depth of at least 1")
    if records.rankings is None:
        raise InputError("no rankings: nothing can cross into a prompt")
    present = list(dict.fromkeys(records.rankings["arm"]))
    unknown = [arm for arm in arms or [] if arm not in present]
    if unknown:
        raise InputError(f"arm {unknown[0]!r} is not in the rankings; they hold {', '.join(present)}")
    chosen = records.rankings["arm"].isin(list(arms or present)) & (records.rankings["rank"] <= top_k)
    if queries is not None:
        chosen &= records.rankings["query_id"].isin(list(queries))
        if not chosen.any():
            raise InputError(f"none of the {len(queries)} queries asked for is in the rankings")
    return scoring.label_ranked(records, records.rankings[chosen]), present


def _item_shares(labelled: pd.DataFrame) -> pd.DataFrame:
    """Average over the items of each route; every share has all its items below the line."""
    status = labelled["admissible"]
    kinds = {
        "admissible": status,
        "unresolved": status.isna(),
        "inadmissible": ~status,
        "wrong_scope": ~labelled["scope"],
        "policy_disallowed": ~labelled["policy"],
        "lifecycle_incompatible": ~labelled["lifecycle"],
    }
    # fillna only counts what is *known* to be so: an unresolved item is in none of the known kinds.
    known = pd.DataFrame({name: mask.fillna(False).astype(float) for name, mask in kinds.items()})
    return known.groupby([labelled["query_id"], labelled["arm"]]).mean()


def telling_query(study: Study) -> str:
    """Choose the query whose routes show most: all three statuses in a feasible prefix, then many violations."""
    table = study.per_query[study.per_query["feasible"] == 1]
    if table.empty:
        raise InputError("no query reaches the target recall under any arm: nothing to walk through")
    bounds = table.assign(open=table["upper_bound"] > table["lower_bound"], bad=table["violation_count"].astype(float))
    score = bounds.groupby("query_id", sort=False).agg(
        open=("open", "sum"), bad=("any_violation", "sum"), spread=("bad", "std"), short=("matched_prefix", "max")
    )
    # A prefix of a dozen items can still be read item by item.
    readable = score["short"] <= 12
    order = score.assign(readable=readable).sort_values(
        ["readable", "open", "bad", "spread"], ascending=False, kind="stable"
    )
    return str(order.index[0])


def walk_through(study: Study, query_id: str, depth: int) -> pd.DataFrame:
    """List the routes of one query item by item, with every axis, the status and the end of the matched prefix."""
    records = study.records
    if query_id not in set(records.queries["query_id"]):
        raise InputError(f"query {query_id!r} is not in the records")
    rankings = records.rankings
    assert rankings is not None  # a study has been scored, so it has rankings
    rows = scoring.label_ranked(records, rankings[(rankings["query_id"] == query_id) & (rankings["rank"] <= depth)])
    anchors = scoring.anchors_of(records)
    own = set(anchors.loc[anchors["query_id"] == query_id, "memory_id"])
    scored = study.per_query[study.per_query["query_id"] == query_id].set_index("arm")
    rows["status"] = [STATUS_WORDS.get(value, "unresolved") for value in rows["admissible"]]
    rows["why"] = [_why(row) for row in rows[list(logic.AXES)].itertuples(index=False)]
    rows["anchor"] = rows["memory_id"].isin(own)
    rows["prefix"] = rows["arm"].map(scored["matched_prefix"])
    if "text" in records.memories:
        rows["text"] = rows["memory_id"].map(records.memories.set_index("memory_id")["text"])
    return rows.drop(columns=["score", "usable"], errors="ignore")


STATUS_WORDS = {True: "admissible", False: "inadmissible"}


def _why(row: Any) -> str:
    zero = [axis for axis, value in zip(logic.AXES, row, strict=True) if value is not pd.NA and not value]
    unknown = [axis for axis, value in zip(logic.AXES, row, strict=True) if value is pd.NA]
    return ", ".join(f"not {axis}" for axis in zero) or ", ".join(f"{axis}?" for axis in unknown)


def hiding_means(sweep: pd.DataFrame) -> pd.DataFrame:
    """Average a label-hiding sweep: over feasible queries within source, then over sources."""
    columns = ["label_coverage", "lower_bound", "upper_bound", "loss"]
    by_source = sweep[sweep["anchors"] > 0].groupby(["arm", "rate", "source"], sort=False)[columns].mean()
    # skipna=False: a mean over fewer sources would be another quantity.
    return by_source.groupby(["arm", "rate"], sort=False).mean(skipna=False).reset_index()
