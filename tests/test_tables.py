"""The record tables: read back what was written, refuse what is wrong, and say where."""

from __future__ import annotations

import csv
import json
import math
import os
import pickle
import re
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from companion.errors import InputError
from companion.tables import (
    TABLES,
    Records,
    examine_folder,
    find_problems,
    json_schema,
    load_records,
    read_raw,
    read_table,
    validate,
    write_table,
)

FORMATS = ("csv", "jsonl", "ndjson", "parquet", "tsv.gz", "json", "jsonl.gz")
NO_NAME = ("NULL", "null", "None", "nan", "NaN")
PUBLISHED = Path(__file__).parents[1] / "data" / "published"
quick = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# Any text a file can hold: no half surrogate pairs. The awkward ones come up often.
awkward = st.sampled_from(
    [
        "007",
        "NA",
        "null",
        "nan",
        "1e5",
        " x",
        "x ",
        "?",
        "a,b",
        'q"',
        "l\nm",
        "c\rd",
        "\r\n",
        "😀",
        "\u2028",
        "True",
        "-",
        "'",
        "#",
        "\t",
        "\ufeffz",
        "\x00",
        "é",
        "é",
    ]
)
prose = awkward | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
# A name holds no control character, and is not a word for none.
text = (
    awkward.filter(lambda t: t != "\x00")
    | st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\t\r\n"), min_size=1, max_size=8)
).filter(lambda t: t not in NO_NAME)
maybe_text = st.none() | text
axis = st.sampled_from([True, False, None])
finite = st.floats(allow_nan=False, allow_infinity=False)


def unique_texts(size: int) -> st.SearchStrategy[list[str]]:
    return st.lists(text, min_size=size, max_size=size, unique=True)


@st.composite
def labels_frames(draw: st.DrawFn) -> pd.DataFrame:
    pairs = draw(st.lists(st.tuples(text, text), max_size=6, unique=True))
    stated = draw(st.lists(st.sampled_from(["relevant", "scope", "policy", "lifecycle"]), unique=True))
    columns: dict[str, list] = {"query_id": [q for q, _ in pairs], "memory_id": [m for _, m in pairs]}
    for name in stated:
        columns[name] = draw(st.lists(axis, min_size=len(pairs), max_size=len(pairs)))
    columns["anchor_id"] = draw(st.lists(maybe_text, min_size=len(pairs), max_size=len(pairs)))
    return pd.DataFrame(columns, dtype=object)


@st.composite
def rankings_frames(draw: st.DrawFn) -> pd.DataFrame:
    routes = draw(st.lists(st.tuples(text, text), max_size=3, unique=True))
    scored = draw(st.booleans())
    rows = []
    for arm, query in routes:
        for rank, memory in enumerate(draw(st.lists(text, min_size=1, max_size=4, unique=True)), start=1):
            rows.append((arm, query, rank, memory, draw(finite) if scored else None))
    return pd.DataFrame(rows, columns=["arm", "query_id", "rank", "memory_id", "score"]).sample(frac=1, random_state=0)


@st.composite
def memories_frames(draw: st.DrawFn) -> pd.DataFrame:
    ids = draw(st.lists(text, max_size=5, unique=True))
    n = len(ids)
    return pd.DataFrame(
        {
            "mine": draw(st.lists(prose, min_size=n, max_size=n)),
            "memory_id": ids,
            "namespace": draw(st.lists(maybe_text, min_size=n, max_size=n)),
            "order": draw(st.lists(st.none() | finite, min_size=n, max_size=n)),
            "state": draw(
                st.lists(st.sampled_from(["current", "superseded", "unknown", None]), min_size=n, max_size=n)
            ),
            "text": draw(st.lists(st.none() | prose, min_size=n, max_size=n)),
        },
        dtype=object,
    )


@st.composite
def ledger_frames(draw: st.DrawFn) -> pd.DataFrame:
    keys = draw(st.lists(st.tuples(text, text, text), max_size=5, unique=True))
    flags = st.sampled_from([(True, True), (True, False), (False, False), (None, None), (False, None), (True, None)])
    drawn = [draw(flags) for _ in keys]
    rows = [(*key, *flag) for key, flag in zip(keys, drawn, strict=True)]
    return pd.DataFrame(rows, columns=["query_id", "arm", "memory_id", "retrieved", "exposed"], dtype=object)


ROLES = ("focal", "irrelevant_admissible", "irrelevant_inadmissible")


def cell_of(condition: str, role: str) -> str:
    return role if role != "focal" else {"allow": "relevant_admissible", "block": "relevant_inadmissible"}[condition]


@st.composite
def outcomes_frames(draw: st.DrawFn) -> pd.DataFrame:
    """Complete sets: every reader meets every pair of every scenario under both conditions, with three candidates."""
    readers, scenarios = (draw(st.lists(text, max_size=2, unique=True)) for _ in range(2))
    pairs = draw(st.lists(text, min_size=1, max_size=2, unique=True))
    rows = [
        (
            reader,
            scenario,
            "a",
            pair,
            condition,
            role,
            cell_of(condition, role),
            draw(st.booleans()),
            draw(st.booleans()),
        )
        for reader, scenario, pair, condition, role in product(readers, scenarios, pairs, ("allow", "block"), ROLES)
    ]
    return pd.DataFrame(rows, columns=list(TABLES["outcomes"].names[:-1]), dtype=object)


