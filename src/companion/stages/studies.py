"""Former names of what stands in :mod:`companion.stages.support`, until every chapter has moved."""

from companion.stages.support import (  # noqa: F401
    CROSSING_METRICS,
    Study,
    beside_published,
    crossing,
    hiding_means,
    live,
    open_axes,
    status_shares,
    telling_query,
    walk_through,
)
from companion.stages.support import study as _study


def support(records, *, replicates=10_000, confidence=0.95, seed=0, **options):  # type: ignore[no-untyped-def]
    """Score and summarise; see ``support.study``."""
    from companion.bootstrap import Resampling

    return _study(records, resampling=Resampling(replicates, confidence, seed), **options)
