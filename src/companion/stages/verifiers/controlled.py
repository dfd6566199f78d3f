"""Our scenario pairs as candidates for a verifier (Protocol section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from companion.stages import scenarios


def controlled_units(scenario_set: scenarios.ScenarioSet | None = None) -> pd.DataFrame:
    """List the controlled pairs as a verifier sees them.

    The two conditions of a pair differ in one field of the context. A verifier can only react to what it is shown, so
    the context stands in front of the question and the memory's own metadata in front of its text, in words.
    """
    chosen = scenarios.load() if scenario_set is None else scenario_set
    units = chosen.units()
    pair = units["scenario"] + "/" + units["pair"].astype("str")
    context = units[["principal", "purpose", "intent", "as_of"]].to_dict("records")
    lines = {
        (p.scenario, p.pair, role): candidate.line() for p in chosen.pairs for role, candidate in p.candidates.items()
    }
    keys = zip(units["scenario"], units["pair"], units["candidate_role"], strict=True)
    return units[["scenario", "axis", "pair", "condition", "candidate_role", "scope", "policy", "lifecycle"]].assign(
        query_id=pair + "/" + units["condition"],
        memory_id=pair + "/" + units["candidate_role"],
        query_text=[_asked(c, q) for c, q in zip(context, units["query"], strict=True)],
        memory_text=[lines[key] for key in keys],
        violation=~units["admissible"],
    )


def _asked(context: Mapping[Any, Any], query: str) -> str:
    return (
        f"{context['principal']} asks on {context['as_of']}, for {context['purpose']}, with "
        f"{context['intent']} intent: {query}"
    )