def same_bits(left: pd.DataFrame, right: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(left, right, check_exact=True)
    for name in left.columns[left.dtypes == np.dtype("float64")]:  # assert_frame_equal takes 0.0 for -0.0
        assert np.array_equal(np.signbit(left[name]), np.signbit(right[name]))


# --- round trips -------------------------------------------------------------------------------------------------

FRAMES = {
    "labels": labels_frames(),
    "rankings": rankings_frames(),
    "memories": memories_frames(),
    "ledger": ledger_frames(),
    "outcomes": outcomes_frames(),
}


@pytest.mark.parametrize(("name", "suffix"), list(product(FRAMES, FORMATS)))
def test_a_table_reads_back_exactly(name: str, suffix: str, tmp_path: Path) -> None:
    @quick
    @given(frame=FRAMES[name])
    def round_trip(frame: pd.DataFrame) -> None:
        table = validate(frame, name)
        path = write_table(table, tmp_path / f"t.{suffix}")
        if table.empty and suffix.startswith(("js", "nd")):  # no rows, no names: see the test of empty tables
            return
        if table.empty:  # nothing tells the type of a column of the user's own that holds nothing
            table = table.drop(columns="mine", errors="ignore")
        same_bits(read_table(path, name)[list(table.columns)], table)
        assert [p.name for p in tmp_path.iterdir()] == [path.name]  # nothing temporary is left

    round_trip()


@quick
@given(values=st.lists(axis, min_size=1, max_size=8))
def test_unresolved_never_becomes_yes_or_no(values: list[bool | None], tmp_path: Path) -> None:
    """What each format holds, seen by a reader that is not ours."""
    frame = pd.DataFrame({"query_id": "q", "memory_id": [f"m{n}" for n in range(len(values))], "policy": values})
    names = {suffix: write_table(frame, tmp_path / f"t.{suffix}", "labels") for suffix in FORMATS}
    assert pq.read_table(names["parquet"]).column("policy").to_pylist() == values
    assert pq.read_table(names["parquet"]).schema.field("policy").type == pa.bool_()
    assert [json.loads(line)["policy"] for line in names["jsonl"].read_text().splitlines()] == values
    with names["csv"].open(newline="") as file:
        written = [row["policy"] for row in csv.DictReader(file)]
    assert written == [{True: "1", False: "0", None: ""}[value] for value in values]


@quick
@given(
    rows=st.lists(
        st.tuples(text, text, st.sampled_from(["1", "0", "true", "FALSE", "", "?"])),
        min_size=1,
        unique_by=lambda r: r[:2],
    )
)
def test_csv_from_another_writer_reads_losslessly(rows: list[tuple[str, str, str]], tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([("query_id", "memory_id", "policy"), *rows])
    table = read_table(path, "labels")
    assert table["query_id"].tolist() == [q for q, _, _ in rows]
    assert table["memory_id"].tolist() == [m for _, m, _ in rows]
    truth = {"1": True, "true": True, "0": False, "FALSE": False, "": None, "?": None}
    assert [None if pd.isna(v) else bool(v) for v in table["policy"]] == [truth[word] for *_, word in rows]


def test_the_published_outcomes_read_as_they_are() -> None:
    path = PUBLISHED / "exposure_outcomes.csv"
    table = read_table(path, "outcomes")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(table) == len(rows) == 768
    assert Counter(table["cell"]) == Counter(row["cell"] for row in rows)
    assert table["disclosed_exposed"].astype(int).tolist() == [int(row["disclosed_exposed"]) for row in rows]
    assert table["pair"].tolist() == [row["pair"] for row in rows]
    assert not find_problems(table, "outcomes")


def test_bom_crlf_blank_lines_and_a_missing_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "work.csv"
    path.write_bytes(b"\xef\xbb\xbfarm,query_id,candidates_scored\r\na,q,3\r\n\r\nb,q,4.0")
    table = read_table(path, "work")
    assert table.to_dict("list") == {"arm": ["a", "b"], "query_id": ["q", "q"], "candidates_scored": [3, 4]}
    path = tmp_path / "work.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"arm":"a","query_id":7,"candidates_scored":3}\r\n\r\n')
    assert read_table(path, "work").to_dict("list") == {"arm": ["a"], "query_id": ["7"], "candidates_scored": [3]}


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("name", list(TABLES))
def test_a_table_without_rows_is_typed(name: str, suffix: str, tmp_path: Path) -> None:
    empty = validate(pd.DataFrame(columns=list(TABLES[name].required)), name)
    path = write_table(empty, tmp_path / f"{name}.{suffix}")
    same_bits(read_table(path, name), empty)


def test_a_long_text_and_a_quote_inside_a_field(tmp_path: Path) -> None:
    long = 'x"y,' * 500_000  # two megabytes: longer than Arrow's block and the csv module's limit
    frame = pd.DataFrame({"memory_id": ["m", "n"], "namespace": "u", "text": [long, 'a"b']})
    limit = csv.field_size_limit()
    path = write_table(frame, tmp_path / "memories.csv", "memories")
    assert read_table(path, "memories")["text"].tolist() == [long, 'a"b']
    assert csv.field_size_limit() == limit


# --- canonical form ----------------------------------------------------------------------------------------------


def test_defaults_and_columns() -> None:
    memories = validate(
        pd.DataFrame({"mine": [1, 2], "namespace": ["u", None], "memory_id": [7, 8], "group": [None, "g"]}),
        "memories",
    )
    assert list(memories.columns) == [c.name for c in TABLES["memories"].columns if c.required or c.add] + ["mine"]
    assert memories["memory_id"].tolist() == ["7", "8"]
    assert memories["group"].tolist() == ["u", "g"]
    assert memories["source"].tolist() == ["all", "all"]
    assert memories["state"].isna().all() and memories["order"].dtype == "Float64"


def test_an_axis_that_is_absent_stays_absent() -> None:
    labels = validate(pd.DataFrame({"query_id": ["q"], "memory_id": ["m"], "scope": [None], "note": ["x"]}), "labels")
    assert list(labels.columns) == ["query_id", "memory_id", "scope", "anchor_id"]
    assert labels["scope"].isna().all() and labels["scope"].dtype == "boolean"


@pytest.mark.parametrize(
    "given_axis",
    [
        pd.Series([1.0, 0.0, np.nan]),
        pd.Series([True, False, None], dtype="boolean"),
        pd.Series([True, False, None], dtype=object),
        pd.Series(["1", "0", "?"]),
        pd.Series(["TRUE", "false", ""], dtype="category"),
        pd.Series([1, 0, None], dtype="Int64"),
        pd.Series([True, False, None], dtype="bool[pyarrow]"),
        pd.Series([1, 0, None], dtype="int8[pyarrow]"),
        pd.Series([np.bool_(True), np.int64(0), pd.NA], dtype=object),
    ],
    ids=lambda s: str(s.dtype),
)
def test_every_honest_dtype_of_an_axis_is_read_alike(given_axis: pd.Series) -> None:
    frame = pd.DataFrame({"query_id": "q", "memory_id": ["a", "b", "c"], "policy": given_axis})
    assert validate(frame, "labels")["policy"].tolist() == [True, False, pd.NA]


def test_parquet_from_other_writers(tmp_path: Path) -> None:
    path = tmp_path / "rankings.parquet"
    table = pa.table(
        {
            "arm": pa.array(["a", "a"]).dictionary_encode(),
            "query_id": pa.array([1, 1], pa.int32()),
            "rank": pa.array([1, 2], pa.uint8()),
            "memory_id": pa.array(["x", "y"], pa.string_view() if hasattr(pa, "string_view") else pa.string()),
            "score": pa.array([0.5, 0.25], pa.float32()),
        }
    )
    pq.write_table(table, path)
    read = read_table(path, "rankings")
    assert read.to_dict("list") == {
        "arm": ["a", "a"],
        "query_id": ["1", "1"],
        "rank": [1, 2],
        "memory_id": ["x", "y"],
        "score": [0.5, 0.25],
    }
    frame = pd.DataFrame({"arm": ["a"], "query_id": ["q"], "candidates_scored": [2**53 + 1]}).set_index("arm")
    frame.to_parquet(tmp_path / "work.parquet")  # a saved index is a column like any other
    assert read_table(tmp_path / "work.parquet", "work")["candidates_scored"].tolist() == [2**53 + 1]


@pytest.mark.parametrize("name", list(TABLES))
def test_the_json_schema_says_what_the_table_takes(name: str) -> None:
    schema = json_schema(name)
    assert list(schema["properties"]) == list(TABLES[name].names) and schema["required"] == list(TABLES[name].required)
    assert all(told["description"] for told in schema["properties"].values())


def test_the_json_schema_knows_words_and_what_may_be_empty() -> None:
    told = json_schema("memories")["properties"]
    assert told["state"]["enum"] == ["current", "stale", "superseded", "forgotten", "unknown", None]
    assert told["memory_id"]["type"] == ["string", "integer"] and "null" in told["namespace"]["type"]
    assert json_schema("rankings")["properties"]["rank"]["type"] == "integer"
    assert json_schema("outcomes")["properties"]["condition"]["enum"] == ["allow", "block"]
    assert {None, "?", 1, "0"} <= set(json_schema("labels")["properties"]["scope"]["enum"])


# --- refusals ----------------------------------------------------------------------------------------------------


def route_rows(n: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "arm": "a",
            "query_id": "q",
            "rank": range(1, n + 1),
            "memory_id": [f"m{k}" for k in range(n)],
            "score": [float(n - k) for k in range(n)],
        }
    )


def label_rows(n: int) -> pd.DataFrame:
    return pd.DataFrame({"query_id": "q", "memory_id": [f"m{k}" for k in range(n)], "policy": 1, "scope": 0})


def ledger_rows(n: int) -> pd.DataFrame:
    return pd.DataFrame(
        {"query_id": "q", "arm": "a", "memory_id": [f"m{k}" for k in range(n)], "retrieved": 1, "exposed": 1}
    )


def work_rows(n: int) -> pd.DataFrame:
    return pd.DataFrame({"arm": "a", "query_id": [f"q{k}" for k in range(n)], "candidates_scored": range(n)})


def memory_rows(n: int) -> pd.DataFrame:
    return pd.DataFrame({"memory_id": [f"m{k}" for k in range(n)], "namespace": "u", "state": "stale", "source": "s"})


def query_rows(n: int) -> pd.DataFrame:
    return pd.DataFrame({"query_id": [f"q{k}" for k in range(n)], "namespace": "u", "intent": "history"})


# table, rows, column, bad value, words of the message
DEFECTS = [
    ("labels", label_rows, "policy", "maybe", "'maybe' is not accepted; expected 1, 0, true, false"),
    ("labels", label_rows, "policy", 2, "expected 1, 0, true, false"),
    ("labels", label_rows, "policy", "null ", "expected 1, 0, true, false"),
    ("labels", label_rows, "query_id", "", "empty"),
    ("labels", label_rows, "memory_id", None, "empty"),
    ("rankings", route_rows, "rank", 0, "expected a whole number, 1 or more"),
    ("rankings", route_rows, "rank", 1.5, "expected a whole number"),
    ("rankings", route_rows, "rank", "two", "expected a whole number"),
    ("rankings", route_rows, "rank", "", "expected a whole number"),
    ("rankings", route_rows, "rank", 99, "no rank"),
    ("rankings", route_rows, "score", math.inf, "expected a finite number"),
    ("rankings", route_rows, "score", "x", "expected a finite number"),
    ("rankings", route_rows, "score", None, "expected a finite number in every row"),
    ("rankings", route_rows, "arm", "", "empty"),
    ("work", work_rows, "candidates_scored", -1, "expected a whole number, 0 or more"),
    ("work", work_rows, "candidates_scored", "1e3", "expected a whole number"),
    ("ledger", ledger_rows, "exposed", "yes", "expected 1, 0, true, false"),
    ("memories", memory_rows, "state", "old", "'old' is not a known state; expected one of current, stale"),
    ("memories", memory_rows, "order", "first", "expected a finite number"),
    ("memories", memory_rows, "source", "", "other rows give a source"),
    ("queries", query_rows, "intent", "past", "'past' is not a known intent; expected one of current, history"),
    ("queries", query_rows, "namespace", "", "both namespace and group are empty"),
    ("memories", memory_rows, "population", "other", "is mixed with 'mine'"),
]


@pytest.mark.parametrize("suffix", ["memory", "csv", "jsonl"])
@pytest.mark.parametrize("case", DEFECTS, ids=lambda c: f"{c[0]}-{c[2]}-{c[3]}")
@settings(quick, max_examples=5)
@given(data=st.data())
def test_an_injected_defect_is_refused_and_located(
    case: tuple, suffix: str, data: st.DataObject, tmp_path: Path
) -> None:
    name, build, column, value, words = case
    n = data.draw(st.integers(2, 6))
    row = data.draw(st.integers(1 if column == "population" else 0, n - 1))
    frame = build(n).astype(object)
    if column not in frame:
        frame[column] = pd.Series([3 if column == "order" else "mine"] * n, dtype=object)
    assert not find_problems(frame, name)
    frame.loc[row, column] = value
    if suffix == "memory":
        origin, read = "table", lambda: validate(frame, name)
    else:
        if value == math.inf and suffix == "jsonl":  # JSON has no word for it; see the damaged files below
            return
        path = tmp_path / f"t.{suffix}"
        write_table(frame, path)
        origin, read = str(path), lambda: read_table(path, name)
    with pytest.raises(InputError) as refused:
        read()
    message = str(refused.value)
    line = {"memory": "", "csv": f" (line {row + 2})", "jsonl": f" (line {row + 1})"}[suffix]
    shown = "exposed" if column == "retrieved" else "group" if words.startswith("both") else column
    assert message.startswith(f"{origin}, row {row + 1}{line}, column {shown}: ")
    assert words in message and "\n" not in message


@quick
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("pq"), st.integers(1, 4), st.sampled_from("xyz")),
        max_size=6,
    )
)
def test_routes_are_accepted_exactly_when_brute_force_says_so(rows: list[tuple[str, str, int, str]]) -> None:
    good = True
    for route in {row[:2] for row in rows}:
        ranks = sorted(row[2] for row in rows if row[:2] == route)
        memories = [row[3] for row in rows if row[:2] == route]
        good &= ranks == list(range(1, len(ranks) + 1)) and len(set(memories)) == len(memories)
    frame = pd.DataFrame(rows, columns=["arm", "query_id", "rank", "memory_id"])
    assert (not find_problems(frame, "rankings")) == good


