"""The record tables: read back what was written, refuse what is wrong, and say where."""

from __future__ import annotations

import csv
import json
import math
import os
import pickle
import re
import time
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
    find_file_problems,
    find_problems,
    load_records,
    open_records,
    read_raw,
    read_table,
    validate,
    write_table,
)

FORMATS = ("csv", "jsonl", "ndjson", "parquet")
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
# A name holds no control character.
text = awkward.filter(lambda t: t != "\x00") | st.text(
    st.characters(exclude_categories=["Cs", "Cc"], include_characters="\t\r\n"), min_size=1, max_size=8
)
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


@st.composite
def outcomes_frames(draw: st.DrawFn) -> pd.DataFrame:
    keys = draw(st.lists(st.tuples(text, text), max_size=4, unique=True))
    rows = [
        (reader, scenario, "a", str(n), "allow", "focal", "relevant_admissible", draw(axis), draw(axis))
        for n, (reader, scenario) in enumerate(keys)
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
        if table.empty and suffix in ("jsonl", "ndjson"):  # no rows, no names: see the test of empty tables
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
    assert not find_file_problems(path, "outcomes")


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
    assert list(memories.columns) == [c for c in TABLES["memories"].names if c != "population"] + ["mine"]
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


def test_the_schemas_serve_pandera() -> None:
    import pandera.errors

    frame = pd.DataFrame({"arm": ["a", "a"], "query_id": ["q", "q"], "rank": [1, 2], "memory_id": ["m", "n"]})
    schema = TABLES["rankings"].pandera()
    good = validate(frame, "rankings")
    schema.validate(good)
    with pytest.raises(pandera.errors.SchemaError):
        schema.validate(good.assign(rank=[1, 3]))


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


def test_repeated_outcomes_are_refused_only_when_the_key_is_complete() -> None:
    frame = pd.DataFrame(
        {
            "reader": "r",
            "scenario": "s",
            "cell": "c",
            "disclosed_exposed": [1, 0],
            "disclosed_withheld": 0,
            "pair": 1,
        }
    )
    assert not find_problems(frame, "outcomes")
    with pytest.raises(InputError, match="listed twice"):
        validate(frame.assign(condition="allow", candidate_role="focal"), "outcomes")


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
    assert [problem.column for problem in problems] == ["score", "arm", "rank", "memory_id", "population"]
    assert [problem.row for problem in problems] == [4, 1, 2, 3, 3]
    assert [problem.more for problem in problems] == [0, 3, 0, 0, 1]
    assert all(problem.fix and problem.expected and problem.level == "error" for problem in problems)
    with pytest.raises(InputError) as refused:
        validate(frame, "rankings")
    assert str(refused.value) == problems[0].message


def test_a_missing_column_suggests_the_near_name() -> None:
    with pytest.raises(InputError, match=r"column memory_id: the column is missing \('Memory ID' is there\)"):
        validate(pd.DataFrame({"query_id": ["q"], "Memory ID": ["m"]}), "labels")
    with pytest.raises(InputError, match=r"column query_id: .*the columns are query_id;memory_id"):
        validate(pd.DataFrame({"query_id;memory_id": ["q;m"]}), "labels")
    assert "';'" in find_problems(pd.DataFrame({"query_id;memory_id": ["q;m"]}), "labels")[0].fix


def test_a_lookalike_of_an_absent_column_is_only_a_warning() -> None:
    frame = label_rows(2).assign(lifecyle=1)
    (problem,) = find_problems(frame, "labels")
    assert (problem.level, problem.column) == ("warning", "lifecyle") and "lifecycle" in problem.fix
    assert "lifecyle" not in validate(frame, "labels")


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
        (b"arm,query_id,candidates_scored\na,q\n", "row 1 (line 2): 2 fields; expected 3"),
        (b'arm,query_id,candidates_scored\n"a\nb",q,1\nc,q,2,9\n', "row 2 (line 4): 4 fields; expected 3"),
        (b'arm,query_id,candidates_scored\na,q,1\n"b,q,2\n', "line 3: unexpected end of data"),
        (b'arm,query_id,candidates_scored\n"a"x,q,1\n', "line 2: "),
        (b"arm,query_id,candidates_scored\na,\xff,1\n", "line 2: byte 0xff is not UTF-8"),
        ("arm,query_id,candidates_scored\n".encode("utf-16"), "is not UTF-8"),
    ],
)
def test_a_damaged_csv_is_refused_in_one_clear_line(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "work.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_table(path, "work")
    assert str(refused.value).startswith(str(path)) and words in str(refused.value)
    (first, *_) = find_file_problems(path, "work")
    assert first.message.startswith(str(path)) and first.fix


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
            "line 1, column arm: the name appears more",
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
        (b'{"arm":"\xff"}\n', "line 1: byte 0xff is not UTF-8"),
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
        (tmp_path / "t.xlsx", "the extension '.xlsx' is unknown; expected one of .parquet, .csv"),
        (tmp_path / "t", "the name has no extension"),
    ]:
        with pytest.raises(InputError, match=words):
            read_table(path, "work")
    with pytest.raises(InputError, match="no table is called 'works'; expected one of memories"):
        read_table(tmp_path / "t.csv", "works")

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
    if suffix == "csv":
        bad = work_rows(2).assign(extra=[["a"], 1])
    else:
        bad = work_rows(2).assign(extra=pd.Series([object(), object()], dtype=object))
    with pytest.raises(InputError, match="cannot be written"):
        write_table(bad, path)
    with pytest.raises(InputError, match="column candidates_scored"):
        write_table(work_rows(2).assign(candidates_scored=-1), path, "work")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]  # noqa: PTH208


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


def test_records_are_checked_and_canonical() -> None:
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
    with pytest.raises(InputError, match="column population: population 'r' is mixed with 'p'"):
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
    (problem,) = open_records(tmp_path).find_problems()
    assert problem.line == 3 and problem.fix
    (tmp_path / "labels.csv").unlink()
    with pytest.raises(InputError, match=r"table labels is missing; expected labels.parquet, labels.csv"):
        load_records(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        load_records(tmp_path / "absent")
    with pytest.raises(InputError, match="no table is called 'lables'"):
        load_records({"lables": "x.csv"})


def test_a_million_rows_validate_in_seconds() -> None:
    n = 1_000_000
    frame = pd.DataFrame(
        {
            "arm": np.repeat(["a", "b"], n // 2),
            "query_id": (np.arange(n) // 20).astype(str),
            "rank": np.tile(np.arange(1, 21), n // 20),
            "memory_id": (np.arange(n) % 1000).astype(str),
            "score": np.linspace(1, 0, n),
        }
    )
    labels = frame[["query_id", "memory_id"]].assign(policy=np.resize([1.0, 0.0, np.nan], n), scope=True)
    start = time.perf_counter()
    validate(frame, "rankings")
    assert len(validate(labels, "labels")) == n
    frame.loc[n - 1, "rank"] = 19
    (problem,) = find_problems(frame, "rankings")
    assert problem.row == n
    assert time.perf_counter() - start < 15  # about two seconds on an idle machine


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
