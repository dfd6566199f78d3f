"""companion validate: everything wrong at once, row by row, also in files that cannot be parsed."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from companion.audit import take_in
from companion.cli import app
from companion.errors import InputError
from companion.paths import data_dir
from companion.tables import (
    Origin,
    examine_folder,
    find_problems,
    listing,
    load_records,
    validate,
    write_table,
)


def good(folder, rows=30):
    ids = [f"m{n}" for n in range(rows)]
    tables = {
        "memories": pd.DataFrame({"memory_id": ids, "namespace": "n", "state": "current"}),
        "queries": pd.DataFrame({"query_id": ["q1", "q2"], "namespace": "n", "intent": "current"}),
        "labels": pd.DataFrame({"query_id": "q1", "memory_id": ids, "relevant": "1", "policy": "?"}),
        "rankings": pd.DataFrame(
            {"arm": "a", "query_id": "q1", "rank": range(1, rows + 1), "memory_id": ids, "score": 1.0}
        ),
    }
    for name, table in tables.items():
        write_table(table, folder / f"{name}.csv")
    return folder


def run(*arguments):
    done = CliRunner().invoke(app, ["validate", *map(str, arguments)])
    return done


def faults(folder, **kwargs):
    return listing(examine_folder(folder, **kwargs).problems)


def test_good_records_have_no_fault(tmp_path):
    assert faults(good(tmp_path)).empty
    done = run(tmp_path)
    assert done.exit_code == 0 and "Nothing is wrong" in done.stdout


def test_a_thousand_malformed_rows_are_all_listed(tmp_path):
    good(tmp_path, 1200)
    table = pd.read_csv(tmp_path / "memories.csv", dtype=str)
    table.loc[100:1099, "state"] = [f"gone-{n}" for n in range(1000)]
    table.to_csv(tmp_path / "memories.csv", index=False)
    found = faults(tmp_path)
    assert len(found) == 1000
    assert found["row"].tolist() == list(range(101, 1101)) and found["line"].tolist() == list(range(102, 1102))
    assert found["what"].str.contains("'gone-7'", regex=False).sum() == 1 and found["fix"].str.len().min() > 10
    done = run(tmp_path)
    assert isinstance(done.exception, InputError) and "1,000 faults" in str(done.exception)
    assert all(f"'gone-{n}'" in done.stdout for n in range(1000))
    told = json.loads(CliRunner().invoke(app, ["validate", str(tmp_path), "--json"]).stdout)
    assert told["errors"] == 1000 and len(told["faults"]) == 1000


def test_the_audit_lists_them_too_and_exits_with_2(tmp_path, monkeypatch, capsys):
    good(tmp_path, 1001)
    table = pd.read_csv(tmp_path / "labels.csv", dtype=str)
    table["policy"] = [f"maybe {n}" for n in range(1001)]
    table.to_csv(tmp_path / "labels.csv", index=False)
    monkeypatch.setattr("sys.argv", ["companion", "audit", str(tmp_path), "--out", str(tmp_path / "r.html")])
    from companion.cli import main

    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.err.count("\n") == 1 and "1,001 faults in labels" in said.err
    assert all(f"'maybe {n}'" in said.out for n in range(1001))
    assert not (tmp_path / "r.html").exists()


def test_lines_that_cannot_be_parsed_are_listed_and_the_others_still_examined(tmp_path):
    good(tmp_path)
    rows = [{"memory_id": f"m{n}", "namespace": "n", "state": "current"} for n in range(30)]
    lines = [json.dumps(row).encode() for row in rows]
    lines[3] = b"{broken"
    lines[7] = b'{"memory_id": "\xff"}'
    lines[9] = b'{"memory_id": "m9", "memory_id": "m10"}'
    lines[11] = b"[1]"
    lines[12] = b'{"memory_id": NaN}'
    lines[20] = json.dumps({**rows[20], "state": "odd"}).encode()
    (tmp_path / "memories.csv").unlink()
    (tmp_path / "memories.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    found = faults(tmp_path, required=("memories",))
    own = found[found["table"] == "memories"]
    assert own["line"].tolist() == [8, 4, 10, 12, 13, 21] or sorted(own["line"]) == [4, 8, 10, 12, 13, 21]
    assert own.loc[own["line"] == 21, "what"].item().startswith("'odd' is not a known state")
    assert "not UTF-8" in own.loc[own["line"] == 8, "what"].item()


def test_csv_rows_of_another_width_are_listed(tmp_path):
    good(tmp_path)
    lines = (tmp_path / "queries.csv").read_text().splitlines()
    (tmp_path / "queries.csv").write_text(
        "\n".join([*lines, "q3,n", 'q4,"two\nlines",current', "q5,n,current,extra", "q6,n,odd"]) + "\n"
    )
    found = faults(tmp_path)
    assert found[["line", "what"]].to_numpy().tolist() == [
        [4, "the row has 2 fields"],
        [7, "the row has 4 fields"],
        [8, "'odd' is not a known intent"],
    ]


def test_an_open_quote_is_located(tmp_path):
    good(tmp_path)
    (tmp_path / "queries.csv").write_text('query_id,namespace\nq1,n\nq2,"n\nq3,n\n')
    found = faults(tmp_path)
    line = found[found["what"].str.contains("cannot be read")]
    assert line["line"].tolist() == [3] and "close the quote" in line["fix"].item()


def test_everything_is_said_at_once(tmp_path):
    good(tmp_path)
    rankings = pd.read_csv(tmp_path / "rankings.csv", dtype=str)
    rankings.loc[2, "score"] = "high"
    rankings.loc[4, "memory_id"] = "nobody"
    rankings.loc[6, "memory_id"] = "m5"
    rankings.loc[8, "query_id"] = ""
    rankings.to_csv(tmp_path / "rankings.csv", index=False)
    queries = pd.read_csv(tmp_path / "queries.csv", dtype=str)
    queries["intent"] = ["now", "later"]
    queries.to_csv(tmp_path / "queries.csv", index=False)
    (tmp_path / "label.csv").write_text("x\n1\n")
    found = faults(tmp_path)
    said = {(row.table, row.row, row.column) for row in found.itertuples()}
    expected = {
        ("queries", 1, "intent"),
        ("queries", 2, "intent"),
        ("rankings", 3, "score"),
        ("rankings", 5, "memory_id"),
        ("rankings", 7, "memory_id"),
        ("rankings", 9, "query_id"),
    }
    assert expected <= said
    assert ((found["table"] == "rankings") & (found["row"] == 3) & (found["column"] == "score")).sum() == 1
    assert (found["fix"].str.len() > 0).all() and set(found["level"]) <= {"error", "warning"}


def test_missing_tables_and_columns(tmp_path):
    good(tmp_path)
    (tmp_path / "labels.csv").rename(tmp_path / "lables.csv")
    pd.DataFrame({"query": ["q1"], "namespace": ["n"]}).to_csv(tmp_path / "queries.csv", index=False)
    (tmp_path / "memories.jsonl").write_text("\n")
    found = faults(tmp_path)
    text = " | ".join(found["what"] + " -> " + found["fix"])
    assert "table labels is missing" in text
    assert "its name looks like labels" in text
    assert "the column is missing" in text
    assert "memories.csv and memories.jsonl are both there" in text or "are both there" in text
    with pytest.raises(InputError, match="does not exist"):
        examine_folder(tmp_path / "absent")


def test_agrees_with_what_loading_refuses(tmp_path):
    """Whatever load_records refuses has a fault here, and the other way round."""
    rng = np.random.default_rng(0)
    refused = 0
    for trial in range(24):
        folder = tmp_path / str(trial)
        good(folder)
        if trial % 6:
            name = rng.choice(["memories", "queries", "labels", "rankings"])
            table = pd.read_csv(folder / f"{name}.csv", dtype=str)
            row, column = int(rng.integers(len(table))), str(rng.choice(table.columns))
            table.loc[row, column] = rng.choice(["", "m1", "q1", "7", "-1", "1", "odd", "inf", "?"])
            table.to_csv(folder / f"{name}.csv", index=False)
        errors = examine_folder(folder).errors
        try:
            load_records(folder)
        except InputError as error:
            refused += 1
            assert errors, str(error)
            assert any(fault.where in str(error) for fault in errors), (str(error), errors)
        else:
            assert not errors
    assert refused > 5


def test_many_faults_in_a_large_table_stay_quick(tmp_path):
    good(tmp_path, 20_000)
    table = pd.read_csv(tmp_path / "rankings.csv", dtype=str)
    table.loc[10_000:, "memory_id"] = table.loc[:9_999, "memory_id"].to_numpy()
    table.to_csv(tmp_path / "rankings.csv", index=False)
    found = faults(tmp_path)
    assert len(found) == 10_000 and found["line"].iloc[-1] == 20_001


def test_terminal_escapes_in_a_value_are_shown_not_obeyed(tmp_path):
    good(tmp_path)
    table = pd.read_csv(tmp_path / "memories.csv", dtype=str)
    table.loc[0, "state"] = "\x1b[2J"
    table.to_csv(tmp_path / "memories.csv", index=False)
    assert "\x1b" not in run(tmp_path).stdout and "\\x1b[2J" in run(tmp_path).stdout


def test_a_folder_in_the_place_of_a_table_is_a_fault_not_an_absence(tmp_path):
    for name in ("memories", "queries", "rankings"):
        shutil.copy(next((data_dir() / "example").glob(f"{name}.*")), tmp_path)
    (tmp_path / "labels.csv").mkdir()
    faults = examine_folder(tmp_path, required=("memories", "queries")).problems
    assert any("labels.csv" in str(fault) for fault in faults)


def test_a_thousand_lines_of_every_kind_of_fault_are_each_listed_with_their_place(tmp_path):
    good(tmp_path)
    (tmp_path / "labels.csv").unlink()
    (tmp_path / "rankings.csv").unlink()
    bad = [
        b"{broken",
        b"[1]",
        b"\xff",
        b'{"query_id":"q1","memory_id":"m1","policy":"maybe"}',
        b'{"query_id":"none","memory_id":"m1"}',
        b'{"query_id":"q1","memory_id":"a\\u0000b"}',
        b'{"query_id":"q1"}',
        b'{"query_id":"q1","memory_id":["x"]}',
        b'{"query_id":"q1","memory_id":"m1","policy":NaN}',
        b'{"query_id":"q1","query_id":"q1"}',
    ]
    (tmp_path / "labels.jsonl").write_bytes(b"".join(bad[n % 10] + b"\n" for n in range(1000)))
    for command in (["validate"], ["audit", "--out", str(tmp_path / "r.html")]):
        done = CliRunner().invoke(app, [command[0], str(tmp_path), *command[1:]])
        assert isinstance(done.exception, InputError)
        at = {int(number) for number in re.findall(r"^  (?:row \d+ \(|)line (\d+)", done.stdout, flags=re.M)}
        assert at == set(range(1, 1001)), command
        assert not (tmp_path / "r.html").exists()


def test_a_row_that_cannot_be_read_makes_no_faults_of_rows_that_name_it(tmp_path):
    good(tmp_path)
    path = tmp_path / "memories.csv"
    for broken in (path.read_bytes().replace(b"m3,", b"\xff,"), path.read_bytes().replace(b"m3,", b"\x01,")):
        path.write_bytes(broken)
        found = faults(tmp_path)
        assert found[["table", "level"]].to_numpy().tolist() == [
            ["memories", "error"],
            ["labels", "warning"],
            ["rankings", "warning"],
        ]
        assert found["what"].tolist()[1] == "1 id is not among those of memories.csv that could be read"
        path.write_bytes(good(tmp_path).joinpath("memories.csv").read_bytes())
    path.write_text(path.read_text().replace("m0,n", 'm0,"n', 1))  # nothing after the quote can be read
    found = faults(tmp_path)
    assert found.loc[found["level"] == "error", "what"].str.contains("nothing after it was examined").tolist() == [True]


def test_a_file_of_blank_lines_is_refused_as_reading_refuses_it(tmp_path):
    good(tmp_path)
    (tmp_path / "labels.csv").write_bytes(b"\n\n")
    assert faults(tmp_path)["what"].tolist() == ["the file is empty"]


def test_a_parquet_column_that_is_there_twice_is_named(tmp_path):
    good(tmp_path)
    (tmp_path / "labels.csv").unlink()
    columns = [pa.array(["q1"]), pa.array(["m0"]), pa.array(["m0"])]
    pq.write_table(pa.Table.from_arrays(columns, ["query_id", "memory_id", "memory_id"]), tmp_path / "labels.parquet")
    assert faults(tmp_path)["what"].tolist() == ["column 'memory_id' appears more than once"]
    with pytest.raises(InputError, match=r"labels.parquet, column memory_id: .*appears more than once"):
        load_records(tmp_path)


# --- one verdict in all commands -----------------------------------------------------------------------------------


def verdicts(folder):
    """Return the exit state of validate, score and audit on one folder, and what each said."""
    files = {name: next(folder.glob(f"{name}.*")) for name in ("memories", "queries", "labels", "rankings")}
    score = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    out = folder.parent / "out" / "report.html"
    runner = CliRunner()
    done = {
        "validate": runner.invoke(app, ["validate", str(folder)]),
        "score": runner.invoke(app, ["score", *score, "--replicates", "20"]),
        "audit": runner.invoke(app, ["audit", str(folder), "--out", str(out), "--replicates", "20"]),
    }
    return {
        name: (isinstance(result.exception, InputError), f"{result.stdout}{result.exception}")
        for name, result in done.items()
    }


def whole(folder):
    """Write records that can be scored."""
    good(folder, 6)
    labels = pd.DataFrame({"query_id": "q1", "memory_id": ["m1", "m2"], "relevant": 1, "policy": 1, "lifecycle": 1})
    write_table(labels, folder / "labels.csv")
    return folder


def test_good_records_have_a_good_verdict_everywhere(tmp_path):
    said = verdicts(whole(tmp_path / "r"))
    assert [refused for refused, _ in said.values()] == [False, False, False]
    assert "Nothing is wrong. These records can be scored." in said["validate"][1]


@pytest.mark.parametrize("table", ["memories", "queries", "rankings"])
def test_a_table_without_rows_cannot_be_scored(tmp_path, table):
    folder = whole(tmp_path / "r")
    path = folder / f"{table}.csv"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    said = verdicts(folder)
    assert said["validate"][0] and said["score"][0]
    assert f"{table}.csv: 1 error\n  the table has no rows; expected at least one row\n" in said["validate"][1]
    # An audit can say something without rankings, but not without a store or questions.
    assert said["audit"][0] is (table != "rankings")
    if table == "rankings":
        assert "cannot be computed" in said["audit"][1]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("character", ["\x00", "\x1b", "\x0b", "\x7f", "\x85"])
def test_a_control_character_in_a_name_is_refused_with_row_and_column(tmp_path, suffix, character):
    folder = whole(tmp_path / "r")
    memories = pd.read_csv(folder / "memories.csv", dtype=str).assign(text=f"prose may{character}hold it")
    memories.loc[4, "namespace"] = f"n{character}x"
    (folder / "memories.csv").unlink()
    write_table(memories, folder / f"memories.{suffix}")
    said = verdicts(folder)
    for name, (refused, words) in said.items():
        assert refused, name
        assert "row 5" in words and "column namespace" in words, (name, words)
        assert "holds a control character" in words and repr(character)[1:-1] in words
        assert character not in words


def test_an_accent_or_an_invisible_letter_is_no_control_character(tmp_path):
    folder = whole(tmp_path / "r")
    memories = pd.read_csv(folder / "memories.csv", dtype=str)
    memories["namespace"] = (
        "Â\u00a0é\u2028\u202eß\t\n"  # among them the byte C2, with which some control characters begin
    )
    queries = pd.read_csv(folder / "queries.csv", dtype=str).assign(namespace=memories["namespace"][0])
    write_table(memories, folder / "memories.csv")
    write_table(queries, folder / "queries.csv")
    assert [refused for refused, _ in verdicts(folder).values()] == [False, False, False]


def test_a_contradictory_label_is_one_fault_with_one_fix(tmp_path):
    folder = whole(tmp_path / "r")
    labels = pd.DataFrame(
        {"query_id": "q1", "memory_id": ["m1", "m2", "m1", "m3", "m3"], "policy": [1, 1, 0, 1, 1], "relevant": 1}
    )
    write_table(labels, folder / "labels.csv")
    found = faults(folder)
    assert found[["row", "what"]].to_numpy().tolist() == [
        [3, "the label of query_id 'q1', memory_id 'm1' contradicts itself: policy = 0 here and 1 in row 1"],
        [5, "the label of query_id 'q1', memory_id 'm3' is listed twice, first in row 4"],
    ]
    assert found["fix"].tolist() == [
        "decide which value holds, or leave the axis unresolved in every row of the pair",
        "remove the repeated row",
    ]
    assert "2 faults in labels" in verdicts(folder)["validate"][1]


def test_scores_that_contradict_the_ranks_draw_a_warning_and_stop_nothing(tmp_path):
    folder = whole(tmp_path / "r")
    rankings = pd.DataFrame(
        {
            "arm": ["a"] * 5 + ["b"] * 3 + ["far"] * 4 + ["flat"] * 2,
            "query_id": ["q1"] * 3 + ["q2"] * 2 + ["q1"] * 3 + ["q1", "q1", "q2", "q2"] + ["q1"] * 2,
            "rank": [3, 1, 2, 1, 2, 1, 2, 3, 1, 2, 1, 2, 1, 2],
            "memory_id": ["m1", "m2", "m3", "m1", "m2", "m1", "m2", "m3", "m1", "m2", "m3", "m4", "m1", "m2"],
            # a: sorted wrongly in both routes; b: right; far: distances; flat: ties.
            "score": [0.95, 0.99, 0.9, 0.2, 0.4, 3, 2, 1, 0.1, 0.2, 0.3, 0.4, 1, 1],
        }
    )
    write_table(rankings, folder / "rankings.csv")
    found = faults(folder)
    assert found["level"].tolist() == ["warning"] * 3
    assert found[["row", "column", "what"]].to_numpy().tolist() == [
        [1, "score", "in the route of arm 'a', query_id 'q1', rank 2 has score 0.9 and rank 3 has 0.95"],
        [5, "score", "in the route of arm 'a', query_id 'q2', rank 1 has score 0.2 and rank 2 has 0.4"],
        [10, "score", "in every route of arm 'far' scores rise with the rank: rank 1 has score 0.1 and rank 2 has 0.2"],
    ]
    said = verdicts(folder)
    assert [refused for refused, _ in said.values()] == [False, False, False]
    assert "These records can be scored." in said["validate"][1]
    assert "Nothing is wrong" not in said["validate"][1]
    assert "3 oddities in the tables" in said["audit"][1]


def test_many_contradictions_in_a_route_are_named_once():
    n = 20_000
    rankings = pd.DataFrame(
        {"arm": "a", "query_id": np.repeat(["q1", "q2"], n), "rank": [*range(1, n + 1)] * 2, "memory_id": "m1"}
    ).assign(memory_id=lambda t: "m" + t["rank"].astype(str), score=lambda t: -(t["rank"] % 2))
    found = listing(find_problems(rankings, "rankings", Origin("r")))
    assert found["row"].tolist() == [2, n + 2]
    assert found["what"].str.contains("rank 1 has score -1 and rank 2 has 0").all()
    assert find_problems(rankings, "rankings")[0].level == "warning"
    assert len(validate(rankings, "rankings")) == 2 * n


def test_what_scoring_would_still_need_is_said(tmp_path):
    folder = whole(tmp_path / "r")
    (folder / "rankings.csv").unlink()
    assert "Nothing is wrong. To be scored, these records need a table rankings." in run(folder).stdout
    assert json.loads(run(folder, "--json").stdout)["scoring_needs"] == "a table rankings"
    folder = good(tmp_path / "s", 6)  # policy is unresolved for every label
    said = verdicts(folder)
    assert [refused for refused, _ in said.values()] == [False, True, False]
    assert "To be scored, these records need a query with an anchor" in said["validate"][1]
    assert "no query has an anchor" in said["score"][1]


@pytest.mark.parametrize(
    ("absent", "needs"),
    [
        (["labels"], "a table labels"),
        (["rankings"], "a table rankings"),
        (["labels", "rankings"], "a table labels and a table rankings"),
    ],
)
def test_a_table_that_is_not_there_yet_is_no_fault(tmp_path, absent, needs):
    folder = whole(tmp_path / "r")
    for name in absent:
        (folder / f"{name}.csv").unlink()
    done = run(folder)
    assert done.exit_code == 0 and done.exception is None
    assert done.stdout.splitlines()[-1] == f"Nothing is wrong. To be scored, these records need {needs}."
    told = json.loads(run(folder, "--json").stdout)
    assert told["scoring_needs"] == needs and told["errors"] == 0
    # What an audit needs too stays a fault, and so does a bad row beside an absent table.
    queries = (folder / "queries.csv").read_text()
    (folder / "queries.csv").write_text(queries.replace("current", "now", 1))
    assert "1 fault in queries" in str(run(folder).exception)
    (folder / "queries.csv").unlink()
    done = run(folder)
    assert isinstance(done.exception, InputError) and "table queries is missing" in done.stdout


# --- a scope column that is stated for a few rows ------------------------------------------------------------------


def sparse(folder, scope, suffix="csv"):
    """Write records whose labels state scope as given; m0 and m1 belong to nobody."""
    good(folder, 10)
    memories = pd.DataFrame({"memory_id": [f"m{n}" for n in range(10)], "namespace": ["", "", *["n"] * 8]})
    labels = pd.DataFrame({"query_id": "q1", "memory_id": memories["memory_id"], "relevant": 1})
    labels["scope"] = pd.array(scope, dtype="Int64")
    write_table(memories, folder / "memories.csv")
    (folder / "labels.csv").unlink()
    write_table(labels, folder / f"labels.{suffix}")
    return folder


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_one_stated_scope_draws_a_warning_about_the_cells_left_empty(tmp_path, suffix):
    folder = sparse(tmp_path / "r", [1, *[None] * 9], suffix)
    found = faults(folder)
    # m0 is stated and m1 belongs to nobody: the namespaces would settle the other eight.
    assert found[["level", "table", "row", "column"]].to_numpy().tolist() == [["warning", "labels", 3, "scope"]]
    assert found["what"].item() == (
        "8 of 10 rows leave scope empty although both namespaces are known and would settle it "
        "(rows 3, 4, 5, 6, 7 and 3 more); an empty cell is unresolved"
    )
    assert found["fix"].item().startswith("state scope in these rows") and "drop the column" in found["fix"].item()
    done = run(folder)
    assert done.exit_code == 0 and "8 of 10 rows leave scope empty" in done.stdout
    out = ["--out", str(tmp_path / "r.html"), "--replicates", "20"]
    done = CliRunner().invoke(app, ["audit", str(folder), *out])
    assert done.exit_code == 0 and "8 of 10 rows leave scope empty" in done.stdout
    assert "8 of 10 rows leave scope empty" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("scope", "warned"),
    [
        ([None] * 10, True),
        (["1"] * 4 + [""] * 6, True),
        (["1"] * 5 + [""] * 5, False),  # as many are stated: there an empty cell says that scope is in doubt
        (["1"] + ["?"] * 9, False),
        (["1"] * 10, False),
    ],
)
def test_scope_that_is_stated_or_said_to_be_in_doubt_draws_no_warning(tmp_path, scope, warned):
    folder = sparse(tmp_path / "r", [1] * 10)
    rows = [f"q1,m{n},1,{'' if cell is None else cell}" for n, cell in enumerate(scope)]
    (folder / "labels.csv").write_text("\n".join(["query_id,memory_id,relevant,scope", *rows]) + "\n")
    assert faults(folder)["what"].str.contains("leave scope empty").any() == warned


def test_labels_without_a_scope_column_and_records_in_memory(tmp_path):
    folder = sparse(tmp_path / "r", [1, *[None] * 9])
    assert [fault.code for fault in take_in(load_records(folder)).warnings] == ["scope_left_empty"]
    labels = pd.read_csv(folder / "labels.csv", dtype=str).drop(columns="scope")
    labels.to_csv(folder / "labels.csv", index=False)
    assert faults(folder).empty and take_in(load_records(folder)).warnings == ()


def test_rows_that_cannot_be_read_are_counted_among_those_named(tmp_path):
    folder = sparse(tmp_path / "r", [1, *[None] * 9], "jsonl")
    path = folder / "labels.jsonl"
    path.write_text("{broken\n" + path.read_text())
    found = faults(folder)
    warning = found[found["level"] == "warning"]
    assert warning[["row", "line"]].to_numpy().tolist() == [[4, 4]] and "(rows 4, 5, 6," in warning["what"].item()