@settings(quick, max_examples=150)
@given(
    rows=st.lists(
        st.tuples(st.just("q"), st.sampled_from("xy"), st.sampled_from(["a", "b", None]), axis, st.just(True)),
        max_size=3,
    )
)
def test_labels_are_accepted_exactly_when_brute_force_says_so(rows: list[tuple]) -> None:
    good = len({row[:3] for row in rows}) == len(rows)
    for first, second in product(rows, rows):
        good &= first[:2] != second[:2] or first[3:] == second[3:]
    frame = pd.DataFrame(rows, columns=["query_id", "memory_id", "anchor_id", "scope", "policy"], dtype=object)
    problems = find_problems(frame, "labels")
    assert (not problems) == good
    assert all("contradicts itself" in p.message or "listed twice" in p.message for p in problems)


@quick
@given(retrieved=axis, exposed=axis)
def test_what_was_exposed_without_retrieval_is_told_of_and_kept(retrieved: bool | None, exposed: bool | None) -> None:
    frame = pd.DataFrame(
        {"query_id": ["q"], "arm": ["a"], "memory_id": ["m"], "retrieved": [retrieved], "exposed": [exposed]}
    )
    levels = [problem.level for problem in find_problems(frame, "ledger")]
    assert levels == (["warning"] if exposed and not retrieved else [])
    assert validate(frame, "ledger")["exposed"].tolist() == [pd.NA if exposed is None else exposed]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("memories", ["memory_id"]),
        ("queries", ["query_id"]),
        ("work", ["arm", "query_id"]),
        ("ledger", ["query_id", "arm", "memory_id"]),
    ],
)
def test_a_repeated_key_is_refused(name: str, keys: list[str]) -> None:
    build = {"memories": memory_rows, "queries": query_rows, "work": work_rows, "ledger": ledger_rows}[name]
    frame = pd.concat([build(3), build(3).iloc[[1]]])
    with pytest.raises(InputError, match=r"table, row 4, column .* listed twice, first in row 2") as refused:
        validate(frame, name)
    assert all(key in str(refused.value) for key in keys)


