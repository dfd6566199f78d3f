"""``companion exposure``: effects of exposure from paired outcomes, with every check on how firm they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from companion.cli._common import JSON_OPTION, print_json, print_table, records
from companion.errors import InputError

_HELP = """Estimate what a reader discloses because it was shown a candidate.

OUTCOMES holds one row per reader and unit (.parquet, .csv or .jsonl). For each reader, never pooled: the effect in
every cell and the selectivity gap with scenario-bootstrap intervals; the same intervals enumerated exactly;
the range when one scenario is left out; the exact sign-flip test.

Example: `companion exposure data/published/exposure_outcomes.csv --stratify none --json`
"""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("exposure", help=_HELP)(exposure)


def exposure(
    outcomes: Annotated[Path, typer.Argument(help="Table of outcomes: reader, scenario, axis, pair, ...")],
    stratify: Annotated[str, typer.Option(help="Resample scenarios within their axis, or 'none': together.")] = "axis",
    without: Annotated[
        list[str] | None, typer.Option(help="Scenario to leave out, as a check; repeat for more.")
    ] = None,
    replicates: Annotated[int, typer.Option(help="Bootstrap replicates.")] = 10_000,
    confidence: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    as_json: bool = JSON_OPTION,
) -> None:
    """Print effects, exact intervals, leave-one-out ranges and sign-flip tests."""
    from companion import exposure as study
    from companion.bootstrap import Resampling
    from companion.tables import read_table

    table = read_table(outcomes, "outcomes")
    for name in without or ():
        if name not in set(table["scenario"]):
            known = ", ".join(table["scenario"].unique())
            raise InputError(f"--without {name}: {outcomes} has no such scenario; expected one of {known}")
        table = table[table["scenario"] != name].reset_index(drop=True)
    if table["scenario"].nunique() < 2:
        raise InputError(f"{outcomes}: only one scenario; expected at least two to resample")
    effects = study.summarise(table, stratify, Resampling(replicates, confidence, seed))  # type: ignore[arg-type]
    parts = {
        "effects": effects,
        "exact": study.exact_intervals(table, stratify, confidence, replicates),  # type: ignore[arg-type]
        "leave_one_out": study.leave_one_out(table),
        "sign_flip": study.sign_flip(table),
    }
    settings = effects.attrs["settings"]
    if as_json:
        print_json(
            {"settings": settings | {"without": without or []}} | {name: records(part) for name, part in parts.items()}
        )
        return
    within = "within their axis" if stratify == "axis" else "together"
    print_table(
        effects,
        f"Exposed minus withheld: {settings['n_scenarios']} scenarios resampled {within}, "
        f"{100 * confidence:g}% percentile intervals, {replicates:,} replicates, seed {seed}"
        + (f"; without {', '.join(without)}" if without else ""),
        ["reader", "metric", "estimate", "low", "high", "n"],
    )
    if note := study.lone_axes_note(effects):
        typer.echo(f"{note}\n")
    print_table(parts["exact"], "The same intervals enumerated, as infinitely many replicates would give them", _EXACT)
    typer.echo("Seeds that agree: the share of seeds whose sampled end is the enumerated one.\n")
    print_table(parts["leave_one_out"], "Range of the estimate when one scenario is left out")
    title = "Exact two-sided sign-flip test over all sign patterns of the scenarios"
    print_table(parts["sign_flip"], title, formats={"p_value": ".2g"})


# How likely values at or beyond the ends are stays in --json.
_EXACT = {
    "reader": "reader",
    "metric": "metric",
    "low": "low",
    "high": "high",
    "agree_low": "seeds that agree, low",
    "agree_high": "seeds that agree, high",
}
