"""Importers: TREC files against ir_measures, OpenInference in every shape, plain JSON Lines, and what each refuses."""

from __future__ import annotations

import json
import re
import shlex
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from companion import scoring
from companion.cli import app, main
from companion.errors import InputError
from companion.importers import FORMATS, common, read, trec
from companion.labels import PairLabels
from companion.ledger import Ledger
from companion.paths import project_root
from companion.tables import load_records, read_table

HOLDS = ("scope", "policy", "lifecycle")


def jsonl(path, **options):
    return read(FORMATS["jsonl"], path, **options)


def spans(path, mapping=None, **options):
    return read(FORMATS["openinference"], path, mapping=mapping, **options)


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


# --- TREC ----------------------------------------------------------------------------------------------------------


def ir_recall(run, qrels, k):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ir_measures
        from ir_measures import R
    found = ir_measures.iter_calc(
        [R @ k], list(ir_measures.read_trec_qrels(str(qrels))), list(ir_measures.read_trec_run(str(run)))
    )
    return {row.query_id: row.value for row in found}


def our_recall(imported, k):
    per_query = scoring.score_routes(imported.records, top_k=k)
    judged = per_query[per_query["anchors"] > 0]
    return dict(zip(judged["query_id"], judged["evidence_recall"], strict=True))


def random_files(folder, seed, decimals):
    """Return a run and qrels with ties, unjudged documents, negative judgements, and queries on one side only."""
    rng = np.random.default_rng(seed)
    run, qrels = [], []
    for query in range(12):
        documents = rng.permutation(40)[: rng.integers(5, 30)]
        scores = np.round(rng.normal(size=len(documents)), decimals)
        if query != 3:
            order = np.argsort(-scores, kind="stable")
            run += [f"q{query} Q0 d{documents[i]} {n} {scores[i]} tag" for n, i in enumerate(order, start=1)]
        if query != 7:
            judged = rng.permutation(40)[:15]
            qrels += [f"q{query} 0 d{d} {rng.integers(-1, 3)}" for d in judged]
    return write(folder / "run.txt", run), write(folder / "qrels.txt", qrels)


@pytest.mark.parametrize("k", [1, 5, 20])
@pytest.mark.parametrize(("seed", "decimals"), [(0, 0), (1, 1), (2, 6)])
def test_recall_is_that_of_ir_measures(tmp_path, seed, decimals, k):
    run, qrels = random_files(tmp_path, seed, decimals)
    ours = our_recall(trec.read(run, qrels, order="trec_eval", holds=HOLDS), k)
    theirs = ir_recall(run, qrels, k)
    assert "q3" in ours and ours["q3"] == 0.0  # in the qrels only: an empty route
    assert "q7" not in ours and "q7" not in theirs
    assert ours == pytest.approx({query: theirs[query] for query in ours})
    assert len(ours) >= 8


def test_ties_follow_the_rule_asked_for(tmp_path):
    run = write(tmp_path / "r", ["q Q0 a 1 2.0 t", "q Q0 c 2 2.0 t", "q Q0 b 3 2.0 t", "q Q0 z 4 1.0 t"])
    order = {rule: list(trec.read(run, order=rule).records.rankings["memory_id"]) for rule in trec.ORDERS}
    assert order == {
        "auto": ["a", "c", "b", "z"],
        "file": ["a", "c", "b", "z"],
        "trec_eval": ["c", "b", "a", "z"],
        "id_ascending": ["a", "b", "c", "z"],
    }
    assert "agree with its scores and were kept; 2 rows tie" in trec.read(run).notes[0]


def test_scores_equal_in_single_precision_tie_as_in_trec_eval(tmp_path):
    run = write(tmp_path / "r", ["q Q0 a 1 0.1234567891 t", "q Q0 b 2 0.1234567890 t"])
    qrels = write(tmp_path / "q", ["q 0 b 1"])
    assert (
        our_recall(trec.read(run, qrels, order="trec_eval", holds=HOLDS), 1) == ir_recall(run, qrels, 1) == {"q": 1.0}
    )


def test_ranks_that_disagree_with_scores_are_not_kept_and_that_is_said(tmp_path):
    run = write(
        tmp_path / "r", ["q1 Q0 a 1 1.0 t", "q1 Q0 b 2 3.0 t", "q2 Q0 a 0 5 t", "q2 Q0 c 1 4 t", "q1 Q0 x 1 1 other"]
    )
    made = trec.read(run)
    rows = made.records.rankings
    assert list(rows.loc[(rows["arm"] == "t") & (rows["query_id"] == "q1"), "memory_id"]) == ["b", "a"]
    assert "disagree with its scores in 1 query (q1)" in made.notes[0] and "trec_eval" in made.notes[0]
    assert made.notes[1].startswith("other: the ranks of the file agree")
    assert list(rows.loc[rows["query_id"] == "q2", "rank"]) == [1, 2]