def test_many_bad_rows_are_counted_not_repeated() -> None:
    frame = label_rows(20).astype(object)
    frame.loc[3:15, "policy"] = "maybe"
    with pytest.raises(InputError, match=r"row 4, column policy: 'maybe' .*; and 12 more$"):
        validate(frame, "labels")


def test_everything_wrong_is_listed_at_once_with_a_way_out() -> None:
    frame = route_rows(4).astype(object)
    frame.loc[1, "rank"] = 1
    frame.loc[2, "memory_id"] = "m0"
    frame.loc[3, "score"] = "high"
    frame["population"] = ["a", "a", "b", "c"]
    frame = frame.rename(columns={"arm": "Arm"})
    frame["arm"] = ""
    problems = find_problems(frame, "rankings")
    assert [(problem.column, problem.row) for problem in problems] == [
        *[("score", 4), ("arm", 1), ("arm", 2), ("arm", 3), ("arm", 4), ("rank", 2), ("memory_id", 3)],
        *[("population", 3), ("population", 4)],
    ]
    assert "best rank" in problems[6].fix
    assert all(problem.fix and problem.expected and problem.level == "error" for problem in problems)
    with pytest.raises(InputError) as refused:
        validate(frame, "rankings")
    assert str(refused.value) == problems[0].message
    with pytest.raises(InputError, match=r"the field is empty; .* and 3 more"):
        validate(frame.assign(score=1.0), "rankings")


def test_a_missing_column_suggests_the_near_name() -> None:
    with pytest.raises(InputError, match=r"column memory_id: the column is missing \('Memory ID' is there\)"):
        validate(pd.DataFrame({"query_id": ["q"], "Memory ID": ["m"]}), "labels")
    with pytest.raises(InputError, match=r"column query_id: .*the columns are query_id;memory_id"):
        validate(pd.DataFrame({"query_id;memory_id": ["q;m"]}), "labels")
    assert (
        "add a column memory_id"
        in find_problems(pd.DataFrame({"id": ["m"], "namespace": "u", "memory": "t"}), "memories")[0].fix
    )
    assert "';'" in find_problems(pd.DataFrame({"query_id;memory_id": ["q;m"]}), "labels")[0].fix


def test_a_lookalike_of_an_absent_column_is_only_a_warning() -> None:
    frame = label_rows(2).assign(lifecyle=1)
    (problem,) = find_problems(frame, "labels")
    assert (problem.level, problem.column) == ("warning", "lifecyle") and "lifecycle" in problem.fix
    assert "lifecyle" not in validate(frame, "labels")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "memory"])
