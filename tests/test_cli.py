"""The command as a user meets it: exit codes, one clear line for bad input, nothing half written, honest JSON."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from companion import cli
from companion.stages import published

OUTCOMES = Path(__file__).parents[1] / "data" / "published" / "exposure_outcomes.csv"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command in this process; return exit code, standard output and standard error."""

    def _run(*arguments):
        monkeypatch.setattr(sys, "argv", ["companion", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out = capsys.readouterr()
        return stop.value.code, out.out, out.err

    return _run


@pytest.fixture
def folder(tmp_path):
    """Four small valid tables; q3 has no anchor, and one label is unresolved."""
    (tmp_path / "memories.csv").write_text('memory_id,namespace\nm1,A\n"m,2",A\nm3,B\nm4,A\n')
    (tmp_path / "queries.csv").write_text("query_id,namespace,source\nq1,A,s\nq2,B,s\nq3,A,t\nq4,A,t\n")
    (tmp_path / "labels.csv").write_text(
        "query_id,memory_id,relevant,scope,policy,lifecycle\n"
        "q1,m1,1,1,1,1\n"
        'q1,"m,2",,true,?,1\n'
        "q2,m3,1,1,1,1\n"
        "q4,m4,TRUE,1,1,1\n"
    )
    routes = {"q1": ["m,2", "m3", "m1"], "q2": ["m3"], "q3": ["m1"], "q4": ["m1", "m4"]}
    rows = [("x", q, i + 1, m) for q, route in routes.items() for i, m in enumerate(route)]
    rows += [("y", q, 1, m) for q, m in [("q1", "m1"), ("q2", "m3"), ("q4", "m4")]]
    pd.DataFrame(rows, columns=["arm", "query_id", "rank", "memory_id"]).to_csv(tmp_path / "rankings.csv", index=False)
    return tmp_path


def tables(folder, **changed):
    names = {name: folder / f"{name}.csv" for name in ("memories", "queries", "labels", "rankings")} | changed
    return [part for name, path in names.items() for part in (f"--{name}", path)]


def test_score_json_has_the_contract_s_keys_and_null_for_undefined(run, folder):
    code, out, _ = run("score", *tables(folder), "--reference", "x", "--replicates", 50, "--json")
    assert code == 0
    result = json.loads(out)
    keys = (
        "arm source queries evaluable evidence_recall feasible_rate loss infeasibility_component prefix_component "
        "lower_bound upper_bound known_rate label_coverage any_violation violation_count wrong_scope "
        "policy_disallowed lifecycle_incompatible candidates_scored"
    )
    assert all(list(row) == keys.split() for row in result["arms"])
    assert [(row["arm"], row["source"]) for row in result["arms"]] == [
        (arm, source) for arm in "xy" for source in ("s", "t", "macro")
    ]
    assert all(list(row) == "arm reference metric estimate low high".split() for row in result["contrasts"])
    assert {row["arm"] for row in result["contrasts"]} == {"y"}
    macro = result["arms"][2]
    # q1 needs three items: unresolved, wrong scope, anchor; q2 one; source t has q4 only: unresolved, anchor.
    assert macro["lower_bound"] == pytest.approx(((1 / 3 + 0) / 2 + 0) / 2)
    assert macro["upper_bound"] == pytest.approx(((2 / 3 + 0) / 2 + 1 / 2) / 2)
    assert macro["candidates_scored"] is None
    assert (macro["queries"], macro["evaluable"]) == (4, 3)
    assert (result["settings"]["seed"], result["settings"]["replicates"]) == (0, 50)


def test_an_undefined_macro_value_says_which_source_made_it_so(run, folder):
    rankings = pd.read_csv(folder / "rankings.csv")
    rankings = rankings[(rankings["arm"] == "x") | (rankings["query_id"] != "q4")]  # y misses all of source t
    rankings.to_csv(folder / "rankings.csv", index=False)
    (folder / "work.csv").write_text("arm,query_id,candidates_scored\ny,q4,\n")
    asked = tables(folder, work=folder / "work.csv")
    _, out, _ = run("score", *asked, "--reference", "x", "--replicates", 50, "--json")
    result = json.loads(out)
    (macro,) = [row for row in result["arms"] if (row["arm"], row["source"]) == ("y", "macro")]
    assert macro["upper_bound"] is None
    said = {(row["arm"], row["reference"], row["metric"]): row for row in result["undefined"]}
    for reference in (None, "x"):  # the arm's own value, and its difference from x
        bound = said["y", reference, "upper_bound"]
        assert (bound["estimate"], bound["undefined_in"], bound["undefined_replicates"]) == (None, ["t"], 50)
        assert ("y", reference, "evidence_recall") not in said
    assert ("x", None, "upper_bound") not in said
    assert said["x", None, "candidates_scored"]["undefined_in"] == ["s", "t"]  # nothing was counted
    _, out, _ = run("score", *asked, "--replicates", 50)
    assert "–: y reaches the target for no query of t: its means over sources are undefined." in out


def test_per_query_file_has_the_contract_s_columns(run, folder):
    out = folder / "per.csv"
    assert run("score", *tables(folder), "--replicates", 10, "--per-query", out)[0] == 0
    table = pd.read_csv(out)
    assert (
        list(table)
        == (
            "arm query_id anchors evidence_recall feasible matched_prefix lower_bound upper_bound known_rate "
            "label_coverage any_violation violation_count wrong_scope policy_disallowed lifecycle_incompatible loss"
        ).split()
    )
    assert len(table) == 7  # y was not asked q3
    assert table[table["query_id"] == "q3"].iloc[:, 3:].isna().all(axis=None)
    shown = run("score", *tables(folder), "--replicates", 10)[1]
    assert "y was not asked 1 of 4 queries, left out of its means." in shown and "x was not" not in shown
    assert "No intervals: fewer than two groups to resample; 10 replicates, fewer than 200, seed 0" in shown


def test_contrasts_of_one_source_are_listed_once_and_formulas_are_inert(run, folder):
    for name in ("queries", "rankings", "labels"):
        text = (folder / f"{name}.csv").read_text().replace("q1,", "=q1,").replace(",t\n", ",s\n")
        (folder / f"{name}.csv").write_text(text)
    out = folder / "per.csv"
    result = json.loads(run("score", *tables(folder), "--reference", "x", "--per-query", out, "--json")[1])
    assert result["contrasts"] and result["source_contrasts"] == []
    assert set(pd.read_csv(out)["query_id"]) == {"'=q1", "q2", "q3", "q4"}
    run("score", *tables(folder), "--per-query", folder / "per.parquet")
    assert "=q1" in set(pd.read_parquet(folder / "per.parquet")["query_id"])


def test_schema_lists_columns_and_prints_json_schema(run):
    code, out, _ = run("schema", "work")
    assert code == 0 and "candidates_scored" in out and "rank" not in out
    told = json.loads(run("schema", "--json")[1])
    assert set(told) >= {"memories", "outcomes"} and told["labels"]["required"] == ["query_id", "memory_id"]
    assert json.loads(run("schema", "labels", "--json")[1]) == told["labels"]
    assert run("schema", "label")[0] == 2


def test_score_prints_a_table_for_people(run, folder):
    code, out, err = run("score", *tables(folder), "--replicates", 10)
    assert (code, err) == (0, "")
    assert "matched recall" in out
    assert "75.0% of queries" in out


def change(folder, name, old, new):
    path = folder / f"{name}.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


BAD = {
    "wrong column": (lambda f: change(f, "labels", "memory_id", "memoryid"), ["labels.csv", "memory_id"]),
    "duplicate id": (lambda f: change(f, "memories", "m4,A", "m1,A"), ["memories.csv", "m1"]),
    "unknown id": (lambda f: change(f, "rankings", "x,q2,1,m3", "x,q2,1,m9"), ["rankings.csv", "m9"]),
    "label maybe": (lambda f: change(f, "labels", "q2,m3,1,1", "q2,m3,1,maybe"), ["labels.csv", "maybe", "scope"]),
    "gap in ranks": (lambda f: change(f, "rankings", "x,q1,3", "x,q1,4"), ["rankings.csv", "q1"]),
    "repeated rank": (lambda f: change(f, "rankings", "x,q1,3", "x,q1,2"), ["rankings.csv", "q1"]),
    "rank in words": (lambda f: change(f, "rankings", "x,q1,3", "x,q1,three"), ["rankings.csv", "three"]),
    "contradiction": (lambda f: change(f, "labels", "q4,m4", "q2,m3,1,0,1,1\nq4,m4"), ["labels.csv", "m3"]),
    "empty file": (lambda f: (f / "queries.csv").write_text(""), ["queries.csv"]),
    "binary file": (lambda f: (f / "queries.csv").write_bytes(b"\xff\xfe\x00q\x9c"), ["queries.csv"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_end_with_one_line_and_nothing_written(run, folder, case):
    spoil, named = BAD[case]
    spoil(folder)
    out = folder / "out" / "per.csv"
    out.parent.mkdir()
    code, stdout, err = run("score", *tables(folder), "--per-query", out, "--json")
    assert code == 2
    assert stdout == ""
    assert err.count("\n") == 1
    assert err.startswith("companion: ")
    assert all(word in err for word in named), err
    assert list(out.parent.iterdir()) == []


def test_nan_score_and_truncated_parquet_are_refused(run, folder):
    rankings = pd.read_csv(folder / "rankings.csv").assign(score=1.0)
    rankings.loc[2, "score"] = float("nan")
    rankings.to_parquet(folder / "r.parquet")
    code, _, err = run("score", *tables(folder, rankings=folder / "r.parquet"))
    assert (code, err.count("\n")) == (2, 1)
    assert "score" in err
    whole = (folder / "r.parquet").read_bytes()
    (folder / "r.parquet").write_bytes(whole[: len(whole) // 2])
    code, _, err = run("score", *tables(folder, rankings=folder / "r.parquet"))
    assert (code, err.count("\n")) == (2, 1)
    assert "r.parquet" in err


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        (["--target-recall", "1.5"], "target recall"),
        (["--top-k", "0"], "top_k"),
        (["--axes", "scope,colour"], "colour"),
        (["--family", "both"], "family"),
        (["--reference", "z"], "reference"),
        (["--replicates", "0"], "replicates"),
        (["--replicates", "many"], "replicates"),
        (["--confidence", "95"], "confidence"),
        (["--infeasibility-cost", "nan"], "infeasibility"),
        (["--nonsense"], "nonsense"),
    ],
)
def test_bad_options_end_with_one_line(run, folder, extra, named):
    code, stdout, err = run("score", *tables(folder), *extra)
    assert (code, stdout, err.count("\n")) == (2, "", 1)
    assert named in err


def test_a_directory_a_missing_file_and_an_unknown_extension_are_refused(run, folder):
    for path in (folder, folder / "missing.csv", folder / "rankings.txt"):
        code, _, err = run("score", *tables(folder, rankings=path))
        assert (code, err.count("\n")) == (2, 1)
        assert str(path) in err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to drop to a user who may not read the file")
def test_no_permission_is_refused(folder):
    secret = folder / "rankings.csv"
    secret.chmod(0)
    code = (
        "import os, sys; os.setgid(65534); os.setuid(65534); sys.argv = ['companion', *sys.argv[1:]]\n"
        "from companion import cli; cli.main()"
    )
    # Everything is imported before privileges are dropped: the environment may be private to root.
    preload = "import companion.cli, companion.scoring, companion.tables, pandas, pyarrow.csv, importlib.metadata\n"
    for parent in [folder, *folder.parents[:3]]:
        parent.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", preload + code, "score", *map(str, tables(folder))], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "rankings.csv" in done.stderr


def test_unwritable_output_leaves_nothing_behind(run, folder):
    (folder / "file").write_text("x")
    code, _, err = run("score", *tables(folder), "--replicates", 10, "--per-query", folder / "file" / "per.csv")
    assert (code, err.count("\n")) == (2, 1)


def test_no_command_and_unknown_command(run):
    assert run("frobnicate")[0] == 2
    assert run()[0] == 2
    assert run("--help")[0] == 0


def test_every_command_has_help_with_an_example(run):
    _, out, _ = run("--help")
    import typer

    names = list(typer.main.get_command(cli.app).commands)
    assert {"corpora", "fetch", "rank", "score", "exposure", "reproduce", "rerun", "book"} <= set(names)
    for name in names:
        code, out, _ = run(name, "--help")
        assert code == 0
        assert "xample" in out, name


def test_exposure_json_equals_every_published_row(run):
    code, out, _ = run("exposure", OUTCOMES, "--json")
    assert code == 0
    ours = {(r["reader"], r["metric"]): r for r in json.loads(out)["effects"]}
    rows = published.figures()
    rows = rows[rows["claim"].isin(["C8", "C12"])]
    assert len(rows) == 18
    for row in rows.itertuples():
        mine = ours[row.subject, row.metric]
        got = [mine["estimate"], mine["low"], mine["high"]]
        assert got == [row.published, row.published_low, row.published_high], (row.subject, row.metric)
    code, out, _ = run("exposure", OUTCOMES, "--stratify", "none", "--json")
    loose = {(r["reader"], r["metric"]): r for r in json.loads(out)["effects"]}
    row = loose["deepseek-v4-pro", "relevant_inadmissible"]
    assert (row["low"], row["high"]) == (0.0, 0.34375)


def test_reproduce_json_lists_every_row_with_the_contract_s_keys(run):
    code, out, _ = run("reproduce", "--json")
    rows = json.loads(out)
    assert code == 0
    assert len(rows) == len(published.figures())
    wanted = (
        "claim stage population subject contrast metric published published_low published_high value low high status "
        "agrees"
    ).split()
    assert all(set(wanted) <= set(row) for row in rows)
    assert all(row["agrees"] for row in rows if row["status"] == "recomputed")


def test_reproduce_keeps_the_statuses_asked_for_and_counts_them(run):
    quick = ("reproduce", "--replicates", 20)
    code, out, _ = run(*quick, "--status", "quoted", "--status", "recomputed", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {row["status"] for row in rows} == {"quoted", "recomputed"}
    _, everything, _ = run(*quick, "--json")
    assert rows == [row for row in json.loads(everything) if row["status"] in {"quoted", "recomputed"}]
    code, _, err = run(*quick, "--status", "guessed")
    wanted = "companion: --status guessed: expected one of recomputed, consistent, replicated, needs-data, quoted\n"
    assert (code, err) == (2, wanted)


def test_reproduce_prints_population_published_interval_and_a_last_line_of_counts(run):
    _, out, _ = run("reproduce", "--stage", "exposure")
    (row,) = [line for line in out.splitlines() if "deepseek-v4-pro" in line and "selectivity_gap" in line]
    published_row = published.figure("C8", "deepseek-v4-pro", "exposed_minus_withheld", "selectivity_gap")
    assert published_row["population"] in row
    assert row.count("0.6562") == 2
    assert row.count(f"[{published_row['published_low']:.4f}, {published_row['published_high']:.4f}]") == 2
    assert out.splitlines()[-1] == "18 published figures: 18 recomputed (18 equal)."
    _, out, _ = run("reproduce", "--replicates", 20, "--stage", "exposure", "--status", "quoted")
    assert out.splitlines()[-1] == "0 published figures."


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_no_command_writes_over_what_it_reads(run, folder):
    (folder / "again.csv").symlink_to(folder / "labels.csv")
    (folder / "hard.csv").hardlink_to(folder / "labels.csv")
    (folder / "inner").mkdir()
    shutil.copy(folder / "labels.csv", folder / "inner" / "own.csv")
    assert run("partition", folder, "--out", folder / "parts")[0] == 0
    before = snapshot(folder)
    outs = [*(folder / f"{name}.csv" for name in ("memories", "queries", "labels", "rankings", "again", "hard"))]
    outs.append(folder / "inner" / ".." / "labels.csv")
    calls = [["score", *tables(folder), "--per-query", out] for out in outs]
    work = folder / "inner" / "own.csv"
    calls += [
        ["score", *tables(folder, work=work), "--per-query", work],
        ["score-parts", folder / "parts", "--per-query", folder / "parts" / "queries.parquet"],
        ["score-parts", folder / "parts", "--per-query", folder / "parts" / "new.csv"],
        ["rank", "demo", "--arm", "global_bm25", "--out", folder / "r.csv", "--work-out", folder / "r.csv"],
        ["expose", "--reader", f"replay:{folder / 'o' / 'requests.jsonl'}", "--out", folder / "o"],
        ["expose", "--reader", "simulated-perfect", "--scenarios", folder / "o" / "run.json", "--out", folder / "o"],
    ]
    for call in calls:
        code, out, err = run(*call)
        assert (code, out, err.count("\n")) == (2, "", 1), call
        assert any(word in err for word in ("would overwrite", "which this command reads", "two outputs")), err
        assert snapshot(folder) == before, call


def test_reruns_comparisons_and_imports_leave_what_they_read(run, tmp_path):
    book = tmp_path / "04-exposure.ipynb"
    book.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    outcomes = tmp_path / "04-exposure.json"
    shutil.copy(OUTCOMES, outcomes)
    old = tmp_path / "old"
    old.mkdir()
    (old / "memories.jsonl").write_text('{"memory_id": "d1", "namespace": "n"}\n')
    (tmp_path / "run.txt").write_text("q1 Q0 d1 1 0.5 a\n")
    before = snapshot(tmp_path)
    trec = ["import", "trec", tmp_path / "run.txt", "--memories", old / "memories.jsonl", "--out", old]
    for call in (
        ["rerun", book, "--out", tmp_path],
        ["rerun", "04", "-p", "outcomes", outcomes, "--out", tmp_path],
        ["runs", tmp_path, "--html", outcomes],
        [*trec, "--replace"],
    ):
        code, out, err = run(*call)
        assert (code, out, err.count("\n")) == (2, "", 1), (call, err)
        assert "would overwrite an input" in err
        assert snapshot(tmp_path) == before, call


def test_corpora_are_never_written_into(run, tmp_path, monkeypatch):
    from companion.corpora import base

    spec = base.get("demo")
    home = tmp_path / "demo"
    shutil.copytree(spec.where(), home)  # a copy, for a test that fails would write into it
    monkeypatch.setitem(base._REGISTRY, "demo", replace(spec, root=lambda: home))
    before = snapshot(home)
    for call in (
        ["rank", "demo", "--arm", "global_bm25", "--out", home / "memories.csv"],
        ["rank", "demo", "--arm", "global_bm25", "--out", tmp_path / "r.csv", "--work-out", home / "queries.csv"],
        ["rank", "demo", "--arm", "global_bm25", "--freeze", home],
        ["candidates", "demo", "--out", home / "labels.csv"],
        ["corrupt", "demo", "--channel", "policy_false_deny", "--seeds", 1, "--keep", home],
    ):
        code, _, err = run(*call)
        assert (code, err.count("\n")) == (2, 1), call
        assert "which this command reads" in err
    assert snapshot(home) == before
    assert not (tmp_path / "r.csv").exists()


def test_a_closed_pipe_prints_nothing():
    command = [sys.executable, "-m", "companion", "reproduce", "--stage", "exposure", "--replicates", "20", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    process.wait(60)
    assert process.stderr.read() == b""


def test_rankings_without_rows_are_named_as_the_cause(run, folder):
    (folder / "rankings.csv").write_text("arm,query_id,rank,memory_id\n")
    code, _, err = run("score", *tables(folder))
    assert (code, err.count("\n")) == (2, 1)
    assert "rankings: no rows" in err


def test_rerun_refuses_an_output_folder_that_cannot_be_made(run, folder):
    (folder / "file").write_text("x")
    code, _, err = run("rerun", "04", "--out", folder / "file" / "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot be made" in err