def test_queries_missing_on_either_side_are_listed(tmp_path):
    run = write(tmp_path / "r", [f"q{n} Q0 a 1 1.0 t" for n in range(9)])
    qrels = write(tmp_path / "q", ["q8 0 a 1", "x 0 a 1"])
    made = trec.read(run, qrels)
    assert made.lists["queries_only_in_run"] == [f"q{n}" for n in range(8)]
    assert made.lists["queries_only_in_qrels"] == ["x"]
    written = made.write(tmp_path / "out")
    assert json.loads(written["notes"].read_text())["queries_only_in_run"] == [f"q{n}" for n in range(8)]
    assert load_records(tmp_path / "out").rankings.equals(made.records.rankings)


def test_nothing_is_admissible_unless_stated(tmp_path):
    run, qrels = random_files(tmp_path, 4, 2)
    made = trec.read(run, qrels)
    assert scoring.anchors_of(made.records).empty
    assert any("no document is known to be usable" in note for note in made.notes)
    partly = trec.read(run, qrels, holds=("policy",))
    assert scoring.label_ranked(partly.records)[["scope", "lifecycle"]].isna().all(axis=None)
    # An unjudged document is unresolved, not irrelevant.
    rows = scoring.label_ranked(made.records)
    judged = set(zip(made.records.labels["query_id"], made.records.labels["memory_id"], strict=True))
    unjudged = [pair not in judged for pair in zip(rows["query_id"], rows["memory_id"], strict=True)]
    assert rows.loc[unjudged, "relevant"].isna().all() and sum(unjudged) > 10


