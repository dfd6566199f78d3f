"""``companion rank`` and ``companion corpora`` as a person runs them."""

from __future__ import annotations

import ast
import json
import re
import shlex
from itertools import pairwise

import pandas as pd
import pytest
import typer
from reference_retrieval import TableEncoder
from typer.testing import CliRunner

from companion import retrieval
from companion.cli import corpora as corpora_command
from companion.cli import rank as rank_command
from companion.corpora import get
from companion.errors import InputError
from companion.paths import project_root
from companion.retrieval import encoders
from companion.tables import read_table

demo = pytest.mark.skipif("demo" not in __import__("companion.corpora").corpora.known(), reason="no demo corpus")


@pytest.fixture
def run(monkeypatch):
    """Run a command with made-up vectors, so that no model is loaded."""
    app = typer.Typer()
    rank_command.register(app)
    corpora_command.register(app)

    table = TableEncoder()

    class Quick(retrieval.Encoder):
        def encode(self, texts, kind="document", **_options):
            return table.encode(texts)

    monkeypatch.setattr(encoders, "Encoder", Quick)

    def call(*words):
        result = CliRunner().invoke(app, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@demo
@pytest.mark.parametrize("extension", ["parquet", "csv", "jsonl"])
def test_rank_writes_the_contract_tables(run, tmp_path, extension):
    out, work = tmp_path / f"rankings.{extension}", tmp_path / f"work.{extension}"
    result = run("rank", "demo", "--arm", "global_dense", "--arm", "policy_only", "--top-k", "5",
                 "--out", str(out), "--work-out", str(work), "--json")  # fmt: skip
    assert result.exit_code == 0
    rows = {row["arm"]: row for row in json.loads(result.stdout)}
    assert list(rows) == ["global_dense", "policy_only"]
    assert rows["global_dense"]["fell_back_rate"] is None
    rankings = read_table(out, "rankings")
    assert set(rankings["arm"]) == {"global_dense", "policy_only"}
    assert rankings["rank"].max() == 5
    scored = read_table(work, "work").groupby("arm")["candidates_scored"].mean()
    assert scored["policy_only"] == pytest.approx(rows["policy_only"]["mean_candidates_scored"])


@demo
def test_freezing_from_the_command_records_the_command(run, tmp_path):
    run("rank", "demo", "--arm", "cluster_router", "--top-k", "5", "--freeze", str(tmp_path / "mine"))
    meta = json.loads((tmp_path / "mine" / "meta.json").read_text())
    assert meta["command"].startswith("companion rank demo --arm cluster_router --top-k 5")
    assert meta["command"].endswith("--encoder minilm --split evaluation --freeze data/frozen/mine")
    assert meta["arms"]["cluster_router"]["params"]["groups"] == 1
    assert str(tmp_path) not in json.dumps(meta)


@demo
def test_the_recorded_command_has_every_setting_that_decides_a_vector(run, tmp_path):
    chosen = ["--query-prompt", "ask: ", "--document-prompt", "", "--max-length", "99", "--dtype", "bfloat16",
              "--revision", "abc"]  # fmt: skip
    folder = tmp_path / "other"
    run("rank", "demo", "--arm", "namespace_dense", *chosen, "--batch-size", "8", "--freeze", str(folder))
    meta = json.loads((folder / "meta.json").read_text())
    words = shlex.split(meta["command"])
    start = words.index("--query-prompt")
    assert words[start : start + len(chosen)] == chosen
    assert words[-2:] == ["--freeze", "data/frozen/other"]
    assert "--batch-size" not in words
    assert meta["encoder"]["max_length"] == 99


def test_the_documented_run_of_the_paper_s_encoder_has_every_arm_the_chapter_shows():
    page = (project_root() / "book" / "how-to-rerun.md").read_text(encoding="utf-8")
    command = re.search(r"companion rank rhelm[^`]*?--encoder Qwen/\S+[^`]*?\n(?=companion)", page)[0]
    words = shlex.split(command.replace("\\\n", " "))
    ranked = {value for word, value in pairwise(words) if word == "--arm"}
    chapter = (project_root() / "notebooks" / "02-support.md").read_text(encoding="utf-8")
    shown = ast.literal_eval(re.search(r"^arms = (.*)$", chapter, re.M)[1])
    assert set(shown) <= ranked
    assert int(words[words.index("--top-k") + 1]) >= max(
        ast.literal_eval(re.search(r"^depths = (.*)$", chapter, re.M)[1])
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "--arm", "all", "--out", "x.csv"], "unknown corpus 'nowhere'"),
        (["rhelm", "--arm", "all"], "nothing to write"),
        (["rhelm", "--arm", "all", "--out", "x.txt"], "x.txt"),
        (["demo", "--arm", "all", "--freeze", "x", "--freeze-depth", "0"], "freeze_depth is 0; expected at least 1"),
        (["demo", "--arm", "all", "--out", "x.csv", "--max-length", "0"], "max_length is 0; expected at least 1"),
        (["demo", "--arm", "all", "--out", "x.csv", "--batch-size", "-1"], "batch_size is -1; expected at least 1"),
    ],
)
def test_bad_requests_say_what_is_wrong(run, words, message):
    with pytest.raises(InputError, match=message):
        run("rank", *words)


def test_arms_are_listed_with_their_parameters(run):
    rows = json.loads(run("rank", "rhelm", "--list-arms", "--json").stdout)
    by_name = {row["arm"]: row for row in rows}
    assert by_name["global_bm25"]["parameters"] == "k1=1.5, b=0.75"
    assert by_name["size_matched_random_partition"]["seeds"] == 10


def test_corpora_lists_what_is_known_and_survives_an_unreadable_one(run, monkeypatch, tmp_path):
    monkeypatch.setenv("COMPANION_CORPORA", str(tmp_path))
    rows = {row["name"]: row for row in json.loads(run("corpora", "--json").stdout)}
    assert rows["rhelm"]["present"] is False
    assert rows["rhelm"]["where"] == str(tmp_path / "rhelm")
    assert rows["rhelm"]["licence"] == "MIT"
    assert rows["rhelm"]["memories"] is None
    broken = get("rhelm")
    monkeypatch.setattr(type(broken), "is_present", lambda self: True)
    rows = {row["name"]: row for row in json.loads(run("corpora", "--json").stdout)}
    assert rows["rhelm"]["state"].startswith("unreadable: ")
    assert "companion fetch" in run("corpora").stdout


def test_route_table_counts_a_route_without_hits():
    work = pd.DataFrame(
        {
            "arm": ["a", "a", "b"], "query_id": ["q", "r", "q"], "candidates_scored": [0, 2, 0],
            "passed_unresolved": pd.array([None, None, 3], dtype="Int64"),
            "fell_back": pd.array([True, False, None], dtype="boolean"),
        }
    )  # fmt: skip
    rankings = pd.DataFrame({"arm": ["a", "a"], "query_id": ["r", "r"]})
    table = rank_command._route_table(rankings, work).set_index("arm")
    assert table["mean_ranked"].tolist() == [1, 0]
    assert table["fell_back_rate"].tolist()[0] == 0.5
    assert table["mean_passed_unresolved"].tolist()[1] == 3
