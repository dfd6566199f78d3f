"""Scoring of record tables that are larger than memory: Parquet partitioned by query, one task for each part.

A folder of partitioned records holds

    queries.parquet                     all queries, in the order in which results are reported
    memories.parquet                    all memories (or a folder of Parquet files)
    rankings/part=0/*.parquet  ...      every route of the queries of part 0
    labels/part=0/*.parquet    ...      every label of these queries
    work/part=0/*.parquet      ...      optional
    partitions.json                     optional: the order of the arms

which is what ``partition`` writes, and what Spark or Dask write when they partition by a column ``part``. The scores
of a query depend on nothing but its own rows, so the parts are scored one by one by the same code that scores whole
tables, and the table of scored queries, put in order, is the same to the last bit. Only that table, the queries and
one part for each worker must fit in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from companion import logic, tables
from companion.errors import InputError
from companion.scoring.pairs import encode
from companion.scoring.routes import Recall, score_routes
from companion.tables import Origin, Records

if TYPE_CHECKING:
    import pyarrow.dataset as ds

Say = Callable[[str], None]

ROWS_PER_PART = 250_000
ARMS_FILE = "partitions.json"
_QUERIES_FILE = "queries.parquet"
_STAGING = ".partial"
_SPLIT = ("rankings", "labels", "work")
_ROUTE_COLUMNS = ("arm", "query_id", "rank", "memory_id", "population")
_ATTRIBUTES = ("source", "group", "stratum")
_OPEN_ROWS = 2_000_000  # rows held back over all parts while row groups fill up


class PartLostError(RuntimeError):
    """A cluster gave up a part, for instance because every worker that scored it died."""


@dataclass(frozen=True)
class _Options:
    """How parts are scored; the same for all."""

    arms: tuple[str, ...]
    scoring: dict[str, Any]
    defaults: dict[str, bool] = field(default_factory=dict)


# --- partitioning ------------------------------------------------------------------------------------------------


def partition(
    source: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    rows_per_part: int = ROWS_PER_PART,
) -> Path:
    """Write record tables as Parquet partitioned by query, without loading the large ones."""
    if rows_per_part < 1:
        raise InputError(f"rows_per_part {rows_per_part}: expected at least 1")
    out = Path(out)
    paths = _sources(source)
    with _all_or_nothing(out) as staging:
        _fill(staging, paths, rows_per_part)
    return out


@contextlib.contextmanager
def _all_or_nothing(out: Path) -> Iterator[Path]:
    """Give a hidden folder inside ``out``, and move what it holds up when the block ends well."""
    made = not out.exists()
    staging = out / _STAGING
    try:
        if not made and (not out.is_dir() or any(path != staging for path in out.iterdir())):
            raise InputError(f"{out}: expected a new or an empty folder")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        yield staging
        # Without its queries a folder is refused, so they come last.
        for path in sorted(staging.iterdir(), key=lambda path: path.name == _QUERIES_FILE):
            path.rename(out / path.name)
        staging.rmdir()
    except OSError as error:
        raise InputError(f"{out}: {error.strerror or error}; expected a folder that can be written") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if made and out.is_dir() and not any(out.iterdir()):
            out.rmdir()


def _fill(folder: Path, paths: Mapping[str, Path], rows_per_part: int) -> None:
    queries = tables.read_table(paths["queries"], "queries")
    index = pd.Index(queries["query_id"])
    rankings = _open(paths["rankings"], "rankings")
    parts = max(1, min(len(index), -(-rankings.count_rows() // rows_per_part)))
    part_of = np.arange(len(index)) * parts // max(1, len(index))
    arms: dict[str, None] = {}
    for name in _SPLIT:
        if name in paths:
            table = rankings if name == "rankings" else _open(paths[name], name)
            _write_parts(_marked(table, index, part_of, arms, str(paths[name])), table.schema, folder / name, parts)
    _write_stream(_open(paths["memories"], "memories"), folder / "memories.parquet")
    tables.write_table(queries, folder / _QUERIES_FILE)
    with tables.atomic_path(folder / ARMS_FILE) as path:
        path.write_text(json.dumps({"arms": list(arms), "parts": parts}, ensure_ascii=False) + "\n", encoding="utf-8")


def _sources(source: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]]) -> dict[str, Path]:
    """Find the file or folder of each table."""
    if isinstance(source, Mapping):
        found = {name: Path(path) for name, path in source.items()}
    else:
        folder = Path(source)
        if not folder.is_dir():
            raise InputError(f"{folder}: expected a folder of tables")
        names = ("memories", "queries", *_SPLIT)
        endings = ("", *tables.EXTENSIONS)
        here = [(name, folder / f"{name}{ending}") for name in names for ending in endings]
        found = {name: path for name, path in here if path.exists()}
    for name in ("memories", "queries", "labels", "rankings"):
        if name not in found:
            raise InputError(f"{source}: table {name} is missing; expected memories, queries, labels and rankings")
    return found


def _open(path: Path, name: str) -> ds.Dataset:
    """Open a table for streaming; a text file is read and checked as a whole."""
    import pyarrow.dataset as ds

    if not path.is_dir() and tables.format_of(path) != "parquet":
        return ds.dataset(pa.Table.from_pandas(tables.read_table(path, name), preserve_index=False))
    try:
        dataset = ds.dataset(path, format="parquet", exclude_invalid_files=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not Parquet that can be read ({str(error).splitlines()[0]})") from error
    absent = [column for column in tables.TABLES[name].required if column not in dataset.schema.names]
    if absent:
        raise InputError(f"{path}: column {absent[0]} is missing; expected {', '.join(tables.TABLES[name].required)}")
    for column in ("arm", "query_id", "memory_id"):
        kind = dataset.schema.field(column).type if column in dataset.schema.names else pa.string()
        if not _is_id(kind):
            raise InputError(f"{path}, column {column}: holds {kind}; expected text or whole numbers")
    return dataset


def _is_id(kind: pa.DataType) -> bool:
    """Tell whether ids may be of a type: what ``tables.validate`` takes for text, and a column without any value."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return bool(text or pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_null(kind))