def test_given_tables_bring_namespaces(tmp_path):
    run = write(tmp_path / "r", ["q Q0 a 1 1.0 t", "q Q0 b 2 0.5 t"])
    memories = write(tmp_path / "m.csv", ["memory_id,namespace", "a,n1", "b,"])
    queries = write(tmp_path / "q.csv", ["query_id,namespace", "q,n1"])
    made = trec.read(run, memories=memories, queries=queries)
    assert scoring.label_ranked(made.records)["scope"].tolist() == [True, pd.NA]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["q Q0 a 1 1.0"], "line 1: 5 fields"),
        (["q Q0 a one 1.0 t"], "rank 'one'"),
        (["q Q0 a 1 nan t"], "score 'nan'"),
        (
            ["bad", "q Q0 a 1 1 t", "bad", "bad"],
            "line 1: 1 fields; expected query Q0 document rank score tag; also wrong: lines 3, 4",
        ),
        ([], "the file is empty"),
    ],
)
def test_malformed_runs_are_refused(tmp_path, lines, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        trec.read(write(tmp_path / "r", lines))


def test_malformed_qrels_and_options_are_refused(tmp_path):
    run = write(tmp_path / "r", ["q Q0 a 1 1.0 t", "q Q0 b 1 0.5 t"])
    with pytest.raises(InputError, match="judged twice"):
        trec.read(run, write(tmp_path / "q", ["q 0 a 1", "q 0 a 0"]))
    with pytest.raises(InputError, match="rank 1 stands twice"):
        trec.read(run, order="file")
    with pytest.raises(InputError, match="order 'best'"):
        trec.read(run, order="best")
    with pytest.raises(InputError, match="axes relevant"):
        trec.read(run, holds=("relevant",))
    for bad in ("q Q0 a\x00 1 1.0 t", "q Q0 a 1_0 1.0 t", "q Q0 a 1 1_0 t", "q Q0 a 1 inf t", "q Q0 a 1.0 1 t"):
        with pytest.raises(InputError, match=r"r, line 2: (a control character|rank .* are not a whole)"):
            trec.read(write(tmp_path / "r", ["q Q0 z 1 9.0 t", bad]))
    spaced = trec.read(write(tmp_path / "r", ["q Q0\ta\u00a0b  1 1.0 t "])).records.rankings
    assert spaced["memory_id"].tolist() == ["a\u00a0b"]  # C programs do not end a field there
    (tmp_path / "b").write_bytes(b"q Q0 \xff 1 1.0 t\n")
    with pytest.raises(InputError, match="line 1: byte 6"):
        trec.read(tmp_path / "b")


# --- OpenInference -------------------------------------------------------------------------------------------------

DOCUMENTS = [
    {"id": "m2", "content": "40 mg since May", "score": 0.81, "metadata": {"tenant": "p1", "visibility": "care"}},
    {
        "id": "m1",
        "content": "20 mg",
        "score": 0.5,
        "metadata": {"tenant": "p2", "visibility": "billing", "state": "stale"},
    },
]
MAPPING = {
    "query": {"namespace": "metadata.tenant", "principal": "user.id", "intent": {"constant": "current"}},
    "memory": {"namespace": "metadata.tenant", "state": "metadata.state"},
    "labels": {"policy": {"field": "metadata.visibility", "values": {"care": True, "billing": False}}},
}


def span(attributes, span_id="s1", name="search"):
    own = {
        "openinference.span.kind": "RETRIEVER",
        "input.value": "Which dose?",
        "user.id": "dr",
        "metadata": '{"tenant": "p1"}',
    }
    return {
        "name": name,
        "context": {"trace_id": "t", "span_id": span_id},
        "start_time": "2025-06-01T09:00:00Z",
        "attributes": {**own, **attributes},
    }


def flattened(documents, packed_metadata=True):
    flat = {}
    for n, document in enumerate(documents):
        for key, value in document.items():
            name = f"retrieval.documents.{n}.document.{key}"
            if key == "metadata" and packed_metadata:
                flat[name] = json.dumps(value)
            elif key == "metadata":
                flat |= {f"{name}.{inner}": cell for inner, cell in value.items()}
            else:
                flat[name] = value
    return flat


def otlp(value):
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


SHAPES = {
    "flattened": flattened(DOCUMENTS),
    "flattened metadata": flattened(DOCUMENTS, packed_metadata=False),
    "nested": {"retrieval": {"documents": [{"document": document} for document in DOCUMENTS]}},
    "one JSON string": {"retrieval.documents": json.dumps([{"document": document} for document in DOCUMENTS])},
    "JSON string, dotted": {
        "retrieval.documents": json.dumps([{f"document.{k}": v for k, v in document.items()} for document in DOCUMENTS])
    },
    "all in one string": {"retrieval": json.dumps({"documents": [{"document": document} for document in DOCUMENTS]})},
    "list of dotted": {"retrieval.documents": [{f"document.{k}": v for k, v in d.items()} for d in DOCUMENTS]},
}


def check_spans(made):
    records = made.records
    assert records.rankings[["arm", "query_id", "rank", "memory_id", "score"]].to_numpy().tolist() == [
        ["search", "s1", 1, "m2", 0.81],
        ["search", "s1", 2, "m1", 0.5],
    ]
    memories = records.memories.set_index("memory_id")
    assert memories["namespace"].to_dict() == {"m2": "p1", "m1": "p2"}
    assert memories["text"].to_dict() == {"m2": "40 mg since May", "m1": "20 mg"}
    assert memories.loc["m1", "state"] == "stale" and pd.isna(memories.loc["m2", "state"])
    query = records.queries.iloc[0]
    assert (query["text"], query["principal"], query["namespace"], query["intent"]) == (
        "Which dose?",
        "dr",
        "p1",
        "current",
    )
    rows = scoring.label_ranked(records)
    assert rows["policy"].tolist() == [True, False] and rows["scope"].tolist() == [True, False]
    assert rows["lifecycle"].isna().all() and rows["relevant"].isna().all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "envelope", ["lines", "list", "data", "pretty", "attributes on top", "attributes in one string", "otlp"]
)
def test_every_shape_gives_the_same_tables(tmp_path, shape, envelope):
    one = span(SHAPES[shape])
    if envelope == "otlp":
        if any(not isinstance(value, str | int | float) for value in one["attributes"].values()):
            return  # OTLP writes nested attributes as strings or dotted names
        attributes = [{"key": key, "value": otlp(value)} for key, value in one["attributes"].items()]
        one = {"name": one["name"], "spanId": "s1", "attributes": attributes}
        text = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]})
    elif envelope == "attributes on top":
        flat = {f"attributes.{key}": value for key, value in one.pop("attributes").items()}
        text = json.dumps({**one, **flat}) + "\n"
    elif envelope == "attributes in one string":
        text = json.dumps({**one, "attributes": json.dumps(one["attributes"])}) + "\n"
    else:
        text = {
            "lines": json.dumps(one) + "\n",
            "list": json.dumps([one]),
            "data": json.dumps({"data": [one]}),
            "pretty": json.dumps([one], indent=2),
        }[envelope]
    (tmp_path / "spans.json").write_text(text, encoding="utf-8")
    check_spans(spans(tmp_path / "spans.json", MAPPING))


