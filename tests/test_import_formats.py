"""Formats of other projects, in every file that people keep them in, and what imports say of what they did."""

from __future__ import annotations

import gzip
import json
import random
from types import SimpleNamespace

import pandas as pd
import pytest
from typer.testing import CliRunner

from companion import scoring
from companion.cli import app, importing
from companion.errors import InputError
from companion.importers import FORMATS, Format, read, store_is_from_log, trec
from companion.tables import load_records

HOLDS = ("scope", "policy", "lifecycle")


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def jsonl(path, **options):
    return read(FORMATS["jsonl"], path, **options)


def test_a_given_store_is_the_store_and_what_is_not_in_it_stays_a_ghost(tmp_path):
    run = write(tmp_path / "r", ["q Q0 a 1 1.0 t", "q Q0 b 2 0.5 t", "q Q0 a 3 0.4 t"])
    memories = write(tmp_path / "m.csv", ["memory_id,namespace", "a,n1"])
    queries = write(tmp_path / "q.csv", ["query_id,namespace", "q,n1"])
    made = trec.read(run, memories=memories, queries=queries)
    assert made.records.memories["memory_id"].tolist() == ["a"] and made.store == "given"
    assert made.records.rankings["memory_id"].tolist() == ["a", "b"]
    assert any("1 document stands again in a route" in note for note in made.notes)
    made.write(tmp_path / "out")
    assert store_is_from_log(tmp_path / "out") is False and store_is_from_log(tmp_path) is None


def test_conversation_ids_become_numbered_turns_and_arms_meet_in_a_turn(tmp_path):
    turns = [("x", "a", "v1"), ("x", "a", "v2"), ("x", "b", "v1"), ("x", "b", "v2"), ("y", "a", "v1"), ("x", "a", "v1")]
    lines = [{"query_id": i, "query": text, "arm": arm, "retrieved": ["m"]} for i, text, arm in turns]
    made = jsonl(write(tmp_path / "a.jsonl", map(json.dumps, lines)))
    assert made.records.rankings[["query_id", "arm"]].to_numpy().tolist() == [
        ["x#1", "v1"], ["x#1", "v2"], ["x#2", "v1"], ["x#2", "v2"], ["y", "v1"], ["x#3", "v1"]
    ]  # fmt: skip
    assert "1 query id names several requests: numbered in the order of the file, as id#1, id#2." in made.notes


def test_failed_requests_repeats_and_caches(tmp_path):
    lines = [
        {"query": "a", "retrieved": ["m", "n", "m"], "exposed": ["m", "z"], "answer": None},
        {"query": "b", "retrieved": None, "answer": "half"},
        {"query": "c", "retrieved": ["m"], "status": "error", "answer": "half"},
        {"query": "d", "retrieved": []},
    ]
    made = jsonl(write(tmp_path / "a.jsonl", map(json.dumps, lines)))
    assert made.records.rankings["memory_id"].tolist() == ["m", "n"] and made.answers is None
    work = made.records.work.set_index("query_id")["status"]
    assert work.to_dict() == {"line-2": "failed", "line-3": "failed", "line-4": "done"}
    book = made.records.ledger.set_index("memory_id")
    assert book.loc["z", ["retrieved", "exposed"]].tolist() == [False, True]
    assert book["exposed"].to_dict() == {"m": True, "n": False, "z": True}
    for said in (
        "2 requests failed",
        "1 request retrieved nothing",
        "1 exposed memory was not retrieved",
        "made out of",
    ):
        assert any(said in note for note in made.notes), said
    assert made.store == "log"


