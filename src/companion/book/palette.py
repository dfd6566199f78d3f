"""Colours with fixed meanings: one per arm, one per status, the same on every page.

The hues are those of Okabe and Ito, which people with any common form of colour blindness tell apart. Three of
them are darkened so that every mark keeps a contrast of at least 3:1 on white and on the dark page alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import altair as alt

BLUE = "#0072b2"
VERMILION = "#d55e00"
GREEN = "#009e73"
PURPLE = "#b9669a"
AMBER = "#b87f00"
SKY = "#3592c9"
SLATE = "#7c8591"

#: Colours for anything without a meaning of its own, in order of use.
CATEGORICAL: tuple[str, ...] = (BLUE, VERMILION, GREEN, PURPLE, AMBER, SKY, SLATE)

#: The fill of everything unresolved: a hatched grey, so that it never reads as one of the two answers.
HATCH = "url(#companion-hatch)"

ADMISSIBLE = BLUE
INADMISSIBLE = VERMILION
UNRESOLVED = SLATE
#: In the order of stacked bars, where the bounds are the two edges of the unresolved part: every legend follows it.
STATUS: dict[str, str] = {"inadmissible": INADMISSIBLE, "unresolved": HATCH, "admissible": ADMISSIBLE}

#: Published beside ours: the quotation is quiet, what was computed here carries the colour.
PUBLISHED = SLATE
OURS = BLUE

#: Routes never wear the colours of a status: a blue route would look admissible.
ARM: dict[str, str] = {
    "global_dense": AMBER,
    "global_bm25": PURPLE,
    "global_bm25_dense_rrf": SKY,
    "global_recency_dense": SLATE,
    "namespace_dense": GREEN,
    "namespace_current_only": SLATE,
    "policy_only": SKY,
    "lifecycle_only": PURPLE,
    "policy_and_lifecycle": SLATE,
    "released_intent_lifecycle_v1": SLATE,
    "released_field_oracle": SLATE,
    "namespace_policy_gate": SKY,
    "namespace_text_verifier": PURPLE,
    "size_matched_random_partition": SLATE,
    "anchor_preserving_same_size": PURPLE,
    "threshold_router": PURPLE,
    "cluster_router": SKY,
}

#: What readers call the arms; code names stand in tables once.
ARM_NAMES: dict[str, str] = {
    "global_dense": "search everything",
    "global_bm25": "keywords, everything",
    "global_bm25_dense_rrf": "keywords and meaning, everything",
    "global_recency_dense": "search everything, newer first",
    "namespace_dense": "own memories only",
    "namespace_current_only": "own memories, current only",
    "policy_only": "own memories, policy filter",
    "lifecycle_only": "own memories, lifecycle filter",
    "policy_and_lifecycle": "own memories, both filters",
    "released_intent_lifecycle_v1": "own memories, both filters by intent",
    "released_field_oracle": "own memories, released fields",
    "namespace_policy_gate": "own memories, policy gate",
    "namespace_text_verifier": "own memories, text verifier",
    "global_post_filter_20": "search everything, filter 20",
    "global_post_filter_100": "search everything, filter 100",
    "global_post_filter_500": "search everything, filter 500",
    "size_matched_random_partition": "random partition, same size",
    "anchor_preserving_same_size": "random memories with all evidence",
    "threshold_router": "router by similarity",
    "cluster_router": "router by clusters",
}

_UNKNOWN = (GREEN, PURPLE, AMBER, SKY, SLATE)


def arm_colour(arm: str) -> str:
    """Return the colour of a retrieval arm: a fixed one for known arms, otherwise one derived from the name."""
    return ARM.get(arm, _UNKNOWN[zlib.crc32(arm.encode()) % len(_UNKNOWN)])


def arm_name(arm: str) -> str:
    """Return what readers call a retrieval arm, or its own name where it has no other."""
    return ARM_NAMES.get(arm, arm.replace("_", " "))


def arm_scale(arms: Iterable[str]) -> alt.Scale:
    """Return the Altair colour scale for these arms, in the order given; readable names wear the same."""
    import altair as alt

    domain = list(dict.fromkeys(arms))
    codes = {name: code for code, name in ARM_NAMES.items()}
    return alt.Scale(domain=domain, range=[arm_colour(codes.get(arm, arm)) for arm in domain])
