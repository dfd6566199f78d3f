"""Stage two: how well a verifier tells violations apart, and what filtering costs (Protocol section 6)."""

from companion.stages.verification.cases import candidates, split_cases, stable_order
from companion.stages.verification.controlled import (
    CONTROLLED,
    control_measures,
    controlled_measures,
    pair_measures,
    published_pairs,
    published_strata,
    stratum_means,
    transitions,
)
from companion.stages.verification.curves import (
    FALSE_DENIAL_LIMIT,
    KEEP_ALL,
    THRESHOLDS,
    bar,
    matching_thresholds,
    operating_curve,
    published_curves,
    recomputable,
    select,
)
from companion.stages.verification.measures import MEASURES, RATES, calibration_error, dropped, measure, rate_intervals
from companion.stages.verification.routes import UNFILTERED, curve_routes, filter_route, route_effects, score_filtered

__all__ = [
    "CONTROLLED",
    "FALSE_DENIAL_LIMIT",
    "KEEP_ALL",
    "MEASURES",
    "RATES",
    "THRESHOLDS",
    "UNFILTERED",
    "bar",
    "calibration_error",
    "candidates",
    "control_measures",
    "controlled_measures",
    "curve_routes",
    "dropped",
    "filter_route",
    "matching_thresholds",
    "measure",
    "operating_curve",
    "pair_measures",
    "published_curves",
    "published_pairs",
    "published_strata",
    "rate_intervals",
    "recomputable",
    "route_effects",
    "score_filtered",
    "select",
    "split_cases",
    "stable_order",
    "stratum_means",
    "transitions",
]