@pytest.mark.parametrize("word", ["NULL", "null", "None", "nan", "NaN", "", None])
def test_words_for_none_are_missing_in_every_id_and_namespace(word: str | None, suffix: str, tmp_path: Path) -> None:
    memories = pd.DataFrame({"memory_id": ["m", "n"], "namespace": ["u", word], "text": ["t", "null"]}, dtype=object)
    queries = pd.DataFrame({"query_id": [word], "namespace": ["u"]}, dtype=object)
    labels = pd.DataFrame({"query_id": ["q"], "memory_id": ["m"], "anchor_id": [word]}, dtype=object)

    def through(frame: pd.DataFrame, name: str) -> pd.DataFrame:
        if suffix == "memory":
            return validate(frame, name)
        return read_table(write_table(frame, tmp_path / f"t.{suffix}"), name)

    read = through(memories, "memories")
    assert read["namespace"].isna().tolist() == read["group"].isna().tolist() == [False, True]
    assert read["text"].tolist() == ["t", "null"]  # a word of a text is a word
    assert through(labels, "labels")["anchor_id"].isna().all()
    with pytest.raises(InputError, match=r"row 1.*column query_id: the field is empty"):
        through(queries, "queries")


@pytest.mark.parametrize("word", ["NA", "none", "Null", "NAN", "N/A", "0", "-"])
def test_other_words_are_ids(word: str) -> None:
    assert validate(pd.DataFrame({"memory_id": [word], "namespace": [word]}), "memories")["namespace"].tolist() == [
        word
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [("7.0", "7"), ("007", "7"), ("7.00", "007"), ("ns", "ns "), ("\tns", "ns"), ("Ann", "ANN"), ("é", "e\u0301"),
     ("ﬁle", "file"), ("ß", "ss"), ("１", "1")],
)  # fmt: skip
def test_ids_that_differ_only_in_form_are_told_with_the_pair(one: str, other: str) -> None:
    memories = pd.DataFrame({"memory_id": ["a", one, "b", other], "namespace": "u"})
    (problem,) = find_problems(memories, "memories")
    assert (problem.code, problem.level, problem.column) == ("id_forms", "warning", "memory_id")
    assert f"{one!r} and {other!r}" in problem.what and problem.value == ((one, other),)
    # Across tables: an unknown id names the one it may stand for; namespaces are only told of.
    tables = {"queries": query_rows(1), "labels": pd.DataFrame({"query_id": ["q0"], "memory_id": [other]})}
    built = Records(memories=pd.DataFrame({"memory_id": [one], "namespace": "u"}), **tables)
    (problem,) = built.find_problems()
    assert problem.is_error and f"({one!r} differs only in form)" in problem.what and repr(one) in problem.fix
    built = Records(
        memories=memory_rows(1).assign(namespace=one), queries=query_rows(1).assign(namespace=other),
        labels=label_rows(1).assign(query_id="q0"),
    )  # fmt: skip
    (problem,) = [found for found in built.find_problems() if found.code == "id_forms"]
    assert problem.column == "namespace" and problem.value == ((other, one),)
    built.check()  # a warning stops nothing


@pytest.mark.parametrize(("one", "other"), [("7", "70"), ("0", "00x"), ("7.5", "7"), ("a-b", "a_b"), ("ns1", "ns 1")])
def test_ids_that_differ_in_more_than_form_are_left_alone(one: str, other: str) -> None:
    assert not find_problems(pd.DataFrame({"memory_id": [one, other], "namespace": "u"}), "memories")


@pytest.mark.parametrize(
    ("value", "read"),
    [("3", 3), ("3.0", 3), ("-0", 0), ("3.00", 3), (3.0, 3), (np.int8(3), 3), (2**63 - 1, 2**63 - 1), ("2", 2),
     ("3.5", None), ("3.", None), (" 3", None), ("٣", None), (2**63, None), (-(2**63) - 1, None), (10**400, None),
     ("1" * 400, None), (1e300, None), (math.nan, "missing"), (True, None), ("", "missing"), (None, "missing")],
    ids=lambda value: str(value)[:12],
)  # fmt: skip
def test_whole_numbers_are_read_exactly_or_refused(value: object, read: object) -> None:
    frame = pd.DataFrame({"arm": "a", "query_id": "q", "candidates_scored": pd.Series([value], dtype=object)})
    if read is None:
        with pytest.raises(InputError, match=r"row 1, column candidates_scored: .* expected a whole number"):
            validate(frame, "work")
    else:
        column = validate(frame, "work")["candidates_scored"]
        assert (column.dtype == "Int64" and column.isna().all()) if read == "missing" else column.tolist() == [read]
    with pytest.raises(InputError, match="column rank"):
        route = route_rows(1).assign(rank=pd.Series([value], dtype=object))
        validate(route if read != 3 and read != 2 else route.assign(rank=0), "rankings")


def outcome_rows() -> pd.DataFrame:
    rows = [
        (reader, scenario, "policy", pair, condition, role, cell_of(condition, role), 1, 0)
        for reader, scenario, pair, condition, role in product("rs", "xy", "12", ("allow", "block"), ROLES)
    ]
    return pd.DataFrame(rows, columns=list(TABLES["outcomes"].names[:-1]))


def changed(row: int, **cells: object) -> pd.DataFrame:
    frame = outcome_rows().astype(object)
    for name, value in cells.items():
        frame.loc[row, name] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (outcome_rows().drop(columns="pair"), "column pair: the column is missing"),
        (changed(3, reader=None), "row 4, column reader: the field is empty"),
        (
            changed(3, condition="deny"),
            "row 4, column condition: 'deny' is not a known condition; expected one of allow",
        ),
        (changed(3, candidate_role="x"), "row 4, column candidate_role: 'x'"),
        (changed(3, cell="relevant"), "row 4, column cell: 'relevant' is not a known cell"),
        (
            changed(3, cell="relevant_admissible"),
            "row 4, column cell: .*cell is 'relevant_admissible', not 'relevant_inad",
        ),
        (changed(1, cell="relevant_admissible"), "row 2, column cell: .*not 'irrelevant_admissible'"),
        (changed(7, axis="scope"), "row 8, column axis: scenario 'x' has axis 'scope' and another"),
        (
            changed(5, disclosed_exposed="?"),
            "row 6, column disclosed_exposed: .*candidate_role 'irrelevant_inad.*no outcome",
        ),
        (changed(5, disclosed_withheld=2), "row 6, column disclosed_withheld: 2 is not accepted"),
        (pd.concat([outcome_rows(), outcome_rows().iloc[[9]]]), "row 49, column candidate_role: .*first in row 10"),
        (
            outcome_rows().drop(index=9),
            r"reader r, scenario x, pair 2, condition block, candidate_role focal: no outcome \(1 of 48",
        ),
        (
            outcome_rows().query("pair == '1' or scenario == 'y'"),
            "column pair: scenario x: pair 1 only; expected 2 pairs",
        ),
        (outcome_rows().query("reader == 'r' or scenario == 'y'"), r"reader s, scenario x, .*\(12 of 48 units missing"),
        (outcome_rows().assign(population=["a"] * 47 + ["b"]), "row 48, column population"),
    ],
)  # fmt: skip
def test_outcomes_are_refused_unless_every_set_is_complete(frame: pd.DataFrame, words: str) -> None:
    assert not find_problems(outcome_rows(), "outcomes")
    with pytest.raises(InputError, match=words) as refused:
        validate(frame, "outcomes")
    assert find_problems(frame, "outcomes")[0].message == str(refused.value)