def test_spans_without_documents_are_empty_routes_and_other_kinds_are_left_out(tmp_path):
    rows = [
        span(SHAPES["flattened"]),
        span({}, "s2"),
        span({"retrieval.documents": "[]"}, "s3"),
        span({"openinference.span.kind": "LLM"}, "s4"),
    ]
    made = spans(write(tmp_path / "s.jsonl", map(json.dumps, rows)), MAPPING)
    assert list(made.records.queries["query_id"]) == ["s1", "s2", "s3"]
    assert set(made.records.rankings["query_id"]) == {"s1"}
    assert made.notes[0] == "3 requests were read; 1 record of another kind left out."
    assert "2 requests retrieved nothing: empty routes (s2, s3)." in made.notes


def test_an_otlp_export_brings_the_time(tmp_path):
    one = {"name": "search", "spanId": "s1", "startTimeUnixNano": "1735689600000000000", "attributes": []}
    one["attributes"] = [{"key": "openinference.span.kind", "value": {"stringValue": "RETRIEVER"}}]
    text = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]})
    made = spans(write(tmp_path / "s.json", [text]))
    assert made.records.queries["time"].item() == "2025-01-01T00:00:00+00:00"
    assert made.notes[0].startswith("1 request was read; 0 records of another kind left out")


def test_documents_without_ids_repeats_and_missing_scores(tmp_path):
    documents = [{"content": "same"}, {"content": "same"}, {"id": 7, "content": "x", "score": 1}]
    made = spans(write(tmp_path / "s.jsonl", [json.dumps(span(flattened(documents)))]))
    ids = list(made.records.rankings["memory_id"])
    assert len(ids) == 2 and ids[0].startswith("content-") and ids[1] == "7"
    assert made.records.rankings["score"].isna().all()
    said = " ".join(made.notes)
    assert (
        "hash of the text" in said
        and "kept once, at the best rank" in said
        and "Only some documents have a score" in said
    )
    assert "No memory names a namespace" in said


def test_mapping_file_and_paths_into_the_span(tmp_path):
    (tmp_path / "map.yaml").write_text(
        "query: {query_id: session.id, arm: {constant: app}}\nmemory: {namespace: 'span:user.id'}\n"
    )
    rows = [span({**SHAPES["flattened"], "session.id": "x1"})]
    records = spans(write(tmp_path / "s.jsonl", map(json.dumps, rows)), tmp_path / "map.yaml").records
    assert list(records.queries["query_id"]) == ["x1"] and set(records.rankings["arm"]) == {"app"}
    assert set(records.memories["namespace"]) == {"dr"}


def test_arms_that_differ_about_a_pair_leave_the_label_unresolved(tmp_path):
    other = [{**DOCUMENTS[0], "metadata": {"visibility": "billing"}}, DOCUMENTS[1]]
    mapping = {**MAPPING, "query": {"query_id": "context.trace_id"}}
    rows = [span(flattened(DOCUMENTS)), span(flattened(other), "s2", "other")]
    records = spans(write(tmp_path / "s.jsonl", map(json.dumps, rows)), mapping).records
    labels = records.labels.set_index("memory_id")["policy"]
    assert labels["m2"] is pd.NA and not labels["m1"]


@pytest.mark.parametrize(
    ("attributes", "mapping", "said"),
    [
        (
            SHAPES["flattened"],
            {"labels": {"policy": "metadata.visibility"}},
            r"documents\[1\], policy: 'care'; expected true, false",
        ),
        (SHAPES["flattened"], {"memory": {"owner": "x"}}, "no column 'owner'"),
        (SHAPES["flattened"], {"rules": {}}, "no section 'rules'"),
        (SHAPES["flattened"], {"query": {"namespace": 3}}, "query.namespace: 3; expected a path"),
        # What cannot be read is not an empty route.
        ({"retrieval.documents": "[{broken"}, None, "s.jsonl.*, retrieval.documents: the JSON text cannot be read"),
        ({"retrieval.documents": '[{"document": {"id": "a", "score": NaN}}]'}, None, "NaN is not a JSON value"),
        ({"retrieval.documents": "hello"}, None, "retrieval.documents: 'hello'; expected documents"),
        ({"retrieval.documents": [[1], 2]}, None, r"retrieval.documents.0: \[1\]; expected documents"),
        ({"retrieval": "[]x"}, None, "retrieval: the JSON text cannot be read"),
        (flattened([{"id": "a\x00b"}]), None, r"documents\[1\]: 'a.x00b' holds a control character"),
        (flattened([{"content": "\ud800"}]), None, r"documents\[1\], text: .* is not Unicode text"),
        (flattened([{"id": "\ud800"}]), None, r"documents\[1\]: .* is not Unicode text"),
        ({"user.id": "a\x1bb"}, MAPPING, "principal: 'a.x1bb' holds a control character"),
        ({"k": "soon"}, {"query": {"intent": "k"}}, "intent: 'soon' is not a known intent; expected one of current"),
        (flattened([{"score": 0.5}]), None, "neither an id nor text"),
        (flattened([{"id": "a", "score": "high"}]), None, "score: 'high'"),
        (flattened([{"id": ["a"]}]), None, "is not an id"),
    ],
)
def test_malformed_spans_and_mappings_are_refused(tmp_path, attributes, mapping, said):
    with pytest.raises(InputError, match=said):
        spans(write(tmp_path / "s.jsonl", [json.dumps(span(attributes))]), mapping)


