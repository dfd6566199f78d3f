"""``companion score``: the protocol's section 2 on four tables, with the intervals of section 3."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from companion.cli._common import JSON_OPTION, print_json, print_table, printable, records, refuse_overwriting

if TYPE_CHECKING:
    import pandas as pd

    from companion.scoring import Summary

_SHOWN = {
    "arm": "arm",
    "evaluable": "queries",
    "evidence_recall": "recall",
    "feasible_rate": "feasible",
    "loss": "loss",
    "lower_bound": "lower",
    "upper_bound": "upper",
    "label_coverage": "coverage",
    "wrong_scope": "scope 0",
    "policy_disallowed": "policy 0",
    "lifecycle_incompatible": "lifecycle 0",
}
_SHOWN_BY_SOURCE = {name: _SHOWN.get(name, name) for name in ("arm", "source", *list(_SHOWN)[1:8])}

_CONTRAST_COLUMNS = ("arm", "reference", "metric", "estimate", "low", "high")


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("score", help=_HELP)(score)


_HELP = """Score ranked routes at matched evidence recall, with bounds for unresolved labels.

Example: `companion score --memories memories.csv --queries queries.csv --labels labels.csv
--rankings rankings.parquet --reference global_dense`
"""


def score(
    memories: Annotated[Path, typer.Option(help="Table of memories (.parquet, .csv, .jsonl, ...).")],
    queries: Annotated[Path, typer.Option(help="Table of queries.")],
    labels: Annotated[Path, typer.Option(help="Table of labels; an empty cell or ? is unresolved.")],
    rankings: Annotated[Path, typer.Option(help="Table of rankings: arm, query_id, rank, memory_id.")],
    work: Annotated[Path | None, typer.Option(help="Table of candidates scored per arm and query.")] = None,
    target_recall: Annotated[
        str, typer.Option(help="Share of anchors a prefix must reach, such as .8 or 2/3.")
    ] = "0.8",
    top_k: Annotated[
        int | None, typer.Option(help="Cut routes to this depth first; default: as long as they are.")
    ] = None,
    infeasibility_cost: Annotated[float, typer.Option(help="Loss of a query whose route misses the target.")] = 1.0,
    axes: Annotated[
        str, typer.Option(help="Axes that make up the status, comma-separated.")
    ] = "scope,policy,lifecycle",
    family: Annotated[str, typer.Option(help="admissibility, or non_usable (relevance included).")] = "admissibility",
    replicates: Annotated[int, typer.Option(help="Bootstrap replicates.")] = 10_000,
    confidence: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    reference: Annotated[str | None, typer.Option(help="Arm that every other one is compared with.")] = None,
    per_query: Annotated[Path | None, typer.Option(help="Also write one row per arm and query to this file.")] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Read, check and score the tables, then print estimates and contrasts."""
    from companion import scoring, tables
    from companion.bootstrap import Resampling

    how = Resampling(replicates, confidence, seed)  # refused before the long part
    refuse_overwriting([per_query], [memories, queries, labels, rankings, work])
    own = tables.load_records(memories=memories, queries=queries, labels=labels, rankings=rankings, work=work)
    table = scoring.score_routes(
        own,
        axes=[axis.strip() for axis in axes.split(",") if axis.strip()],
        family=family,
        target_recall=target_recall,
        top_k=top_k,
        infeasibility_cost=infeasibility_cost,
    )
    summary = scoring.summarise(table, reference=reference, resampling=how)
    if per_query is not None:
        rows = table[list(_PER_QUERY)]
        if tables.format_of(per_query) in ("csv", "tsv"):  # what a spreadsheet would take for a formula
            from companion.audit.cells import guard

            rows = rows.assign(arm=rows["arm"].map(guard), query_id=rows["query_id"].map(guard))
        tables.write_table(rows, per_query)
    settings = {
        **summary.settings,
        "target_recall": target_recall,
        "top_k": top_k,
        "infeasibility_cost": infeasibility_cost,
        "axes": axes,
        "family": family,
        "reference": reference,
    }
    report(summary, settings, as_json)