@pytest.mark.parametrize("bad_id", [1.5, True, ["m"], {"a": 1}, "\ud800", b"m"], ids=repr)
def test_an_id_is_text_or_a_whole_number(bad_id: object) -> None:
    frame = label_rows(3).astype(object)
    frame["memory_id"] = pd.Series(["a", bad_id, "b"], dtype=object)
    with pytest.raises(InputError, match=r"row 2, column memory_id: .* is not text"):
        validate(frame, "labels")


def test_nan_in_an_axis_is_unresolved_wherever_it_comes_from(tmp_path: Path) -> None:
    axis_of_floats = pa.table({"query_id": ["q", "q"], "memory_id": ["m", "n"], "policy": [math.nan, 1.0]})
    pq.write_table(axis_of_floats, tmp_path / "labels.parquet")
    assert read_table(tmp_path / "labels.parquet", "labels")["policy"].tolist() == [pd.NA, True]


def test_nan_in_parquet_is_a_number_that_is_not_finite(tmp_path: Path) -> None:
    for scores in ([0.5, math.nan], [math.nan, math.nan]):
        table = pa.table(
            {"arm": ["a", "a"], "query_id": ["q", "q"], "rank": [1, 2], "memory_id": ["m", "n"], "score": scores}
        )
        pq.write_table(table, tmp_path / "r.parquet")
        with pytest.raises(InputError, match=r"column score: nan is not accepted; expected a finite"):
            read_table(tmp_path / "r.parquet", "rankings")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty; expected a header line"),
        (b"\n\n", "the file is empty"),
        (b"arm,query_id\n", "column candidates_scored: the column is missing"),
        (b"arm,arm,query_id,candidates_scored\na,b,q,1\n", "column arm: column 'arm' appears more than once"),
        (b"arm,query_id,candidates_scored\na,q\n", "row 1 (line 2): the row has 2 fields; expected 3"),
        (b'arm,query_id,candidates_scored\n"a\nb",q,1\nc,q,2,9\n', "row 2 (line 4): the row has 4 fields; expected 3"),
        (b'arm,query_id,candidates_scored\na,q,1\n"b,q,2\n', "line 3: the row cannot be read (unexpected end of data)"),
        (b'arm,query_id,candidates_scored\n"a"x,q,1\n', "line 2: "),
        (b"arm,query_id,candidates_scored\na,\xff,1\n", "line 2: byte 0xff at place 3 of the line is not UTF-8"),
        ("arm,query_id\n".encode("utf-16"), "column candidates_scored: the column is missing"),
        (b"\xff\xfea", "expected a file that can be read"),
        (b"arm\x00query_id,candidates_scored\n", "column arm: the column is missing"),
    ],
)
def test_a_damaged_csv_is_refused_in_one_clear_line(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "work.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_table(path, "work")
    assert str(refused.value).startswith(str(path)) and words in str(refused.value)
    found = examine_folder(tmp_path, ("work",)).errors
    assert any(problem.message.startswith(str(path)) and problem.fix for problem in found)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b'{"arm":"a"\n', "line 1: Expecting ',' delimiter"),
        (b'{"arm":"a","query_id":"q","candidates_scored":1}\n[1]\n', "line 2: [1] is not a JSON object"),
        (b'{"arm":"a","query_id":"q","candidates_scored":1}\nnull\n', "line 2: "),
        (b'{"arm":"a","query_id":"q","candidates_scored":NaN}\n', "line 1: NaN is not a JSON value"),
        (
            b'{"arm":"a","query_id":"q","candidates_scored":1e999}\n',
            "row 1 (line 1), column candidates_scored: inf",
        ),
        (
            b'{"arm":"a","arm":"b","query_id":"q","candidates_scored":1}\n',
            "line 1: the name 'arm' appears more than once",
        ),
        (
            b'\n{"arm":"a","query_id":"q","candidates_scored":true}\n',
            "row 1 (line 2), column candidates_scored: True",
        ),
        (
            b'{"arm":"\\ud800","query_id":"q","candidates_scored":1}\n',
            "row 1 (line 1), column arm: '\\ud800' is not text",
        ),
        (b'{"arm":"a","candidates_scored":1}\n', "column query_id: the column is missing"),
        (b'{"arm":"\xff"}\n', "line 1: byte 0xff at place 9 of the line is not UTF-8"),
        (b"[" * 100_000, "line 1: "),
        (b'{"arm":' + b"1" * 5000 + b"}", "line 1: "),
    ],
)
def test_a_damaged_jsonl_is_refused_in_one_clear_line(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_table(path, "work")
    assert str(refused.value).startswith(str(path)) and words in str(refused.value)


def test_a_cut_parquet_is_refused_at_every_length(tmp_path: Path) -> None:
    path = write_table(work_rows(5), tmp_path / "work.parquet", "work")
    whole = path.read_bytes()
    for length in [0, 1, 4, 12, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="not a whole Parquet file"):
            read_table(path, "work")


def test_paths_that_are_no_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.csv").mkdir()
    for path, words in [
        (tmp_path / "absent.csv", "No such file"),
        (tmp_path / "folder.csv", "is a folder; expected a file"),
        (tmp_path / "t.xlsx", "the extension '.xlsx' is unknown; expected one of .parquet, .csv, .tsv"),
        (tmp_path / "t", "the name has no extension"),
    ]:
        with pytest.raises(InputError, match=words):
            read_table(path, "work")
    with pytest.raises(InputError, match="no table is called 'works'; expected one of memories"):
        read_table(tmp_path / "t.csv", "works")

    (tmp_path / "t.csv").touch()

    def deny(self: Path, *args: object) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", deny)
    with pytest.raises(InputError, match="Permission denied"):
        read_table(tmp_path / "t.csv", "work")


# --- writing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_failed_write_leaves_the_older_file(suffix: str, tmp_path: Path) -> None:
    path = write_table(work_rows(2), tmp_path / f"work.{suffix}", "work")
    before = path.read_bytes()
    if suffix in ("csv", "tsv.gz"):
        bad = work_rows(2).assign(extra=[["a"], 1])
    else:
        bad = work_rows(2).assign(extra=pd.Series([object(), object()], dtype=object))
    with pytest.raises(InputError, match="cannot be written"):
        write_table(bad, path)
    with pytest.raises(InputError, match="column candidates_scored"):
        write_table(work_rows(2).assign(candidates_scored=-1), path, "work")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]  # noqa: PTH208


