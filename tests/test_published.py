"""The list of published figures: complete, truthful, and in agreement wherever it says recomputed."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from companion import scoring
from companion.bootstrap import Resampling
from companion.corpora import frozen as frozen_module
from companion.corpora.frozen import load_frozen
from companion.errors import InputError
from companion.stages import published, reproduce, support


@pytest.fixture(scope="module")
def rhelm():
    return load_frozen("rhelm")


def test_published_lookups():
    row = published.figure("C8", "gpt-5.6-sol", "exposed_minus_withheld", "selectivity_gap")
    assert (row["published"], row["published_low"], row["published_high"]) == (0.90625, 0.8125, 0.96875)
    with pytest.raises(InputError, match="no single published figure"):
        published.figure("C8", "nobody", "x", "y")
    with pytest.raises(InputError, match="no such published table"):
        published.table("nothing")


def test_hiding_labels_keeps_recall_and_opens_the_bounds(rhelm):
    sweep = scoring.hiding_sweep(rhelm, [0, 0.2, 0.5, 1], top_k=20)
    clean = scoring.score_routes(rhelm, top_k=20)
    columns = [c for c in clean.columns if c != "rate"]
    pd.testing.assert_frame_equal(sweep[sweep["rate"] == 0][columns].reset_index(drop=True), clean)
    for name in ("evidence_recall", "matched_prefix"):
        by_rate = [part[name].reset_index(drop=True) for _, part in sweep.groupby("rate")]
        assert all(part.equals(by_rate[0]) for part in by_rate)
    nested = sweep.pivot_table(index=["arm", "query_id"], columns="rate", values=["lower_bound", "upper_bound"])
    assert (nested["lower_bound"].diff(axis=1).iloc[:, 1:] <= 1e-12).all(axis=None)
    assert (nested["upper_bound"].diff(axis=1).iloc[:, 1:] >= -1e-12).all(axis=None)
    all_hidden = sweep[(sweep["rate"] == 1) & (sweep["feasible"] == 1)]
    assert (all_hidden["lower_bound"] == 0).all()
    assert (all_hidden["upper_bound"] == 1).all()
    half = sweep[(sweep["rate"] == 0.5) & (sweep["feasible"] == 1)]["label_coverage"].mean()
    assert half == pytest.approx(0.5, abs=0.05)


def rename(records, source):
    """Return the same run as if it were that of another source."""
    swap = {c: lambda t, c=c: source + ":" + t[c] for c in ("query_id", "memory_id", "namespace", "group")}
    parts = {}
    for name in ("memories", "queries", "labels", "rankings", "work"):
        table = getattr(records, name)
        parts[name] = table.assign(**{c: f for c, f in swap.items() if c in table})
    for name in ("memories", "queries"):
        parts[name] = parts[name].assign(source=source)
    return replace(records, **parts, origins={})


def test_once_memops_is_frozen_the_two_source_rows_are_replicated(rhelm, monkeypatch):
    """Stand-in for MemOps: RHELM under other names, so that every macro mean must equal RHELM's own."""
    runs = {"rhelm": rhelm, "memops": rename(rhelm, "memops")}
    monkeypatch.setattr(frozen_module, "frozen", lambda: list(runs))
    monkeypatch.setattr(frozen_module, "load_frozen", lambda name, **_: runs[name])
    table = reproduce.reproduce(resampling=Resampling(replicates=300)).set_index(
        ["claim", "contrast", "subject", "metric"]
    )
    natural = table[table.index.get_level_values("claim").isin(["C9", "C9-controls", "C9-bounds", "C5", "C10"])]
    natural = natural[~natural.index.get_level_values("contrast").str.contains("without")]
    assert set(natural["status"]) == {"replicated", "recomputed"}
    kept = natural.index[natural["status"] == "recomputed"]
    assert len(kept) == 12  # the headline's five and the control's seven: nothing replicates what is recomputed
    # This table runs no corruption: MemOps does not settle the bracket end that the published curve leaves open.
    swap = table.loc[("C10-corruption", "top_100", "namespace_swap", "last_dominating_rate")]
    assert swap["status"] == "quoted"
    assert "fetch" not in swap["note"]
    study = support.study(rhelm, reference="global_dense", top_k=20, resampling=Resampling(replicates=10))
    deeper = support.study(rhelm, reference="global_dense", top_k=50, resampling=Resampling(replicates=10))
    row = natural.loc[("C9", "top_50", "namespace_dense-global_dense", "evidence_recall")]
    assert row["value"] == pytest.approx(deeper.summary.contrast("namespace_dense", "evidence_recall")["estimate"])
    seeds = [study.summary.value(f"size_matched_random_partition:{s}", "loss")["estimate"] for s in range(10)]
    name = "penalized_admissibility_upper_risk"
    row = natural.loc[("C9-controls", "top_20", "size_matched_random_partition", name)]
    assert row["value"] == pytest.approx(np.mean(seeds))
    deep = support.study(
        rhelm, arms=["global_bm25"], family="non_usable", top_k=100, resampling=Resampling(replicates=10)
    )
    row = natural.loc[("C5", "top_100", "global_bm25", "penalized_non_usable_upper_risk")]
    assert row["value"] == pytest.approx(deep.summary.value("global_bm25", "loss")["estimate"])


def test_natural_support_refuses_one_source_twice(rhelm):
    with pytest.raises(InputError, match="one source each"):
        support.together([rhelm, rhelm])