_PER_QUERY = (
    "arm",
    "query_id",
    "anchors",
    "evidence_recall",
    "feasible",
    "matched_prefix",
    "lower_bound",
    "upper_bound",
    "known_rate",
    "label_coverage",
    "any_violation",
    "violation_count",
    "wrong_scope",
    "policy_disallowed",
    "lifecycle_incompatible",
    "loss",
)


def report(summary: Summary, settings: dict[str, Any], as_json: bool) -> None:
    """Print a summary as the contract's JSON, or as tables for people with how the intervals were made."""
    import pandas as pd

    macro = summary.contrasts[summary.contrasts["source"] == "macro"]
    if as_json:
        print_json(
            {
                "arms": records(summary.arms),
                "contrasts": records(macro[list(_CONTRAST_COLUMNS)]),
                # With one source they are the contrasts once more.
                "source_contrasts": records(summary.contrasts[summary.contrasts["source"] != "macro"])
                if summary.arms["source"].nunique() > 2
                else [],
                "intervals": records(summary.intervals),
                "undefined": records(pd.concat([undefined(summary.intervals), undefined(summary.contrasts)])),
                "settings": settings,
            }
        )
        return
    is_macro = summary.arms["source"] == "macro"
    sources = summary.arms.loc[~is_macro, "source"].nunique()
    weighing = f", {sources} sources weighing the same" if sources > 1 else ""
    print_table(summary.arms[is_macro], f"Routes at matched recall{weighing}", _SHOWN)
    if sources > 1:
        print_table(summary.arms[~is_macro], "By source", _SHOWN_BY_SOURCE)
    if len(macro):
        shown = macro[macro["metric"].isin(["evidence_recall", "feasible_rate", "loss", *_COMPONENTS])]
        print_table(shown, f"Minus {settings['reference']}", _CONTRAST_COLUMNS)
    # Bounds are undefined for this reason alone; other values may also lack a table or a settled label.
    gaps = undefined(summary.intervals)
    for row in gaps[(gaps["metric"] == "upper_bound") & gaps["estimate"].isna()].to_dict("records"):
        where = ", ".join(row["undefined_in"])
        said = f"–: {row['arm']} reaches the target for no query of {where}: its means over sources are undefined."
        typer.echo(printable(said))
    for arm, number in settings["not_served"].items():
        queries = "query" if settings["queries"] == 1 else "queries"
        typer.echo(
            printable(f"{arm} was not asked {number:,} of {settings['queries']:,} {queries}, left out of its means.")
        )
    clusters, level = settings["n_clusters"], f"{100 * settings['confidence']:g}%"
    made = f"No intervals: {settings['no_interval']}"
    if summary.intervals["low"].notna().any():
        made = f"{level} percentile intervals, {settings['replicates']} replicates over {clusters} groups"
    share = 100 * settings["evaluable_share"]
    typer.echo(f"{made}, seed {settings['seed']}; recall is evaluable for {share:.1f}% of queries.")


def undefined(rows: pd.DataFrame) -> pd.DataFrame:
    """List the macro values that are undefined, or were in some replicate, with the sources that made them so.

    Parameters
    ----------
    rows : DataFrame
        ``arm``, perhaps ``reference``, ``source``, ``metric``, ``estimate``, ``undefined_replicates``.

    Returns
    -------
    DataFrame
        ``arm``, ``reference`` (missing for an arm's own value), ``metric``, ``estimate``, ``undefined_in`` (list of the
        sources without an estimate: a mean over sources needs them all), ``undefined_replicates``.
    """
    import pandas as pd

    key = [name for name in ("arm", "reference", "metric") if name in rows]
    macro = rows[(rows["source"] == "macro") & (rows["estimate"].isna() | (rows["undefined_replicates"] > 0))]
    own = rows[(rows["source"] != "macro") & rows["estimate"].isna()].groupby(key)["source"].agg(list).to_dict()
    places = zip(*(macro[name] for name in key), strict=True)
    found = macro.assign(
        undefined_in=pd.Series([own.get(place, []) for place in places], index=macro.index, dtype=object)
    )
    return found.reindex(columns=["arm", "reference", "metric", "estimate", "undefined_in", "undefined_replicates"])


_COMPONENTS = ("infeasibility_component", "prefix_component")