def test_a_file_that_is_not_regular_is_refused_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    with (tmp_path / "vast.csv").open("wb") as file:
        file.truncate(2**43)
    for name, words in [
        ("pipe.csv", "is not a regular file"),
        ("zero.csv", "is not a regular file"),
        ("loop.csv", "symbolic links"),
        ("vast.csv", "do not fit in memory"),
        ("nul\0.csv", "null"),
        ("half\ud800.csv", "expected a file that can be read"),
        ("long" * 2000 + ".csv", "too long"),
    ]:
        with pytest.raises(InputError, match=words) as refused:
            read_table(tmp_path / name, "work")
        str(refused.value).encode()  # it can be printed


def test_packed_files_that_are_damaged_or_unpack_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_table(work_rows(500), tmp_path / "work.csv.gz", "work")
    assert len(read_table(path, "work")) == 500
    assert path.read_bytes() == write_table(work_rows(500), tmp_path / "other.csv.gz", "work").read_bytes()
    whole = path.read_bytes()
    for content in (whole[:-9], whole[:20], b"x" + whole, whole[:40] + b"xxxx" + whole[44:]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=re.escape(str(path))):
            read_table(path, "work")
    path.write_bytes(whole)
    monkeypatch.setattr("companion.tables.files._memory", lambda: 4 * 3000)
    with pytest.raises(InputError, match="unpacks to more than 3,000 bytes"):
        read_table(path, "work")
    with pytest.raises(InputError, match=r"expected one of .parquet"):
        write_table(work_rows(1), tmp_path / "t.parquet.gz")


@pytest.mark.parametrize(
    "content",
    [
        '{"arm":"a","query_id":"q1","candidates_scored":1}\n\n  {"query_id":"q2","arm":"a","candidates_scored":2}  \n',
        '{"arm":"a","query_id":"q1","candidates_scored":1}\r\n{"query_id":"q2","arm":"a","candidates_scored":2.0}',
        '{"arm":"a","query_id":"q1","candidates_scored":1}\n{"query_id":"q2","arm":"a","candidates_scored":"2","x":[1]}',
    ],
)
def test_json_lines_read_alike_fast_or_line_by_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    path.write_text(content)
    assert read_table(path, "work").to_dict("list") == {
        "arm": ["a", "a"],
        "query_id": ["q1", "q2"],
        "candidates_scored": [1, 2],
    }
    bad = content.replace('"q2"', '"q1"')
    path.write_text(bad)
    line = 1 + [n for n, text in enumerate(bad.split("\n")) if text.strip()][1]
    with pytest.raises(InputError, match=rf"row 2 \(line {line}\), column query_id: .* listed twice, first in row 1"):
        read_table(path, "work")


@pytest.mark.parametrize("at", [0, 350, 699])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"arm":"a","query_id":"x","candidates_scored":1,"arm":"a"}', "the name 'arm' appears more than once"),
        ('{"arm":"a","query_id":"x","candidates_scored":NaN}', "NaN is not a JSON value"),
        ('{"arm":"a","query_id":"x"} {"candidates_scored":1}', "Extra data"),
        ('{"arm":"a","query_id":"x","candidates_scored":\n1}', "Expecting value"),
        ('{"arm":"a","query_id":["x"],"candidates_scored":1}', "column query_id: \\['x'\\] is not text"),
        ('{"arm":"a","query_id":"x","candidates_scored":1.5}', "column candidates_scored: 1.5 is not accepted"),
        (
            '{"arm":"a","query_id":"x","candidates_scored":18446744073709551616}',
            "candidates_scored: 18446744073709551616",
        ),
    ],
)
def test_a_bad_line_in_a_long_file_is_found_wherever_it_stands(line: str, words: str, at: int, tmp_path: Path) -> None:
    lines = [f'{{"arm":"a","query_id":"q{n}","candidates_scored":{n}}}' for n in range(700)]
    lines[at] = line
    path = tmp_path / "work.jsonl"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=rf"line {at + 1}.*{words}"):
        read_table(path, "work")


def test_two_spellings_of_a_table_that_spreadsheets_write(tmp_path: Path) -> None:
    path = tmp_path / "work.csv"
    expected = {"arm": ["a", "a"], "query_id": ["é", "q"], "candidates_scored": [1, 2]}
    rows = "arm;query_id;candidates_scored\na;é;1\na;q;2\n"
    for content in (
        ("sep=;\n" + rows).encode(),
        ("\ufeffsep=,\r\n" + rows.replace(";", ",").replace("\n", "\r\n")).encode("utf-16-le"),
        rows.replace(";", ",").encode("utf-16"),
        rows.replace(";", ",").replace("\n", "\r").encode(),
    ):
        path.write_bytes(content)
        assert read_table(path, "work").to_dict("list") == expected
    (tmp_path / "work.tsv").write_text(rows.replace(";", "\t"))
    assert read_table(tmp_path / "work.tsv", "work").to_dict("list") == expected


