"""Matched-recall scoring of ranked routes with bounds for what is unresolved (protocol, section 2)."""

from companion.scoring.hiding import hide_labels, hiding_sweep, stable_uniform
from companion.scoring.pairs import PairLabels, anchors_of, label_ranked
from companion.scoring.routes import evidence_needed, score_routes
from companion.scoring.summary import CONDITIONAL_METRICS, METRICS, Summary, summarise

__all__ = [
    "CONDITIONAL_METRICS",
    "METRICS",
    "PairLabels",
    "Summary",
    "anchors_of",
    "evidence_needed",
    "hide_labels",
    "hiding_sweep",
    "label_ranked",
    "score_routes",
    "stable_uniform",
    "summarise",
]