def test_files_that_hold_no_spans_are_refused(tmp_path):
    with pytest.raises(InputError, match="line 2: Expecting"):
        spans(write(tmp_path / "a.jsonl", [json.dumps(span({})), "{broken"]))
    with pytest.raises(InputError, match="is not a record"):
        spans(write(tmp_path / "b.json", ["[1, 2]"]))
    with pytest.raises(InputError, match="no retrieval among 1"):
        spans(write(tmp_path / "c.json", [json.dumps({"name": "x"})]))
    with pytest.raises(InputError, match="empty"):
        spans(write(tmp_path / "e.json", []))


# --- JSON Lines ----------------------------------------------------------------------------------------------------


def test_requests_become_tables_a_ledger_and_answers(tmp_path):
    lines = [
        {
            "query": "Which dose now?",
            "namespace": "p1",
            "principal": "dr",
            "retrieved": [
                {"id": "m2", "text": "40", "score": 0.9, "namespace": "p1"},
                {"id": "m1", "namespace": "p2", "score": 0.2, "supersedes": "m0"},
            ],
            "exposed": ["m1"],
            "answer": "20.",
        },
        {"query": {"id": "q7", "text": "And before?", "intent": "history"}, "retrieved": ["m1"]},
        {"query": "Nothing?", "namespace": "p2", "retrieved": [], "exposed": [], "arm": "b"},
    ]  # fmt: skip
    made = jsonl(write(tmp_path / "log.jsonl", map(json.dumps, lines)))
    records = made.records
    assert list(records.queries["query_id"]) == ["line-1", "q7", "line-3"]
    assert records.ledger[["query_id", "memory_id", "exposed"]].to_numpy().tolist() == [
        ["line-1", "m2", False],
        ["line-1", "m1", True],
        ["q7", "m1", pd.NA],
    ]
    assert records.memories.set_index("memory_id").loc["m1", "supersedes"] == "m0"
    assert made.answers.to_numpy().tolist() == [["line-1", "retrieval", "20."]]
    assert records.labels.empty and records.queries.set_index("query_id").loc["q7", "group"] == "q7"
    assert any("1 of 3 requests does not say what was exposed" in note for note in made.notes)
    for fmt in ("jsonl", "csv", "parquet"):
        made.write(tmp_path / fmt, fmt)
        again = load_records(tmp_path / fmt)
        assert again.ledger.equals(records.ledger) and again.queries["text"].equals(records.queries["text"])
    with pytest.raises(InputError, match=r"already holds memories\.csv, .*answers\.csv, import-notes\.json; choose"):
        made.write(tmp_path / "csv", "jsonl")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"query": "q", "retrieved": "a"}, "expected documents: a list"),
        ({"query": "q"}, "retrieved: an empty field"),
        ({"retrieved": []}, "query: an empty field"),
        ({"query": "q", "retrieved": [{"score": 1}]}, r"retrieved\[1\]: neither an id nor text"),
        ({"query": "q", "retrieved": [{"id": "a", "score": "x"}]}, "expected a finite number"),
        ({"query": "q", "retrieved": [], "answer": 3}, "answer: 3 is not text"),
        ({"query": "q", "retrieved": ["a\x1bb"]}, r"line 1, retrieved\[1\]: 'a.x1bb' holds a control character"),
        (
            {"query": "q", "retrieved": [{"id": "a", "state": "old"}]},
            r"retrieved\[1\], state: 'old' is not a known state",
        ),
        (
            {"query": "q", "retrieved": [], "namespace": "a\x7fb"},
            "line 1, namespace: 'a.x7fb' holds a control character",
        ),
        ({"query": "q", "retrieved": [], "intent": "soon"}, "line 1, intent: 'soon' is not a known intent"),
        ({"query": "\ud800", "retrieved": []}, "line 1, text: .* is not Unicode text"),
        ({"query": "q", "retrieved": [], "answer": "\ud800"}, "line 1, answer: .* is not Unicode text"),
        ([1], "is not an object"),
    ],
)
def test_malformed_requests_are_refused(tmp_path, line, said):
    with pytest.raises(InputError, match=said):
        jsonl(write(tmp_path / "log.jsonl", [json.dumps(line)]))