@pytest.mark.parametrize(
    "content", ["{}", "[1]", '[{"a": NaN}]', '[{"arm": "a", "arm": "b"}]', "[", '"x"', "[" * 99999]
)
def test_a_json_file_is_a_list_of_objects(content: str, tmp_path: Path) -> None:
    (tmp_path / "work.json").write_text(content)
    with pytest.raises(InputError, match="expected"):
        read_table(tmp_path / "work.json", "work")


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *args: object, **kwargs: object) -> object:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(InputError, match="No space left on device; expected a place that can be written"):
        write_table(work_rows(2), tmp_path / "work.csv")
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write_table(work_rows(1), tmp_path / "t.csv")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="expected a place that can be written"):
        write_table(work_rows(1), tmp_path / "file" / "t.csv")
    with pytest.raises(InputError, match="extension"):
        write_table(work_rows(1), tmp_path / "t.txt")
    assert write_table(work_rows(1), tmp_path / "new" / "t.csv").exists()


# --- records -----------------------------------------------------------------------------------------------------


def records(**changes: object) -> Records:
    tables = {
        "memories": memory_rows(3),
        "queries": query_rows(2),
        "labels": label_rows(3).assign(query_id="q0"),
        "rankings": route_rows(3).assign(query_id="q1"),
        "work": work_rows(2),
        "ledger": ledger_rows(3).assign(query_id="q0"),
    }
    return Records(**{**tables, **changes})


def test_records_tell_what_they_hold() -> None:
    assert repr(records(name="mine")) == (
        "<Records mine: 3 memories, 2 queries, 3 labels, 3 rankings, 2 work, 3 ledger, arms a>"
    )


def test_records_are_checked_and_canonical() -> None:
    raw = records()
    assert raw.checked() is not raw and raw.checked().checked().rankings.dtypes["rank"] == "int64"
    assert (checked := raw.check()).checked() is checked
    checked = records(defaults={"policy": True}).check()
    assert checked.labels["policy"].dtype == "boolean" and checked.population == "own-records"
    assert checked.find_problems() == []
    same_bits(checked.check().rankings, checked.rankings)


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("labels", "query_id"),
        ("labels", "memory_id"),
        ("rankings", "query_id"),
        ("rankings", "memory_id"),
        ("work", "query_id"),
        ("ledger", "query_id"),
        ("ledger", "memory_id"),
    ],
)
def test_an_unknown_id_is_refused(table: str, column: str) -> None:
    frame = getattr(records(), table).copy()
    at = len(frame) - 1 if (table, column) != ("rankings", "query_id") else slice(None)
    frame.loc[at, column] = "nobody"
    row = 1 if at == slice(None) else len(frame)
    lender = "queries" if column == "query_id" else "memories"
    with pytest.raises(InputError, match=rf"{table}, row {row}, column {column}: 'nobody' is unknown; .* in {lender}"):
        records(**{table: frame}).check()


def test_populations_are_never_pooled() -> None:
    one = records(memories=memory_rows(3).assign(population="p"), queries=query_rows(2).assign(population="p"))
    assert one.check().population == "p"
    with pytest.raises(InputError, match=r"column population: population 'r' is mixed with 'p'"):
        records(memories=memory_rows(3).assign(population="p"), labels=records().labels.assign(population="r")).check()
    with pytest.raises(InputError, match="mixed"):
        records(memories=memory_rows(3).assign(population="p"), population="r").check()


def test_defaults_are_axes_with_a_known_value() -> None:
    with pytest.raises(InputError, match="'polcy' is not an axis"):
        records(defaults={"polcy": True}).check()
    with pytest.raises(InputError, match="expected true or false"):
        records(defaults={"policy": None}).check()


def test_a_folder_of_tables_in_mixed_formats(tmp_path: Path) -> None:
    built = records().check()
    for (name, table, _), suffix in zip(
        built.tables(), ["csv", "jsonl", "parquet", "ndjson", "csv", "jsonl"], strict=True
    ):
        write_table(table, tmp_path / f"{name}.{suffix}")
    loaded = load_records(tmp_path, defaults={"policy": True})
    assert loaded.name == tmp_path.name and loaded.defaults == {"policy": True}
    same_bits(pickle.loads(pickle.dumps(loaded)).labels, built.labels)  # reruns send records to other processes
    for (_, left, _), (_, right, _) in zip(built.tables(), loaded.tables(), strict=True):
        same_bits(left, right)
    paths = {name: next(tmp_path.glob(f"{name}.*")) for name in ("memories", "queries", "labels")}
    assert load_records(paths).rankings is None
    assert load_records(**paths, rankings=tmp_path / "rankings.ndjson").rankings is not None

    (tmp_path / "labels.csv").write_text("query_id,memory_id,policy\nq0,m0,1\nq0,zz,0\n")
    with pytest.raises(InputError, match=r"labels.parquet and labels.csv are both there"):
        load_records(tmp_path)
    (tmp_path / "labels.parquet").unlink()
    with pytest.raises(InputError, match=r"labels.csv, row 2 \(line 3\), column memory_id: 'zz' is unknown"):
        load_records(tmp_path)
    (problem,) = examine_folder(tmp_path).problems
    assert problem.line == 3 and problem.fix
    (tmp_path / "labels.csv").unlink()
    with pytest.raises(InputError, match=r"table labels is missing; expected labels.parquet, labels.csv"):
        load_records(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        load_records(tmp_path / "absent")
    with pytest.raises(InputError, match="no table is called 'lables'"):
        load_records({"lables": "x.csv"})


def test_reading_raw_tells_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a,b\n\n1,"x\ny"\n2,z\n')
    frame, origin = read_raw(path)
    assert frame["b"].tolist() == ["x\ny", "z"]
    assert [origin.line(0), origin.line(1), origin.line(2)] == [3, 5, None]


def test_the_book_lists_the_columns_of_every_table_a_user_writes() -> None:
    page = (Path(__file__).parents[1] / "book" / "import.md").read_text(encoding="utf-8")
    listed = {
        name: (re.sub(r"\([^)]*\)", "", columns)).partition(";")[0]
        for name, columns in re.findall(r"^\| `(\w+)` \| (\*\*.*) \|$", page, flags=re.M)
    }
    assert set(listed) == set(TABLES) - {"outcomes"}
    for name, columns in listed.items():
        words = [word.strip() for word in columns.split(",")]
        own = [column for column in TABLES[name].columns if column.name != "population"]
        assert words == [f"**{column.name}**" if column.required else column.name for column in own], name
