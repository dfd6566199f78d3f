"""Partitioned records: equal to the whole to the last bit, on every scheduler, also when a worker dies."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from _cluster import tcp_cluster
from typer.testing import CliRunner

from companion import scoring, tables
from companion.bootstrap import Resampling
from companion.errors import InputError
from companion.paths import only_writer
from companion.stages import partitioned as scale

QUERIES, ARMS, DEPTH, MEMORIES, PARTS = 120, 4, 12, 300, 6


def messy(seed: int = 0) -> dict[str, pd.DataFrame]:
    """Records with every kind of gap: shuffled rows, missing routes, an arm with one route, queries without rows."""
    rng = np.random.default_rng(seed)
    memory = np.array([f"m{i:03d}" for i in range(MEMORIES)])
    query = np.array([f"q{i:03d}" for i in range(QUERIES)])
    space = np.array([f"n{i}" for i in range(7)])
    queries = pd.DataFrame(
        {
            "query_id": query,
            "namespace": np.where(rng.random(QUERIES) < 0.1, None, space[rng.integers(0, 7, QUERIES)]),
            "group": [f"g{i % 11}" for i in range(QUERIES)],
            "source": np.where(np.arange(QUERIES) < 50, "left", "right"),
        }
    )
    memories = pd.DataFrame({"memory_id": memory, "namespace": space[rng.integers(0, 7, MEMORIES)]})
    routes, labels = [], []
    for q in range(QUERIES):
        pool = rng.choice(MEMORIES, 30, replace=False)
        for arm in range(ARMS):
            only = arm == 3  # returns something for a single query, and first of all arms
            length = DEPTH if not only else 5
            if (only and q != 77) or (not only and rng.random() < 0.1) or q == 119:
                continue
            items = memory[rng.permutation(pool)[:length]]
            routes.append(
                pd.DataFrame(
                    {"arm": f"arm-{arm}", "query_id": query[q], "rank": range(1, length + 1), "memory_id": items}
                )
            )
        if q == 10:  # nothing is known of it: recall cannot be evaluated
            continue
        listed = pool[:15]
        anchor = np.arange(15) < 3
        axes = {a: rng.choice([True, False, None], 15, p=[0.6, 0.2, 0.2]) for a in ("scope", "policy", "lifecycle")}
        table = {axis: np.where(anchor, True, values) for axis, values in axes.items()}
        names = np.where(anchor & (rng.random(15) < 0.5), "shared", None)
        labels.append(
            pd.DataFrame(
                {"query_id": query[q], "memory_id": memory[listed], "relevant": np.where(anchor, True, None)}
                | table
                | {"anchor_id": names}
            )
        )
    rankings = pd.concat(routes).sample(frac=1, random_state=seed)
    rankings = pd.concat([rankings[rankings["arm"] == "arm-3"], rankings[rankings["arm"] != "arm-3"]])
    work = rankings[["arm", "query_id"]].drop_duplicates()
    work = work.assign(candidates_scored=rng.integers(1, 10**6, len(work)))
    return {
        "memories": memories,
        "queries": queries,
        "labels": pd.concat(labels).sample(frac=1, random_state=seed),
        "rankings": rankings,
        "work": work,
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    for name, table in messy().items():
        tables.write_table(table, folder / f"{name}.parquet", name)
    return folder


@pytest.fixture(scope="module")
def parts(whole, tmp_path_factory):
    out = scale.partition(whole, tmp_path_factory.mktemp("parts"), rows_per_part=660)
    assert len(scale.list_parts(out)) == PARTS
    return out


OPTIONS = [
    {},
    {"top_k": 5, "target_recall": "2/3", "infeasibility_cost": 0.25},
    {"axes": ["policy", "lifecycle"], "family": "non_usable", "target_recall": 1.0},
    {"arms": ["arm-2", "arm-3"], "target_recall": 0},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_equals_the_whole_to_the_last_bit(whole, parts, options):
    want = scoring.score_routes(tables.load_records(whole), **options)
    got = scale.score_partitions(parts, **options)
    pd.testing.assert_frame_equal(got, want, check_exact=True)
    assert got["feasible"].isna().any()
    assert options.get("target_recall") == 0 or (got["any_violation"] == 1).any()


def test_intervals_equal_those_of_the_whole(whole, parts):
    want = scoring.summarise(
        scoring.score_routes(tables.load_records(whole)), reference="arm-0", resampling=Resampling(replicates=300)
    )
    got = scoring.summarise(scale.score_partitions(parts), reference="arm-0", resampling=Resampling(replicates=300))
    for name in ("arms", "intervals", "contrasts"):
        pd.testing.assert_frame_equal(getattr(got, name), getattr(want, name), check_exact=True)


def test_defaults_of_the_corpus_reach_the_parts(whole, parts):
    defaults = {"policy": True, "lifecycle": False}
    want = scoring.score_routes(tables.load_records(whole, defaults=defaults))
    got = scale.score_partitions(parts, defaults=defaults)
    pd.testing.assert_frame_equal(got, want, check_exact=True)
    assert not got.equals(scale.score_partitions(parts))


def test_any_number_of_parts_gives_the_same(whole, parts, tmp_path):
    want = scale.score_partitions(parts)
    for rows in (10**9, 2000, 1):
        out = scale.partition(whole, tmp_path / str(rows), rows_per_part=rows)
        assert len(scale.list_parts(out)) == {10**9: 1, 2000: 2, 1: QUERIES}[rows]
        if rows > 1:  # 120 parts take long, and show nothing new
            pd.testing.assert_frame_equal(scale.score_partitions(out), want, check_exact=True)


def test_partitions_keep_every_row(whole, parts):
    for name in ("rankings", "labels", "work"):
        before = tables.read_table(whole / f"{name}.parquet", name)
        pieces = [pq.read_table(path, partitioning=None) for path in sorted((parts / name).rglob("*.parquet"))]
        after = tables.validate(pa.concat_tables(pieces).to_pandas(types_mapper=pd.ArrowDtype), name)
        by = [column for column in ("arm", "query_id", "rank", "memory_id", "anchor_id") if column in before]
        left, right = (table.sort_values(by, ignore_index=True) for table in (before, after))
        pd.testing.assert_frame_equal(left, right)


def test_csv_and_json_lines_can_be_partitioned(whole, parts, tmp_path):
    source = tmp_path / "text"
    for name, table in messy().items():
        tables.write_table(table, source / f"{name}.{'csv' if name != 'labels' else 'jsonl'}", name)
    got = scale.score_partitions(scale.partition(source, tmp_path / "parts", rows_per_part=900))
    pd.testing.assert_frame_equal(got, scale.score_partitions(parts), check_exact=True)


def test_partitions_made_by_others_need_no_list_of_arms(parts, whole, tmp_path):
    """Dictionary columns, several files in a part, memories as a folder, and nothing but the layout."""
    out = tmp_path / "own"
    for name in ("rankings", "labels", "work"):
        table = tables.read_table(whole / f"{name}.parquet", name)
        home = table["query_id"].str[1:].astype(int) % 3
        for part in range(3):
            rows = table[home == part]
            (out / name / f"part={part}").mkdir(parents=True)
            for number, half in enumerate((rows.iloc[::2], rows.iloc[1::2])):
                arrow = pa.Table.from_pandas(half, preserve_index=False)
                place = arrow.column_names.index("query_id")
                coded = arrow.column("query_id").cast(pa.string()).dictionary_encode()
                pq.write_table(arrow.set_column(place, "query_id", coded), out / name / f"part={part}/{number}.parquet")
    tables.write_table(messy()["queries"], out / "queries.parquet", "queries")
    memories = messy()["memories"]
    for number, piece in enumerate((memories.iloc[:100], memories.iloc[100:])):
        tables.write_table(piece, out / "memories.parquet" / f"{number}.parquet")
    got = scale.score_partitions(out)
    want = scale.score_partitions(parts, arms=list(dict.fromkeys(got["arm"])))
    pd.testing.assert_frame_equal(got, want, check_exact=True)


def break_part(parts, tmp_path, name, change):
    """Copy partitioned records and change one part of one table."""
    import shutil

    out = tmp_path / "broken"
    shutil.copytree(parts, out)
    path = next((out / name / "part=3").glob("*.parquet"))
    tables.write_table(change(pd.read_parquet(path, partitioning=None)), path)
    return out


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("rankings", lambda t: t.assign(memory_id="nobody"), "rankings/part=3"),
        ("rankings", lambda t: t[t["rank"] != 2], "rankings/part=3"),
        ("labels", lambda t: t.assign(policy=2), "labels/part=3, row 1"),
        ("labels", lambda t: t.drop(columns="memory_id"), "labels/part=3"),
        ("labels", lambda t: pd.concat([t, t.iloc[:1]]), "labels/part=3"),
        ("work", lambda t: t.assign(query_id="q000"), "work/part=3|more than one part"),
    ],
)
def test_bad_rows_are_refused_and_the_part_is_named(parts, tmp_path, name, change, said):
    with pytest.raises(InputError, match=said):
        scale.score_partitions(break_part(parts, tmp_path, name, change))


def test_a_query_in_two_parts_is_refused(parts, tmp_path):
    moved = pd.read_parquet(next((parts / "rankings/part=5").glob("*.parquet")), partitioning=None)
    query = moved["query_id"].iloc[0]
    row = moved[(moved["query_id"] == query) & (moved["rank"] == 1)].head(1)
    broken = break_part(parts, tmp_path, "rankings", lambda table: pd.concat([table, row]))
    with pytest.raises(InputError, match=f"query '{query}' has rows in more than one part"):
        scale.score_partitions(broken)


def test_populations_are_not_pooled_over_parts(whole, tmp_path):
    table = tables.read_table(whole / "rankings.parquet", "rankings")
    late = table["query_id"] >= "q060"  # the second of two parts
    source = {name: whole / f"{name}.parquet" for name in ("memories", "queries", "labels")}
    source["rankings"] = tmp_path / "rankings.parquet"
    table.assign(population=np.where(late, "ours", "theirs")).to_parquet(source["rankings"])
    out = scale.partition(source, tmp_path / "parts", rows_per_part=2000)
    with pytest.raises(InputError, match="part 1: population 'ours' is mixed with 'theirs' of part 0"):
        scale.score_partitions(out)


def test_bad_requests_are_refused(whole, parts, tmp_path):
    with pytest.raises(InputError, match="empty folder"):
        scale.partition(whole, parts)
    with pytest.raises(InputError, match="rankings"):
        scale.partition({name: whole / f"{name}.parquet" for name in ("memories", "queries", "labels")}, tmp_path / "a")
    with pytest.raises(InputError, match="partitioned records"):
        scale.score_partitions(whole)
    with pytest.raises(InputError, match="arm 'none'"):
        scale.score_partitions(parts, arms=["none"])
    with pytest.raises(InputError, match="jobs 0"):
        scale.score_partitions(parts, jobs=0)
    strange = tmp_path / "rankings.parquet"
    tables.write_table(messy()["rankings"].assign(query_id="unheard"), strange)
    source = {name: whole / f"{name}.parquet" for name in ("memories", "queries", "labels")}
    with pytest.raises(InputError, match=r"rankings.parquet: row 1, column query_id: unknown id 'unheard'"):
        scale.partition({**source, "rankings": strange}, tmp_path / "b")
    one = pd.DataFrame({"arm": "a", "query_id": "q001", "rank": 1, "memory_id": "m001"}, index=range(300_000))
    one.assign(query_id=one["query_id"].mask(one.index == 299_998, "unheard")).to_parquet(strange)
    with pytest.raises(InputError, match="row 299999, column query_id"):  # of the file, not of a batch
        scale.partition({**source, "rankings": strange}, tmp_path / "b")
    strange.write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="not Parquet"):
        scale.partition({**source, "rankings": strange}, tmp_path / "c")


def test_a_partition_that_fails_leaves_nothing_in_the_way_of_the_next_one(whole, parts, tmp_path):
    source = {name: whole / f"{name}.parquet" for name in messy()}
    bad = tmp_path / "labels.csv"
    tables.write_table(tables.read_table(source["labels"], "labels"), bad)
    bad.write_text(bad.read_text().replace("1,", "maybe,", 1))
    new, given = tmp_path / "new", tmp_path / "given"
    given.mkdir()
    for out in (new, given):
        with pytest.raises(InputError, match="'maybe' is not accepted"):
            scale.partition({**source, "labels": bad}, out)
    assert not new.exists()
    assert list(given.iterdir()) == []
    # What kill -9 leaves stands beside, hidden, and the next attempt removes it.
    left = tmp_path / ".given.x1.partial"
    (left / "rankings").mkdir(parents=True)
    for out in (new, given):
        scale.partition(source, out, rows_per_part=660)
        assert {path.name for path in out.iterdir()} == {path.name for path in parts.iterdir()}
        pd.testing.assert_frame_equal(scale.score_partitions(out), scale.score_partitions(parts), check_exact=True)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_of_two_writers_one_wins(whole, tmp_path):
    with only_writer(tmp_path / "out"), pytest.raises(InputError, match="another process writes here"):
        scale.partition(whole, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    scale.partition(whole, tmp_path / "out")


def test_an_id_column_that_is_no_text_is_refused_in_words(whole, tmp_path):
    source = {name: whole / f"{name}.parquet" for name in messy()}
    odd = tmp_path / "rankings.parquet"
    for values in ([[1]], [None], [1.5], [True], [{"a": 1}], [b"q001"]):
        table = pa.table({"arm": ["a"], "query_id": values, "rank": [1], "memory_id": ["m001"]})
        pq.write_table(table, odd)
        with pytest.raises(InputError, match=r"rankings.parquet.*query_id"):
            scale.partition({**source, "rankings": odd}, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_refused(whole, tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(InputError, match="expected a new or an empty folder"):
        scale.partition(whole, file)
    with pytest.raises(InputError, match="expected a folder that can be written"):
        scale.partition(whole, file / "inside")


def test_command_prints_what_score_prints(whole, parts):
    from companion.cli import app

    options = ["--reference", "arm-0", "--replicates", "200", "--json"]
    files = [word for name in messy() for word in (f"--{name}", str(whole / f"{name}.parquet"))]
    here = CliRunner().invoke(app, ["score", *files, *options])
    there = CliRunner().invoke(app, ["score-parts", str(parts), *options])
    assert here.exit_code == there.exit_code == 0, there.output
    assert json.loads(there.stdout) == json.loads(here.stdout)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--replicates", "0"], "replicates is 0"),
        (["--confidence", "2"], "confidence is 2.0"),
        (["--seed", "-1"], "seed is -1"),
        (["--reference", "none"], "reference 'none' is not among the arms; they are arm-3, arm-"),
        (["--per-query", "x.txt"], "the extension '.txt' is unknown"),
        (["--target-recall", "2"], "target recall '2'"),
        (["--axes", "none"], "axes none"),
    ],
)
def test_options_are_checked_before_any_part_is_scored(parts, option, said, monkeypatch):
    from companion.cli import app

    monkeypatch.setattr(scale, "_score_part", lambda *arguments: pytest.fail("a part was scored"))
    if option[0] in ("--target-recall", "--axes"):  # the first part refuses these
        monkeypatch.undo()
    done = CliRunner().invoke(app, ["score-parts", str(parts), *option])
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)
    assert "[1/" not in done.output


# --- clusters ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_and_a_dead_worker(parts):
    """Two local workers, one killed after the first result: only what it held is scored again."""
    from companion.cluster import local_cluster

    want = scale.score_partitions(parts)
    fetched, killed = [], []
    with local_cluster(2) as client:
        pd.testing.assert_frame_equal(scale.score_partitions(parts, scheduler=client), want, check_exact=True)
        before = _starts(client)
        assert set(before.values()) == {1}
        pids = client.run(os.getpid)

        def kill_one(line: str) -> None:
            fetched.append(line)
            if not killed:
                killed.append(next(iter(pids.values())))
                os.kill(killed[0], signal.SIGKILL)

        got = scale.score_partitions(parts, scheduler=client, say=kill_one)
        starts = {key: count for key, count in _starts(client).items() if key not in before}
        after = set(client.run(os.getpid).values())
    assert killed[0] not in after
    pd.testing.assert_frame_equal(got, want, check_exact=True)
    assert len(fetched) == len(starts) == PARTS
    # Running, waiting on the dead worker, or done there and not yet fetched.
    assert 1 <= sum(starts.values()) - len(starts) <= 4


def _starts(client) -> dict[str, int]:
    """Count how often the scheduler sent each part to a worker."""

    def count(dask_scheduler):
        found: dict[str, int] = {}
        for entry in dask_scheduler.transition_log:
            if entry[2] == "processing" and str(entry[0]).startswith("_score_part"):
                found[str(entry[0])] = found.get(str(entry[0]), 0) + 1
        return found

    return client.run_on_scheduler(count)


@pytest.mark.slow
def test_a_scheduler_of_its_own_over_tcp(parts, tmp_path):
    want = scale.score_partitions(parts, top_k=8)
    with tcp_cluster(tmp_path) as address:
        assert address.startswith("tcp://")
        got = scale.score_partitions(parts, scheduler=address, top_k=8)
        with pytest.raises(InputError, match="part=3"):
            scale.score_partitions(
                break_part(parts, tmp_path, "rankings", lambda table: table.assign(memory_id="nobody")),
                scheduler=address,
            )
    pd.testing.assert_frame_equal(got, want, check_exact=True)


def test_nobody_at_the_address():
    from companion import cluster

    with pytest.raises(InputError, match="no answer"), cluster.connect("tcp://127.0.0.1:9", patience=0.5):
        pass