def test_a_name_given_twice_and_a_broken_line_are_refused(tmp_path):
    for line, said in [('{"query": "a", "query": "b", "retrieved": []}', "'query' appears more than once"),
                       ('{"query": "a", "retrieved": [], "k": NaN}', "NaN is not a JSON value"),
                       ('{"query": "a", "retrieved": [', "line 2: .*expected JSON")]:  # fmt: skip
        with pytest.raises(InputError, match=said):
            jsonl(write(tmp_path / "log.jsonl", ['{"query": "a", "retrieved": []}', line]))


def test_turns_of_one_id_are_numbered_and_arms_of_one_turn_stay_together(tmp_path):
    same = {"query_id": "x", "query": "a", "retrieved": []}
    rows = [same, {**same, "arm": "b"}, {**same, "query": "other"}, {"query_id": "y", "query": "a", "retrieved": []}]
    made = jsonl(write(tmp_path / "a.jsonl", map(json.dumps, rows)))
    assert made.records.queries["query_id"].tolist() == ["x#1", "x#2", "y"]
    assert made.records.work[["arm", "query_id"]].to_numpy().tolist() == [
        ["retrieval", "x#1"], ["b", "x#1"], ["retrieval", "x#2"], ["retrieval", "y"]
    ]  # fmt: skip
    assert any("1 query id names several requests" in note for note in made.notes)


def test_cached_repeated_failed_and_shared_ids_are_kept_and_said(tmp_path):
    rows = [
        {"query": "a", "namespace": "t", "retrieved": [{"id": 1.0, "namespace": "t", "colour": "red"}], "exposed": [9]},
        {"query": "b", "namespace": "u", "retrieved": [{"id": 1, "namespace": "u"}, {"id": 1, "namespace": "u"}]},
        {"query": "c", "namespace": "u", "retrieved": None},
    ]
    made = jsonl(write(tmp_path / "a.jsonl", map(json.dumps, rows)), mapping={"memory": {"state": "no.such.path"}})
    records = made.records
    assert records.rankings["memory_id"].tolist() == ["t/1", "u/1"]
    cached = records.ledger[~records.ledger["retrieved"]]
    assert cached[["query_id", "memory_id"]].to_numpy().tolist() == [["line-1", "9"]]
    assert records.work[["query_id", "status"]].to_numpy().tolist() == [["line-3", "failed"]]
    assert made.lists["unused_fields"]["document: colour"] == 1
    assert made.lists["ids_of_several_namespaces"] == ["1"]
    assert made.lists["mapped_paths_without_a_match"] == ["memory.state (no.such.path, tried 3 times)"]
    assert any("kept once, at the best rank" in note for note in made.notes)
    assert common.store_is_from_log(made.write(tmp_path / "o")["notes"].parent) is True


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    row=st.dictionaries(
        st.sampled_from(["query", "retrieved", "exposed", "answer", "arm", "query_id", "id"]), json_values
    )
)
def test_any_json_is_read_or_refused_in_one_line(tmp_path, row):
    path = write(tmp_path / "log.jsonl", [json.dumps(row)])
    try:
        jsonl(path)
    except InputError as error:
        assert "\n" not in str(error)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    attributes=st.dictionaries(
        st.sampled_from(
            [
                "retrieval.documents",
                "retrieval",
                "retrieval.documents.0.document.id",
                "retrieval.documents.0",
                "input.value",
            ]
        ),
        json_values,
    )
)
def test_any_span_is_read_or_refused_in_one_line(tmp_path, attributes):
    path = write(tmp_path / "s.jsonl", [json.dumps(span(attributes))])
    try:
        spans(path)
    except InputError as error:
        assert "\n" not in str(error)


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_writes_what_the_audit_reads(tmp_path):
    from typer.testing import CliRunner

    from companion.cli import app

    run, qrels = random_files(tmp_path, 5, 3)
    runner = CliRunner()
    options = ["--qrels", str(qrels), "--holds", "scope,policy,lifecycle", "--out", str(tmp_path / "t"), "--json"]
    done = runner.invoke(app, ["import", "trec", str(run), *options])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["queries_only_in_qrels"] == ["q3"] and told["rows"]["queries"] == 12
    log = write(tmp_path / "log.jsonl", [json.dumps({"query": "q", "retrieved": ["a"]})])
    assert runner.invoke(app, ["import", "jsonl", str(log), "--out", str(tmp_path / "j")]).exit_code == 0
    spans = write(tmp_path / "s.jsonl", [json.dumps(span(SHAPES["nested"]))])
    done = runner.invoke(
        app, ["import", "openinference", str(spans), "--out", str(tmp_path / "o"), "--format", "parquet"]
    )
    assert done.exit_code == 0 and load_records(tmp_path / "o").memories["memory_id"].tolist() == ["m2", "m1"]