def _marked(
    table: ds.Dataset, index: pd.Index, part_of: np.ndarray, arms: dict[str, None], label: str
) -> Iterator[pa.RecordBatch]:
    """Add to every row the part of its query, and note the arms in order of appearance."""
    done = 0
    for batch in table.to_batches():
        ids = _text(batch.column("query_id"))
        place = index.get_indexer(pd.Index(ids))
        if (place < 0).any():
            row = int(np.argmax(place < 0))
            found = "the field is empty" if pd.isna(ids.iloc[row]) else f"unknown id {ids.iloc[row]!r}"
            raise InputError(f"{label}: row {done + row + 1}, column query_id: {found}; expected a query_id of queries")
        done += len(ids)
        if "arm" in batch.schema.names and "rank" in batch.schema.names:
            arms.update(dict.fromkeys(_text(batch.column("arm")).dropna().unique()))
        yield batch.append_column("part", pa.array(part_of[place], pa.int32()))


def _text(column: pa.Array) -> pd.Series:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.large_string()).to_pandas().astype("str")


def _write_parts(batches: Iterable[pa.RecordBatch], schema: pa.Schema, folder: Path, parts: int) -> None:
    import pyarrow.dataset as ds

    mark = pa.field("part", pa.int32())
    ds.write_dataset(
        batches,
        folder,
        schema=schema.append(mark),
        format="parquet",
        partitioning=ds.partitioning(pa.schema([mark]), flavor="hive"),
        basename_template="rows-{i}.parquet",
        use_threads=False,  # rows keep their order
        max_partitions=max(parts, 1),
        min_rows_per_group=max(1, min(1 << 16, _OPEN_ROWS // parts)),
        max_rows_per_group=1 << 20,
    )


def _write_stream(table: ds.Dataset, path: Path) -> None:
    import pyarrow.parquet as pq

    with tables.atomic_path(path) as temporary, pq.ParquetWriter(temporary, table.schema, compression="zstd") as writer:
        for batch in table.to_batches():
            writer.write_batch(batch)


# --- scoring -----------------------------------------------------------------------------------------------------


def score_partitions(
    folder: str | os.PathLike[str],
    *,
    scheduler: Any = None,
    jobs: int = 2,
    axes: Sequence[str] = logic.AXES,
    family: str = "admissibility",
    target_recall: Recall = 0.8,
    top_k: int | None = None,
    infeasibility_cost: float = 1.0,
    arms: Sequence[str] | None = None,
    defaults: Mapping[str, bool] | None = None,
    say: Say | None = None,
) -> pd.DataFrame:
    """Score partitioned records: what ``score_routes`` gives for the whole tables, bit for bit."""
    folder = Path(folder).resolve()
    parts = list_parts(folder)
    queries = tables.read_table(folder / "queries.parquet", "queries")
    options = _Options(
        tuple(_arms(folder, parts, arms)),
        {
            "axes": tuple(axes),
            "family": family,
            "target_recall": target_recall,
            "top_k": top_k,
            "infeasibility_cost": infeasibility_cost,
        },
        dict(defaults or {}),
    )
    scored = []
    for part, (table, population) in _each_part(folder, parts, options, scheduler, jobs):
        scored.append((part, table, population))
        if say is not None:
            say(f"[{len(scored)}/{len(parts)}] part {part}: {len(table) // len(options.arms):,} queries")
    return _assembled(scored, queries, options)


def list_parts(folder: str | os.PathLike[str]) -> list[str]:
    """List the parts of partitioned records, in the order of their numbers."""
    folder = Path(folder)
    for name in ("queries.parquet", "rankings", "labels"):
        if not (folder / name).exists():
            raise InputError(f"{folder}: {name} is missing; expected partitioned records (companion partition)")
    found = {
        path.name.removeprefix("part=") for name in _SPLIT for path in (folder / name).glob("part=*") if path.is_dir()
    }
    if not found:
        raise InputError(f"{folder}: no folder rankings/part=0; expected partitioned records")
    return sorted(found, key=lambda part: (not part.isdigit(), int(part) if part.isdigit() else 0, part))


def list_arms(folder: str | os.PathLike[str]) -> list[str]:
    """List the arms of partitioned records, in order of appearance in the rankings."""
    folder = Path(folder).resolve()
    return _arms(folder, list_parts(folder), None)


def _arms(folder: Path, parts: Sequence[str], chosen: Sequence[str] | None) -> list[str]:
    """Return the arms to score, by default all, in order of appearance in the rankings."""
    stated = folder / ARMS_FILE
    if stated.is_file():
        try:
            present = [str(arm) for arm in json.loads(stated.read_text(encoding="utf-8"))["arms"]]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{stated}: not readable ({error!r}); expected what partition wrote") from error
    else:
        seen: dict[str, None] = {}
        for part in parts:
            for batch in _dataset(folder, "rankings", part).to_batches(columns=["arm"]):
                seen.update(dict.fromkeys(_text(batch.column("arm")).dropna().unique()))
        present = list(seen)
    unknown = [arm for arm in chosen or [] if arm not in present]
    if unknown:
        raise InputError(f"arm {unknown[0]!r} is not in the rankings; they hold {', '.join(present)}")
    return list(dict.fromkeys(chosen)) if chosen is not None else present


def _each_part(
    folder: Path, parts: Sequence[str], options: _Options, scheduler: Any, jobs: int
) -> Iterator[tuple[str, tuple[pd.DataFrame, str]]]:
    """Yield the scores of the parts as they are ready."""
    if jobs < 1:
        raise InputError(f"jobs {jobs}: expected at least 1")
    if scheduler is None:
        for part in parts:
            yield part, _score_part(str(folder), part, options)
    elif scheduler == "threads":
        import dask

        waiting = [dask.delayed(_score_part)(str(folder), part, options) for part in parts]
        yield from zip(parts, dask.compute(*waiting, scheduler="threads", num_workers=jobs), strict=True)
    elif scheduler == "processes":
        from companion.cluster import local_cluster

        with local_cluster(jobs) as client:
            yield from _on_client(client, folder, parts, options)
    elif isinstance(scheduler, str):
        from companion.cluster import connect

        with connect(scheduler, lambda line: None) as client:
            yield from _on_client(client, folder, parts, options)
    else:
        yield from _on_client(scheduler, folder, parts, options)


def _on_client(
    client: Any, folder: Path, parts: Sequence[str], options: _Options
) -> Iterator[tuple[str, tuple[pd.DataFrame, str]]]:
    """Fetch each result as soon as it is there: what has been fetched cannot be lost with a worker."""
    from distributed import KilledWorker, as_completed

    futures = {client.submit(_score_part, str(folder), part, options, pure=False): part for part in parts}
    for future in as_completed(list(futures), loop=client.loop):
        try:
            result = future.result()
        except KilledWorker as error:
            raise PartLostError(f"part {futures[future]}: {' '.join(str(error).split())}") from error
        future.release()
        yield futures[future], result


def _dataset(folder: Path, name: str, part: str) -> ds.Dataset:
    import pyarrow.dataset as ds

    place = folder / name / f"part={part}"
    files = sorted(str(path) for path in place.glob("*.parquet"))
    try:
        return ds.dataset(files, format="parquet")
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{place}: not Parquet that can be read ({str(error).splitlines()[0]})") from error


def _read_part(folder: Path, name: str, part: str) -> pd.DataFrame:
    """Read one table of one part; the columns that scoring does not use stay on disk."""
    if not (folder / name / f"part={part}").is_dir():
        return pd.DataFrame(columns=list(tables.TABLES[name].required), dtype=object)
    dataset = _dataset(folder, name, part)
    absent = [column for column in tables.TABLES[name].required if column not in dataset.schema.names]
    if absent:
        raise InputError(f"{name}/part={part}: column {absent[0]} is missing; expected it in every part")
    wanted = [column for column in dataset.schema.names if column != "score"]
    if name == "rankings":
        wanted = [column for column in wanted if column in _ROUTE_COLUMNS]
    try:
        return _frame(dataset.to_table(columns=wanted))
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{folder / name}, part {part}: {str(error).splitlines()[0]}; expected Parquet") from error


def _frame(table: pa.Table) -> pd.DataFrame:
    """Turn Arrow into pandas with nulls and NaN kept apart, as ``tables.read_raw`` does."""
    plain = {
        name: column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return pd.DataFrame({name: column.to_pandas(types_mapper=pd.ArrowDtype) for name, column in plain.items()})


def _score_part(folder: str, part: str, options: _Options) -> tuple[pd.DataFrame, str]:
    """Score all queries that have rows in one part; this is what a worker runs."""
    root = Path(folder)
    given: dict[str, Any] = {name: _read_part(root, name, part) for name in _SPLIT if (root / name).is_dir()}
    ids = _distinct(table["query_id"] for table in given.values())
    memory_ids = _distinct(given[name]["memory_id"] for name in ("rankings", "labels"))
    records = Records(
        memories=_needed(root / "memories.parquet", "memory_id", memory_ids),
        # Groups play no part in scores, and the driver has checked them; here they only must not be missing.
        queries=_needed(root / "queries.parquet", "query_id", ids).assign(group="any"),
        **given,
        defaults=options.defaults,
        origins={name: Origin(f"{name}/part={part}") for name in given},
    ).check()
    return _score(records, options), records.population


def _distinct(columns: Iterable[pd.Series]) -> pd.Index:
    """Return the distinct ids of several columns as text; missing ones are left for the check of the table."""
    found = [pd.Series(column.dropna().unique()).astype("str") for column in columns]
    return pd.Index(pd.concat(found).unique())


def _needed(path: Path, key: str, ids: pd.Index) -> pd.DataFrame:
    """Read id and namespace of the memories or queries that a part names, and no others."""
    import pyarrow.dataset as ds

    wanted = ds.field(key).cast(pa.large_string()).isin(pa.array(ids.astype(object), pa.large_string()))
    try:
        table = ds.dataset(path, format="parquet").to_table(columns=[key, "namespace"], filter=wanted)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from error
    return _frame(table)


def _score(records: Records, options: _Options) -> pd.DataFrame:
    """Score checked records on every arm of the whole, also on those that return nothing here."""
    pad = f"pad-{uuid.uuid4().hex}"
    assert records.rankings is not None
    rows = records.rankings[records.rankings["arm"].isin(options.arms)]
    first = pd.DataFrame({"arm": list(options.arms), "query_id": pad, "rank": 1, "memory_id": pad})
    padded = Records(
        memories=_with(records.memories, {"memory_id": pad}),
        queries=_with(records.queries, {"query_id": pad}),
        labels=records.labels,
        rankings=pd.concat([first.astype({"arm": "str"}), rows[list(first.columns)]], ignore_index=True),
        work=records.work,
        defaults=records.defaults,
    )
    table = score_routes(padded, **options.scoring)
    return table[table["query_id"] != pad].drop(columns=list(_ATTRIBUTES)).reset_index(drop=True)


def _with(table: pd.DataFrame, row: dict[str, str]) -> pd.DataFrame:
    extra = pd.DataFrame([row]).reindex(columns=table.columns).astype(table.dtypes.to_dict())
    return pd.concat([table, extra], ignore_index=True)


def _assembled(
    scored: Sequence[tuple[str, pd.DataFrame, str]], queries: pd.DataFrame, options: _Options
) -> pd.DataFrame:
    """Put the rows of all parts in the order of arms and queries, and give queries without rows theirs."""
    _check_populations(scored)
    index = pd.Index(queries["query_id"])
    pieces = [table for _, table, _ in scored]
    arms = pd.Index(options.arms, dtype="str")
    covered = pd.concat([piece["query_id"].iloc[: len(piece) // len(arms)] for piece in pieces])
    rest = queries[~index.isin(covered)]
    if len(rest):
        pieces.append(_score(_without_rows(rest), options))
    table = pd.concat(pieces, ignore_index=True)
    pieces.clear()
    place = encode(table["arm"], arms, "scores", "arm") * len(index)
    place += encode(table["query_id"], index, "scores", "query_id")
    order = np.argsort(place, kind="stable")
    repeated = np.flatnonzero(np.diff(place[order]) == 0)
    if len(repeated):
        query = table["query_id"].iloc[order[repeated[0]]]
        raise InputError(f"query {query!r} has rows in more than one part; expected all rows of a query in one")
    table = table.iloc[order].reset_index(drop=True)
    owner = np.tile(np.arange(len(index)), len(arms))
    for number, column in enumerate(_ATTRIBUTES, 2):
        table.insert(number, column, queries[column].array.take(owner))
    return table


def _without_rows(queries: pd.DataFrame) -> Records:
    def empty(name: str) -> pd.DataFrame:
        return tables.validate(pd.DataFrame(columns=list(tables.TABLES[name].required), dtype=object), name)

    return Records(empty("memories"), queries, empty("labels"), empty("rankings"))


def _check_populations(scored: Sequence[tuple[str, pd.DataFrame, str]]) -> None:
    stated = {population: part for part, _, population in scored if population != tables.OWN_RECORDS}
    if len(stated) > 1:
        (first, part), (second, other) = list(stated.items())[:2]
        raise InputError(
            f"part {other}: population {second!r} is mixed with {first!r} of part {part}; populations are never pooled"
        )
