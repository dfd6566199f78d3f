"""Scoring of record tables that are larger than memory: Parquet partitioned by query, one task for each part.

A folder of partitioned records holds ``queries.parquet`` (in the order in which results are reported),
``memories.parquet`` (or a folder of that name), and ``rankings/part=0/*.parquet`` and so on, likewise ``labels`` and
perhaps ``work``: what `partition` writes, and what Spark or Dask write when they partition by a column ``part``.
``partitions.json`` states the order of the arms and may be absent. The scores of a query depend on nothing but its
own rows, so the parts are scored one by one by the code that scores whole tables, and the result is the same to the
last bit. Only it, the queries, and one part for each worker must fit in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from companion import cluster, scoring, tables
from companion.errors import InputError
from companion.paths import new_folder
from companion.tables import Origin, Records

if TYPE_CHECKING:
    import pyarrow.dataset as ds

ROWS_PER_PART = 250_000
ARMS_FILE = "partitions.json"
_SPLIT = ("rankings", "labels", "work")
_UNUSED = frozenset({"score"})  # stays on disk
_OPEN_ROWS = 2_000_000  # rows held back over all parts while row groups fill up


class PartLostError(RuntimeError):
    """A cluster gave up a part, for instance because every worker that scored it died."""


# --- partitioning ------------------------------------------------------------------------------------------------


def partition(
    source: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    rows_per_part: int = ROWS_PER_PART,
) -> Path:
    """Write record tables as Parquet partitioned by query, without loading the large ones; all or nothing."""
    if rows_per_part < 1:
        raise InputError(f"rows_per_part {rows_per_part}: expected at least 1")
    paths = _sources(source)
    with new_folder(Path(out)) as staging:
        _fill(staging, paths, rows_per_part)
    return Path(out)


def _fill(folder: Path, paths: Mapping[str, Path], rows_per_part: int) -> None:
    import pyarrow.parquet as pq

    queries = tables.read_table(paths["queries"], "queries")
    index = pd.Index(queries["query_id"])
    rankings = _open(paths["rankings"], "rankings")
    parts = max(1, min(len(index), -(-rankings.count_rows() // rows_per_part)))
    part_of = np.arange(len(index)) * parts // max(1, len(index))
    arms: dict[str, None] = {}
    for name in _SPLIT:
        if name in paths:
            (folder / name).mkdir()  # a table without rows makes no parts
            table = rankings if name == "rankings" else _open(paths[name], name)
            _write_parts(_marked(table, index, part_of, arms, str(paths[name])), table.schema, folder / name, parts)
    memories = _open(paths["memories"], "memories")
    with pq.ParquetWriter(folder / "memories.parquet", memories.schema, compression="zstd") as writer:
        for batch in memories.to_batches():
            writer.write_batch(batch)
    tables.write_table(queries, folder / "queries.parquet")
    stated = json.dumps({"arms": list(arms), "parts": parts}, ensure_ascii=False) + "\n"
    (folder / ARMS_FILE).write_text(stated, encoding="utf-8")


def _sources(source: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]]) -> dict[str, Path]:
    """Find the file or folder of each table."""
    if isinstance(source, Mapping):
        found = {name: Path(path) for name, path in source.items()}
    else:
        folder = Path(source)
        if not folder.is_dir():
            raise InputError(f"{folder}: expected a folder of tables")
        names = ("memories", "queries", *_SPLIT)
        here = [(name, folder / f"{name}{ending}") for name in names for ending in ("", *tables.EXTENSIONS)]
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
    if not path.is_dir() and not path.is_file():
        raise InputError(f"{path}: not a regular file")
    dataset = _dataset(path)
    absent = [column for column in tables.TABLES[name].required if column not in dataset.schema.names]
    if absent:
        raise InputError(f"{path}: column {absent[0]} is missing; expected {', '.join(tables.TABLES[name].required)}")
    for column in {"arm", "query_id", "memory_id"} & set(dataset.schema.names):
        kind = dataset.schema.field(column).type
        if not _is_id(kind):
            raise InputError(f"{path}, column {column}: holds {kind}; expected text or whole numbers")
    return dataset


def _dataset(path: Path | list[str]) -> ds.Dataset:
    import pyarrow.dataset as ds

    try:
        return ds.dataset(path, format="parquet", exclude_invalid_files=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        where = path if isinstance(path, Path) else Path(path[0]).parent if path else "a part"
        raise InputError(f"{where}: not Parquet that can be read ({str(error).splitlines()[0]})") from error


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
        if {"arm", "rank"} <= set(batch.schema.names):
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
        existing_data_behavior="overwrite_or_ignore",
        use_threads=False,  # rows keep their order
        max_partitions=max(parts, 1),
        min_rows_per_group=max(1, min(1 << 16, _OPEN_ROWS // parts)),
        max_rows_per_group=1 << 20,
    )


# --- scoring -----------------------------------------------------------------------------------------------------


def score_partitions(
    folder: str | os.PathLike[str],
    *,
    scheduler: Any = None,
    jobs: int = 2,
    arms: Sequence[str] | None = None,
    defaults: Mapping[str, bool] | None = None,
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Score partitioned records: what ``score_routes`` gives for the whole tables with these options, bit for bit.

    ``scheduler`` is None (here, one part after the other), "processes" (``jobs`` of them), the address of a Dask
    scheduler, or a Dask client.
    """
    folder = Path(folder).resolve()
    if jobs < 1:
        raise InputError(f"jobs {jobs}: expected at least 1")
    parts = list_parts(folder)
    queries = tables.read_table(folder / "queries.parquet", "queries")
    order = (str(folder), list_arms(folder, arms), options, dict(defaults or {}))
    scored = []
    with contextlib.ExitStack() as stack:
        client = scheduler
        if scheduler == "processes":
            client = stack.enter_context(cluster.local_cluster(jobs))
        elif isinstance(scheduler, str):
            client = stack.enter_context(cluster.connect(scheduler, lambda line: None))
        made = (
            ((part, _score_part(part, *order)) for part in parts) if client is None else _mapped(client, parts, order)
        )
        for part, (table, population) in made:
            scored.append((part, table, population))
            if say is not None:
                say(f"[{len(scored)}/{len(parts)}] part {part}: {len(table):,} routes")
    return _assembled(scored, queries, order[1])