def log_and_run(folder):
    """Write a log with exposure and answers, and a run: an import of the second has neither ledger nor answers."""
    asked = {"query": "q", "namespace": "p1", "retrieved": [{"id": "a", "namespace": "p1"}], "exposed": ["a"]}
    log = write(folder / "log.jsonl", [json.dumps({**asked, "answer": "yes"})])
    return str(log), str(write(folder / "run.txt", ["301 Q0 doc-a 1 9.5 bm25"]))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refuse(monkeypatch, capsys, *words):
    """Run a command that is refused, and return its one line on standard error."""
    monkeypatch.setattr(sys, "argv", ["companion", *words])
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main()
    printed = capsys.readouterr()
    assert stopped.value.code == 2 and not printed.out and printed.err.count("\n") == 1
    return printed.err


@pytest.mark.parametrize("fmt", ["jsonl", "csv"])
def test_an_import_never_empties_labels_written_by_hand(tmp_path, monkeypatch, capsys, fmt):
    log, _ = log_and_run(tmp_path)
    out = tmp_path / "mine"
    runner = CliRunner()
    assert runner.invoke(app, ["import", "jsonl", log, "--out", str(out)]).exit_code == 0
    judged = '{"query_id": "line-1", "memory_id": "a", "relevant": 1}\n'
    (out / "labels.jsonl").write_text(judged, encoding="utf-8")
    before = contents(out)
    said = refuse(monkeypatch, capsys, "import", "jsonl", log, "--out", str(out), "--format", fmt)
    assert "mine: already holds memories.jsonl, queries.jsonl, labels.jsonl, rankings.jsonl" in said
    assert "choose a new folder, or --replace, which removes the old tables, labels included" in said
    assert contents(out) == before
    replaced = runner.invoke(app, ["import", "jsonl", log, "--out", str(out), "--format", fmt, "--replace", "--json"])
    assert replaced.exit_code == 0, replaced.output
    assert "labels.jsonl" in json.loads(replaced.stdout)["replaced"]
    assert load_records(out).labels.empty


def test_replacing_leaves_no_table_of_another_import_behind(tmp_path, monkeypatch, capsys):
    log, run = log_and_run(tmp_path)
    out = tmp_path / "mine"
    runner = CliRunner()
    assert runner.invoke(app, ["import", "jsonl", log, "--out", str(out), "--format", "csv"]).exit_code == 0
    for name in ("work.parquet", "outcomes.ndjson", "kept.txt"):
        (out / name).write_text("old", encoding="utf-8")
    assert {"ledger.csv", "answers.csv"} <= set(contents(out))
    assert "already holds" in refuse(monkeypatch, capsys, "import", "trec", run, "--out", str(out))
    done = runner.invoke(app, ["import", "trec", run, "--out", str(out), "--replace"])
    assert done.exit_code == 0 and "Replaced: memories.csv, queries.csv, labels.csv" in done.stdout
    new = {f"{table}.jsonl" for table in ("memories", "queries", "labels", "rankings")}
    assert set(contents(out)) == {*new, "import-notes.json", "kept.txt"}
    assert load_records(out).queries["query_id"].tolist() == ["301"]
    audited = runner.invoke(app, ["audit", str(out), "--out", str(tmp_path / "r.html"), "--replicates", "20"])
    assert audited.exit_code == 0, audited.output


@pytest.mark.parametrize("fails", ["writing", "moving"])
def test_a_replacement_that_fails_leaves_the_old_tables(tmp_path, monkeypatch, fails):
    log, run = log_and_run(tmp_path)
    out = tmp_path / "mine"
    jsonl(log).write(out)
    before = contents(out)

    def full(*_):
        raise OSError(28, "No space left on device")

    if fails == "writing":
        monkeypatch.setattr(common, "write_table", full)
    else:
        rename = type(out).rename
        # The last new table cannot be moved into place: old ones are out, others are in.
        monkeypatch.setattr(
            type(out),
            "rename",
            lambda self, to: (
                full() if self.name == "queries.jsonl" and ".import-new-" in str(self) else rename(self, to)
            ),
        )
    with pytest.raises(InputError, match="mine: No space left on device"):
        trec.read([run]).write(out, replace=True)
    assert contents(out) == before
    with pytest.raises(InputError, match="No space left"):
        trec.read([run]).write(tmp_path / "fresh")
    assert not (tmp_path / "fresh").exists()


