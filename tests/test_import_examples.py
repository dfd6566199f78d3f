"""Every importer: one small file of ours in its public shape, from the file to the right first finding."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from companion.cli import app
from companion.importers import FORMATS, read, store_is_from_log
from companion.paths import project_root

IMPORTS = project_root() / "data" / "imports"
HOLDS = "scope,policy,lifecycle"
CASES = [
    # command, files, what the audit finds: kind, instances, the memories
    ("jsonl", "jsonl-log.jsonl", "superseded", {"m1"}),
    ("mem0", "mem0-searches.jsonl --memories mem0-store.json", "wrong_scope", {"b1"}),
    ("mem0", "mem0-searches.jsonl --memories mem0-store.json", "ghosts", {"b9"}),
    ("langchain", "langchain-runs.jsonl", "wrong_scope", {"b1"}),
    ("llamaindex", "llamaindex-events.jsonl", "wrong_scope", {"b1"}),
    ("zep", "zep-edges.jsonl", "expired", {"e1"}),
    ("letta", "letta-messages.json --memories letta-passages.json", "wrong_scope", {"passage-2"}),
    ("openinference", "openinference-spans.jsonl --mapping openinference-mapping.yaml", "policy", {"m5"}),
    ("openinference", "phoenix-spans.csv", "wrong_scope", {"b1"}),
    ("otel", "otel-traces.json", "wrong_scope", {"b1"}),
    ("otel", "traceloop-spans.json", "wrong_scope", {"b1"}),
    ("beir", "beir-run.json --memories beir-corpus.jsonl", "ghosts", {"doc-z"}),
    ("msmarco", "msmarco-run.tsv --memories msmarco-collection.tsv", "ghosts", {"doc-b"}),
]


def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.stdout


def imported(command, files, out):
    words = [word if word.startswith("--") else IMPORTS / word for word in files.split()]
    return json.loads(run("import", command, *words, "--out", out, "--json"))


def audited(folder):
    return json.loads(run("audit", folder, "--out", f"{folder}.html", "--replicates", "20", "--json"))


@pytest.mark.parametrize(("command", "files", "kind", "memories"), CASES)
def test_from_a_file_to_the_first_finding(tmp_path, command, files, kind, memories):
    out = tmp_path / "records"
    told = imported(command, files, out)
    given = "--memories" in files
    assert store_is_from_log(out) is not given and told["store"] == ("given" if given else "log")
    checks = {check["kind"]: check for check in audited(out)["checks"]}
    assert checks[kind]["outcome"] == "found"
    assert {row["memory_id"] for row in checks[kind]["evidence"]} == memories
    if not given:  # nothing can be missing from a store that the log made
        assert checks["ghosts"]["outcome"] == "unknown"


def test_from_a_trec_run_to_bounds(tmp_path):
    words = [IMPORTS / "trec-run.txt", "--qrels", IMPORTS / "trec-qrels.txt", "--holds", HOLDS]
    run("import", "trec", *words, "--out", tmp_path / "records")
    (arm,) = (row for row in audited(tmp_path / "records")["arms"] if row["source"] == "all")
    # Query 301 finds doc-b behind one document that nobody judged; 303 has an empty route.
    assert (arm["lower_bound"], arm["upper_bound"]) == (0, 0.5)
    assert arm["evidence_recall"] == 0.5 and arm["feasible_rate"] == 0.5


@pytest.mark.parametrize(("command", "files"), list(dict.fromkeys(case[:2] for case in CASES if case[0] in FORMATS)))
@pytest.mark.parametrize("dress", ["gz", "utf-16"])
def test_files_packed_or_in_utf_16_give_the_same_tables(tmp_path, command, files, dress):
    import gzip

    name = files.split()[0]
    plain = IMPORTS / name
    other = tmp_path / (f"{name}.gz" if dress == "gz" else name)
    other.write_bytes(gzip.compress(plain.read_bytes()) if dress == "gz" else plain.read_text("utf-8").encode("utf-16"))
    one, two = (read(FORMATS[command], path).records for path in (plain, other))
    for (name, table, _), (_, again, _) in zip(one.tables(), two.tables(), strict=True):
        assert table.equals(again), name


def test_what_was_read_is_not_listed_as_unused(tmp_path):
    for command, files, *_ in CASES:
        if command in FORMATS:
            unused = read(FORMATS[command], IMPORTS / files.split()[0]).lists.get("unused_fields", {})
            read_from = {
                "filters.user_id",
                "filters.AND",
                "group_ids",
                "startTimeUnixNano",
                "outputs",
                "query",
                "user_id",
            }
            assert not read_from & set(unused), (command, unused)
