"""Metadata corruption: what a filter does when the metadata it reads are wrong."""

from companion.stages.corruption.channels import CHANNELS, Channel, Pool, channel, corrupted, kept
from companion.stages.corruption.study import (
    METRICS,
    RATES,
    SEEDS,
    CorruptionStudy,
    break_even,
    load_kept,
    published_curves,
    published_references,
    rank_pool,
    score_arms,
    study,
)

__all__ = [
    "CHANNELS",
    "METRICS",
    "RATES",
    "SEEDS",
    "Channel",
    "CorruptionStudy",
    "Pool",
    "break_even",
    "channel",
    "corrupted",
    "kept",
    "load_kept",
    "published_curves",
    "published_references",
    "rank_pool",
    "score_arms",
    "study",
]
