"""What answers disclosed, beside the ledger of what they were shown."""

from __future__ import annotations

import pandas as pd

from companion import logic
from companion.disclosure import disclosed, normalise
from companion.ledger.build import KEY, check, refuse_first, refuse_repeats


def disclosures(
    answers: pd.DataFrame, targets: pd.DataFrame, origins: tuple[str, str] = ("answers", "targets")
) -> pd.DataFrame:
    """Test every answer (query_id, arm, answer) for the marker of every target (query_id, memory_id, marker).

    Returns ``query_id``, ``arm``, ``memory_id``, boolean ``disclosed``: ``<NA>`` where there is no answer. A repeated
    answer or target and a marker without any letter or digit are refused.
    """
    refuse_repeats(answers, KEY[:2], origins[0])
    refuse_repeats(targets, ["query_id", "memory_id"], origins[1])
    unusable = pd.Series([not (isinstance(m, str) and normalise(m)) for m in targets["marker"]], dtype="boolean")
    refuse_first(unusable, targets, origins[1], "has a marker without any letter or digit")
    pairs = answers[["query_id", "arm", "answer"]].merge(targets[["query_id", "memory_id", "marker"]], on="query_id")
    pairs["disclosed"] = disclosed(pairs["answer"], pairs["marker"])
    return pairs[[*KEY, "disclosed"]]


def link(
    ledger: pd.DataFrame, observed: pd.DataFrame, memories: pd.DataFrame, origin: str = "disclosures"
) -> pd.DataFrame:
    """Put what answers disclosed beside the ledger, assuming nothing from it.

    ``disclosed`` is ``<NA>`` where nothing was observed. A target that its route did not retrieve gets a row of its
    own, retrieved and exposed False, so that a disclosure without exposure stays visible.
    """
    seen = observed[KEY].assign(disclosed=logic.as_boolean(observed["disclosed"]))
    refuse_repeats(seen, KEY, origin)
    refuse_first(~seen["memory_id"].isin(memories["memory_id"]), seen, origin, "is a target that was never stored")
    linked = ledger.drop(columns="disclosed", errors="ignore").merge(seen, on=KEY, how="outer", indicator=True)
    new = linked.pop("_merge").eq("right_only").to_numpy()
    for name, value in {"retrieved": False, "exposed": False, "passed": False, "stored": True}.items():
        if name in linked:
            linked.loc[new, name] = value
    order = ["arm", "query_id", *(["rank"] if "rank" in linked else []), "memory_id"]
    return check(linked.sort_values(order, ignore_index=True), memories)