def _mapped(client: Any, parts: Sequence[str], order: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Fetch each result as soon as it is there: what has been fetched cannot be lost with a worker."""
    from distributed import KilledWorker, as_completed

    futures = {client.submit(_score_part, part, *order, pure=False): part for part in parts}
    for future in as_completed(list(futures), loop=client.loop):
        try:
            result = future.result()
        except KilledWorker as error:
            raise PartLostError(f"part {futures[future]}: {' '.join(str(error).split())}") from error
        future.release()
        yield futures[future], result


def list_parts(folder: str | os.PathLike[str]) -> list[str]:
    """List the parts of partitioned records, in the order of their numbers."""
    folder = Path(folder)
    for name in ("queries.parquet", "rankings", "labels"):
        if not (folder / name).exists():
            raise InputError(f"{folder}: {name} is missing; expected partitioned records (companion partition)")
    places = [path for name in _SPLIT for path in (folder / name).glob("part=*") if path.is_dir()]
    found = {path.name.removeprefix("part=") for path in places}
    if not found:
        raise InputError(f"{folder}: no folder rankings/part=0; expected partitioned records")
    return sorted(found, key=lambda part: (not part.isdecimal(), int(part) if part.isdecimal() else 0, part))


def list_arms(folder: str | os.PathLike[str], chosen: Sequence[str] | None = None) -> list[str]:
    """List the arms to score, by default all, in order of appearance in the rankings."""
    folder = Path(folder).resolve()
    stated = folder / ARMS_FILE
    if stated.is_file():
        try:
            present = [str(arm) for arm in json.loads(stated.read_text(encoding="utf-8"))["arms"]]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{stated}: not readable ({error!r}); expected what partition wrote") from error
    else:
        seen: dict[str, None] = {}
        for part in list_parts(folder):
            for batch in _part(folder, "rankings", part).to_batches(columns=["arm"]):
                seen.update(dict.fromkeys(_text(batch.column("arm")).dropna().unique()))
        present = list(seen)
    unknown = [arm for arm in chosen or [] if arm not in present]
    if unknown:
        raise InputError(f"arm {unknown[0]!r} is not in the rankings; they hold {', '.join(present)}")
    return list(dict.fromkeys(chosen)) if chosen is not None else present


def _part(folder: Path, name: str, part: str) -> ds.Dataset:
    place = folder / name / f"part={part}"
    dataset = _dataset(sorted(str(path) for path in place.glob("*.parquet")))
    absent = [column for column in tables.TABLES[name].required if column not in dataset.schema.names]
    if absent:
        raise InputError(f"{name}/part={part}: column {absent[0]} is missing; expected it in every part")
    return dataset


def _read(dataset: ds.Dataset, where: str, columns: list[str], wanted: Any = None) -> pd.DataFrame:
    """Read columns as Arrow-backed pandas: nulls and NaN stay apart, as the check of a table wants them."""
    try:
        table = dataset.to_table(columns=columns, filter=wanted)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{where}: {str(error).splitlines()[0]}; expected Parquet") from error
    plain = {
        name: column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return pd.DataFrame({name: column.to_pandas(types_mapper=pd.ArrowDtype) for name, column in plain.items()})


def _score_part(
    part: str, folder: str, arms: list[str], options: Mapping[str, Any], defaults: Mapping[str, bool]
) -> tuple[pd.DataFrame, str]:
    """Score all queries that have rows in one part; this is what a worker runs."""
    root = Path(folder)
    given: dict[str, Any] = {}
    for name in _SPLIT:
        if (root / name / f"part={part}").is_dir():
            dataset = _part(root, name, part)
            given[name] = _read(dataset, f"{name}/part={part}", [c for c in dataset.schema.names if c not in _UNUSED])
        elif (root / name).is_dir():
            given[name] = _empty(name)
    query_ids = _distinct(table["query_id"] for table in given.values())
    memory_ids = _distinct(given[name]["memory_id"] for name in ("rankings", "labels"))
    records = Records(
        memories=_needed(root / "memories.parquet", "memory_id", memory_ids),
        # Groups play no part in scores, and the driver has checked them; here they only must not be missing.
        queries=_needed(root / "queries.parquet", "query_id", query_ids).assign(group="any"),
        **given,
        defaults=defaults,
        origins={name: Origin(f"{name}/part={part}") for name in given},
    ).check()
    served = {arm for name in ("rankings", "work") if name in given for arm in getattr(records, name)["arm"].unique()}
    present = [arm for arm in arms if arm in served]
    table = scoring.score_routes(records, arms=present, **options) if present else pd.DataFrame()
    return table, records.population


def _empty(name: str) -> pd.DataFrame:
    return pd.DataFrame(columns=list(tables.TABLES[name].required), dtype=object)


def _distinct(columns: Iterable[pd.Series]) -> pd.Index:
    """Return the distinct ids of several columns as text; missing ones are left for the check of the table."""
    return pd.Index(pd.concat([pd.Series(column.dropna().unique()).astype("str") for column in columns]).unique())


def _needed(path: Path, key: str, ids: pd.Index) -> pd.DataFrame:
    """Read id and namespace of the memories or queries that a part names, and no others."""
    import pyarrow.dataset as ds

    wanted = ds.field(key).cast(pa.large_string()).isin(pa.array(ids.astype(object), pa.large_string()))
    return _read(_dataset(path), str(path), [key, "namespace"], wanted)


def _assembled(scored: Sequence[tuple[str, pd.DataFrame, str]], queries: pd.DataFrame, arms: list[str]) -> pd.DataFrame:
    """Put the rows of all parts in the order of arms and queries, with the attributes of the queries."""
    stated = {population: part for part, _, population in scored if population != tables.OWN_RECORDS}
    if len(stated) > 1:
        (first, part), (second, other) = list(stated.items())[:2]
        raise InputError(
            f"part {other}: population {second!r} is mixed with {first!r} of part {part}; populations are never pooled"
        )
    table = pd.concat([table for _, table, _ in scored], ignore_index=True)
    query = pd.Index(queries["query_id"]).get_indexer(pd.Index(table["query_id"]))
    place = pd.Index(arms).get_indexer(pd.Index(table["arm"])) * len(queries) + query
    order = np.argsort(place, kind="stable")
    repeated = np.flatnonzero(np.diff(place[order]) == 0)
    if len(repeated):
        name = table["query_id"].iloc[order[repeated[0]]]
        raise InputError(f"query {name!r} has rows in more than one part; expected all rows of a query in one")
    table, query = table.iloc[order].reset_index(drop=True), query[order]
    for column in ("source", "group", "stratum"):
        table[column] = queries[column].array.take(query)
    table.attrs["queries"] = len(queries)
    return table