def test_ids_of_several_tenants_are_kept_apart_or_refused(tmp_path):
    def log(*owners):
        items = [{"id": 1, "namespace": owner} for owner in owners]
        rows = [{"query": f"q{n}", "namespace": "a", "retrieved": [item]} for n, item in enumerate(items)]
        return write(tmp_path / "a.jsonl", map(json.dumps, rows))

    made = jsonl(log("a", "b"))
    assert made.records.memories.set_index("memory_id")["namespace"].to_dict() == {"a/1": "a", "b/1": "b"}
    assert made.lists["ids_of_several_namespaces"] == ["1"]
    assert scoring.label_ranked(made.records)["scope"].tolist() == [True, False]
    with pytest.raises(
        InputError, match=r"memory id '1' belongs to several namespaces \(a, b\) and stands once without"
    ):
        jsonl(log("a", "b", None))
    # A store that holds the id once decides whose it is, whatever the log says.
    store = write(tmp_path / "store.csv", ["memory_id,namespace", "1,b"])
    made = jsonl(log("a", "b"), memories=store)
    assert scoring.label_ranked(made.records)["scope"].tolist() == [False, False]


def test_what_was_not_used_and_what_a_mapping_missed_is_counted(tmp_path):
    lines = [{"query": "a", "retrieved": [{"id": "m", "colour": "red", "meta": {"owner": "x"}}], "extra": {"k": 1}}] * 3
    mapping = write(
        tmp_path / "map.yaml", ["memory: {namespace: meta.owner, time: meta.when}", "query: {principal: who}"]
    )
    made = jsonl(write(tmp_path / "a.jsonl", map(json.dumps, lines)), mapping=mapping)
    assert made.lists["unused_fields"] == {"document: colour": 3, "extra.k": 3}
    missed = made.lists["mapped_paths_without_a_match"]
    assert missed == ["query.principal (who, tried 3 times)", "memory.time (meta.when, tried 3 times)"]
    assert set(made.records.memories["namespace"]) == {"x"}
    for bad in ("a: &x [1]\nb: *x", "query: [1]", "memory: {namespace: {field: 3}}", "query: {text: !!bool maybe}"):
        with pytest.raises(InputError):
            jsonl(tmp_path / "a.jsonl", mapping=write(tmp_path / "bad.yaml", [bad]))


# --- other formats: each file is in the shape that the project documents ---

PHOENIX = pd.DataFrame(
    {
        "name": ["retrieve", "llm"],
        "span_kind": ["RETRIEVER", "LLM"],
        "context.span_id": ["s1", "s2"],
        "status_code": ["OK", "OK"],
        "attributes.input.value": ["Which dose?", None],
        "attributes.user.id": ["alice", None],
        "attributes.retrieval.documents": [
            [{"document.id": "m2", "document.content": "it's 40", "document.metadata": {"user_id": "alice"}},
             {"document.id": "b1", "document.content": "80", "document.metadata": {"user_id": "bob"}}], None],
    }
)  # fmt: skip
TRACELOOP = {
    "traceId": "t", "spanId": "s1", "name": "chroma.query",
    "attributes": [{"key": "db.system", "value": {"stringValue": "chroma"}},
                   {"key": "traceloop.association.properties.user_id", "value": {"stringValue": "alice"}}],
    "events": [{"name": "db.query.result", "attributes": [
        {"key": "db.query.result.id", "value": {"stringValue": name}},
        {"key": "db.query.result.distance", "value": {"doubleValue": distance}},
        {"key": "db.query.result.document", "value": {"stringValue": "text"}},
        {"key": "db.query.result.metadata", "value": {"stringValue": json.dumps({"user_id": owner})}}]}
        for name, distance, owner in (("m2", 0.1, "alice"), ("b1", 0.4, "bob"))],
}  # fmt: skip
OUTPUT = {
    "name": "retrieve", "context": {"span_id": "s1"},
    "attributes": {"openinference.span.kind": "RETRIEVER", "user.id": "alice", "output.value": json.dumps(
        {"documents": [{"id": "m2", "page_content": "x", "metadata": {"user_id": "alice"}},
                       {"id": "b1", "page_content": "y", "metadata": {"user_id": "bob"}}]})},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("spans.parquet", "openinference"),
        ("spans.csv", "openinference"),
        ("spans.tsv", "openinference"),
        ("utf16.csv", "openinference"),
        ("sep.csv", "openinference"),
        ("output.json.gz", "openinference"),
        ("traceloop.json", "otel"),
    ],
)
def test_every_way_to_keep_spans_gives_the_same_route(tmp_path, name, form):
    path = tmp_path / name
    if name == "spans.parquet":
        PHOENIX.to_parquet(path)
    elif name == "traceloop.json":
        path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [TRACELOOP]}]}]}))
    elif name == "output.json.gz":
        path.write_bytes(gzip.compress(json.dumps([OUTPUT]).encode()))
    else:
        text = PHOENIX.to_csv(index=False, sep={"spans.tsv": "\t", "sep.csv": ";"}.get(name, ","))
        text = "sep=;\n" + text if name == "sep.csv" else text
        path.write_bytes(text.encode("utf-16" if name == "utf16.csv" else "utf-8"))
    records = read(FORMATS[form], path).records
    assert records.rankings[["query_id", "rank", "memory_id"]].to_numpy().tolist() == [["s1", 1, "m2"], ["s1", 2, "b1"]]
    assert scoring.label_ranked(records)["scope"].tolist() == [True, False]


