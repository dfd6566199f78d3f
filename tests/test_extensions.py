"""Arms and encoders of other packages join by entry points; the page's example is the one that runs here."""

from __future__ import annotations

import re
import sys
from importlib.metadata import EntryPoint

import pytest
from _site import ROOT
from reference_retrieval import TableEncoder, random_corpus

from companion.errors import InputError
from companion.retrieval import encoders, known_arms, rank, registry


def offer(monkeypatch, group, name, value):
    entry = EntryPoint(name, value, group)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == entry.group else [])


def test_the_page_s_arm_runs_and_is_no_part_of_all(monkeypatch, tmp_path):
    page = (ROOT / "book" / "api" / "search.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "newest_first" in block)
    (tmp_path / "theirs_arms.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_ARMS", dict(registry._ARMS))
    offer(monkeypatch, "companion.arms", "newest", "theirs_arms")
    try:
        corpus, _ = random_corpus(1)
        rankings, work = rank(corpus, ["newest_first"], 5)
        assert known_arms()["newest_first"].extra
    finally:
        sys.modules.pop("theirs_arms", None)
    rows = rankings.merge(corpus.memories, on="memory_id").sort_values(["query_id", "rank"])
    assert rows.groupby("query_id")["visible_key"].apply(lambda keys: keys.is_monotonic_decreasing).all()
    counts = corpus.visible_counts().set_index("query_id")["own"]
    assert work.set_index("query_id")["candidates_scored"].eq(counts).all()


def test_an_encoder_joins_by_name_and_a_broken_entry_point_is_named(monkeypatch):
    offer(monkeypatch, "companion.encoders", "theirs", "reference_retrieval:TableEncoder")
    assert isinstance(encoders.make_encoder("theirs"), TableEncoder)
    assert isinstance(encoders.make_encoder("minilm"), encoders.Encoder)
    offer(monkeypatch, "companion.arms", "gone", "no_such_module_at_all")
    with pytest.raises(InputError, match=r"entry point 'gone' of companion\.arms \(no_such_module_at_all\) fails"):
        known_arms()