def test_folders_and_files_in_the_way_are_not_removed(tmp_path):
    log, _ = log_and_run(tmp_path)
    made = jsonl(log)
    (tmp_path / "a" / "labels.parquet").mkdir(parents=True)
    (tmp_path / "b" / "rankings" / "part=0").mkdir(parents=True)
    for folder in ("a", "b"):
        with pytest.raises(InputError, match="is a folder, which --replace does not remove"):
            made.write(tmp_path / folder, replace=True)
    with pytest.raises(InputError, match="expected a folder, found a file"):
        made.write(log, replace=True)
    (tmp_path / "c" / "work").mkdir(parents=True)  # only called like a table
    assert load_records(made.write(tmp_path / "c")["labels"].parent).labels.empty


def test_the_page_on_importing_can_be_followed_line_by_line(tmp_path, monkeypatch):
    """Make every file of the page, run its commands in page order, and look at what the audit finds."""
    page = (project_root() / "book" / "import.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runner, folders, end = CliRunner(), [], 0
    pending: list[str] = []
    for block in re.finditer(r"^```(\w+)\n(.*?)^```", page, flags=re.S | re.M):
        kind, text = block.groups()
        named = re.findall(
            r"`((?:[\w-]+/)?[\w-]+\.(?:jsonl|json|yaml|txt))`", page[end : block.start()].strip().rpartition("\n\n")[2]
        )
        pending += dict.fromkeys(named)
        end = block.end()
        if kind in ("json", "yaml", "text"):
            with (tmp_path / pending.pop(0)).open("a", encoding="utf-8") as file:
                file.write(text)
            continue
        pending = []
        if kind == "python":
            exec(text, {"Ledger": Ledger})
        for line in text.splitlines() if kind == "bash" else ():
            words = shlex.split(line, comments=True)[1:]
            done = runner.invoke(app, words + (["--replicates", "50"] if words[0] == "audit" else []))
            assert done.exit_code == 0, (line, done.output)
            folders += [words[words.index("--out") + 1]] if words[0] == "import" else []
    assert read_table(tmp_path / "my-records" / "ledger.jsonl", "ledger")["exposed"].tolist() == [True, False]
    assert len(set(folders)) == len(folders) == 10
    found = {}
    for folder in folders:
        done = runner.invoke(app, ["audit", folder, "--out", f"{folder}.html", "--replicates", "50", "--json"])
        assert done.exit_code == 0, done.output
        found[folder] = {check["kind"] for check in json.loads(done.stdout)["checks"] if check["outcome"] == "found"}
    for folder in ("my-mem0", "my-langchain", "my-llamaindex", "my-otel"):
        assert "wrong_scope" in found[folder], found
    assert "ghosts" in found["my-mem0"] and "expired" in found["my-zep"]
    assert not found["my-letta"] and not {"wrong_scope", "ghosts"} & found["my-beir"]
    records = load_records("my-trec")
    scored = scoring.score_routes(records).set_index("query_id")
    assert scored.loc["301", ["lower_bound", "upper_bound"]].tolist() == [0, 0.5] and scored.loc["303", "feasible"] == 0
    records = load_records("my-jsonl")
    # The page says that scope follows from the namespaces: no row of the labels states one.
    assert "scope" not in records.labels and len(records.labels) == 2
    summary = scoring.summarise(scoring.score_routes(records))
    # The anchor stands first, so the superseded dose behind it is not in the matched prefix.
    assert summary.value("retrieval", "evidence_recall")["estimate"] == 1
    assert summary.value("retrieval", "upper_bound")["estimate"] == 0


@pytest.mark.parametrize("empty", ["", ', "scope": null'])
def test_once_a_row_states_a_scope_an_empty_one_is_unresolved(tmp_path, empty):
    """As the page says: listed with an empty scope is unresolved; not listed, the namespaces say."""
    write(tmp_path / "memories.csv", ["memory_id,namespace", "m1,a", "m2,a", "m3,a"])
    write(tmp_path / "queries.csv", ["query_id,namespace", "q,a"])
    write(tmp_path / "rankings.csv", ["arm,query_id,rank,memory_id", "r,q,1,m1"])

    def scopes(first):
        second = f'{{"query_id": "q", "memory_id": "m2", "relevant": 1{empty if first else ""}}}'
        write(tmp_path / "labels.jsonl", [f'{{"query_id": "q", "memory_id": "m1", "relevant": 1{first}}}', second])
        known = PairLabels.from_records(load_records(tmp_path))
        return known.lookup(np.zeros(3, dtype=np.int64), np.arange(3))["scope"].tolist()

    assert scopes(', "scope": 0') == [False, pd.NA, True]
    assert scopes("") == [True, True, True]