def test_resource_attributes_can_be_mapped(tmp_path):
    resource = {"attributes": [{"key": "tenant.id", "value": {"stringValue": "t9"}}]}
    export = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [TRACELOOP]}]}]}
    path = write(tmp_path / "t.json", [json.dumps(export)])
    made = read(FORMATS["otel"], path, mapping={"query": {"namespace": "resource.tenant.id"}})
    assert made.records.queries["namespace"].tolist() == ["t9"]


@pytest.mark.parametrize(("word", "known"), [("1.0", True), ("0.0", False), (1.0, True), (0, False), ("?", pd.NA)])
def test_labels_as_exports_write_them(tmp_path, word, known):
    path = write(tmp_path / "a.jsonl", [json.dumps({"query": "q", "retrieved": [{"id": "m", "ok": word}]})])
    assert jsonl(path, mapping={"labels": {"policy": "ok"}}).records.labels["policy"].tolist() == [known]


def test_stores_that_only_the_project_writes(tmp_path):
    docstore = {
        "docstore/data": {"m2": {"__data__": {"id_": "m2", "text": "x", "metadata": {"user_id": "a"}}, "__type__": "1"}}
    }
    store = write(tmp_path / "docstore.json", [json.dumps(docstore)])
    event = {"query": "q", "user_id": "a", "response": {"response": "40", "source_nodes": [{"node": {"id_": "m2"}}]}}
    made = read(FORMATS["llamaindex"], write(tmp_path / "l.jsonl", [json.dumps(event)]), memories=store)
    assert scoring.label_ranked(made.records)["scope"].tolist() == [True] and made.answers["answer"].tolist() == ["40"]
    documents = [{"lc": 1, "kwargs": {"page_content": "x", "metadata": {"id": "d"}}}]
    child = {"id": "c", "run_type": "retriever", "name": "R", "inputs": {"query": "q"}}
    run = {"id": "r", "run_type": "chain", "child_runs": [{**child, "outputs": {"documents": documents}}]}
    made = read(FORMATS["langchain"], write(tmp_path / "r.json", [json.dumps([run])]))
    assert made.records.rankings[["arm", "query_id", "memory_id"]].to_numpy().tolist() == [["R", "c", "d"]]


def test_beir_and_ms_marco_are_trec_in_other_files(tmp_path):
    run = write(tmp_path / "run.json", ['{"1": {"b": 0.5, "a": 0.9, "c": 0.5}}'])
    qrels = write(tmp_path / "qrels.tsv", ["query-id\tcorpus-id\tscore", "1\tb\t1"])
    corpus = write(tmp_path / "corpus.jsonl", ['{"_id": "a", "title": "T", "text": "x"}', '{"_id": "b", "text": "y"}',
                                              '{"_id": "c", "text": "z"}'])  # fmt: skip
    made = trec.read(run, qrels, holds=HOLDS, memories=corpus)
    assert made.records.rankings["memory_id"].tolist() == ["a", "c", "b"] and made.records.rankings["arm"][0] == "run"
    assert made.records.memories["text"].tolist() == ["T x", "y", "z"]
    assert scoring.score_routes(made.records, top_k=3)["evidence_recall"].tolist() == [1.0]
    assert scoring.score_routes(made.records, top_k=2)["evidence_recall"].tolist() == [0.0]
    msmarco = write(tmp_path / "bm25.tsv", ["1\ta\t1", "1\tb\t2"])
    collection = write(tmp_path / "collection.tsv", ["a\tfirst text", "b\tsecond text"])
    made = trec.read(msmarco, memories=collection)
    assert made.records.rankings[["arm", "memory_id", "rank"]].to_numpy().tolist() == [
        ["bm25", "a", 1],
        ["bm25", "b", 2],
    ]
    assert made.records.memories["text"].tolist() == ["first text", "second text"]


KEYS = """query results id memory user_id filters AND retrieved exposed answer outputs inputs documents kwargs
lc child_runs nodes node source_nodes edges uuid group_ids response request events attributes name
message_type tool_call score tool_call_id tool_return resource retrieval.documents retrieval
output.value traceloop.entity.output error metadata traceloop.entity.name gen_ai.memory.records
startTimeUnixNano status docstore/data query_id""".split()
WORDS = ["x", '{"a": 1}', "[{'id': 1}]", "[broken", "archival_memory_search", "tool_call_message", "retriever", "1.0"]
WORDS += ["tool_return_message", "db.query.result", "\ud800", "a\x00", "9" * 20, "", None, True, 0, 7.5, 2**70]
KINDS = {
    "langchain": {"run_type": "retriever"},
    "openinference": {"span_kind": "RETRIEVER"},
    "jsonl": {"query": "q"},
    "otel": {"gen_ai.operation.name": "search_memory"},
}


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_stands_in_a_file_is_read_or_refused_in_one_line(tmp_path, name):
    rng = random.Random(name)

    def value(depth):
        kind = rng.random()
        if depth == 0 or kind < 0.35:
            return rng.choice(WORDS)
        if kind < 0.6:
            return [value(depth - 1) for _ in range(rng.randrange(3))]
        return {rng.choice(KEYS): value(depth - 1) for _ in range(rng.randrange(4))}

    read_whole = 0
    for _ in range(250):
        rows = [
            {rng.choice(KEYS): value(4) for _ in range(5)} | KINDS.get(name, {}) for _ in range(rng.randrange(1, 3))
        ]
        log = write(tmp_path / rng.choice(["a.jsonl", "a.json"]), map(json.dumps, rows))
        store = write(tmp_path / "store.json", [json.dumps([value(4)])]) if rng.random() < 0.3 else None
        try:
            read(FORMATS[name], log, memories=store)
            read_whole += 1
        except InputError as error:
            assert "\n" not in str(error)
    assert read_whole > 2


def test_another_package_offers_a_format(tmp_path, monkeypatch):
    mine = Format(
        "mine", "My log.", ("hits",), {"text": "asked", "namespace": "who"}, {"memory_id": "key", "namespace": "whose"}
    )
    entry = SimpleNamespace(name="mine", load=lambda: mine)
    monkeypatch.setattr(importing, "_offered", lambda: {"mine": entry})
    log = write(tmp_path / "log.jsonl", ['{"asked": "q", "who": "a", "hits": [{"key": "m", "whose": "b"}]}'])
    done = CliRunner().invoke(app, ["import", "mine", str(log), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert scoring.label_ranked(load_records(tmp_path / "out"))["scope"].tolist() == [False]
