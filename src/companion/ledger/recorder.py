"""Record a ledger from a running application, at microseconds a call (Protocol section 7).

A recorder owns a folder. Each process appends events to a segment of its own, one JSON line per event, and what
`Ledger.flush` has returned for is on disk: killing the process loses at most what was not flushed, and a line that the
kill cut short is dropped when the folder is read. `Ledger.close` turns its segment into Parquet. Segments are never
merged in place, so several processes can record into one folder, and a crash between writing the Parquet file and
removing the JSON Lines one leaves two copies of the same segment, of which the reader takes the Parquet one.
"""

from __future__ import annotations

import json
import math
import operator
import os
import secrets
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd

from companion.errors import InputError
from companion.ledger.build import KEY, check
from companion.tables import write_table
from companion.tables.problems import CONTROL

RETRIEVED, GATED, EXPOSED, DISCLOSED, STORED = "retrieved", "gated", "exposed", "disclosed", "stored"
_FIELDS = ("seq", "time", "event", "query_id", "arm", "memory_id", "rank", "score", "gate", "value")
_HEADER = {"format": "companion-ledger", "version": 1, "fields": list(_FIELDS)}
_DTYPES = {
    "segment": "str",
    "seq": "int64",
    "time": "int64",
    "event": "str",
    "query_id": "str",
    "arm": "str",
    "memory_id": "str",
    "rank": "Int64",
    "score": "Float64",
    "gate": "str",
    "value": "boolean",
}

_Event = tuple[int, int, str, str | None, str | None, str, int | None, float | None, str | None, bool | None]


class Ledger:
    """A thread-safe recorder of what was retrieved, exposed and disclosed.

    Parameters
    ----------
    folder : path
        Where segments go; made if absent. Several processes may share it.
    memories : iterable of str, optional
        Ids that are stored already. Once any id is known to be stored, retrieving another one is refused.
    flush_every : int
        Events after which a call flushes by itself.
    sync : bool
        Whether a flush waits for the disk (survives a power failure) or only for the operating system (survives
        the end of the process).

    Raises
    ------
    InputError
        The folder cannot be made, or ``flush_every`` is below 1.

    Notes
    -----
    A call that would break ``stored >= retrieved >= exposed``, or name a memory twice in a route, raises
    `InputError` where it happens and records nothing. The recorder keeps one small entry per memory of every open
    route; ``finish`` forgets a route that is over.

    Examples
    --------
    >>> import tempfile
    >>> with Ledger(tempfile.mkdtemp()) as ledger:
    ...     ledger.route("q1", "namespace_dense", ["m7", "m2"], scores=[0.9, 0.4])
    ...     ledger.exposed("q1", "namespace_dense", "m7")
    ...     ledger.disclosed("q1", "namespace_dense", "m7", True)
    >>> ledger.table()[["memory_id", "retrieved", "exposed", "disclosed"]].values.tolist()
    [['m7', True, True, True], ['m2', True, False, <NA>]]
    """

    def __init__(
        self,
        folder: Path | str,
        memories: Iterable[str] | None = None,
        *,
        flush_every: int = 4096,
        sync: bool = True,
    ) -> None:
        if flush_every < 1:
            raise InputError(f"flush_every: {flush_every}; expected at least 1")
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.folder}: cannot be made ({error.strerror}); expected a folder") from error
        self._flush_every, self._sync = flush_every, sync
        self._stored: set[str] | None = set(memories) if memories is not None else None
        # (query, arm) -> memory -> the steps it has been through
        self._routes: dict[tuple[str, str], dict[str, set[str]]] = {}
        self._observed: dict[tuple[str, str], set[str]] = {}  # (query, arm) -> targets observed in its answer
        self._start()
        _follow_forks(self)

    def _start(self) -> None:
        """Begin a segment of this process; its file appears with the first flush."""
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._buffer: list[_Event] = []
        self._next, self._written = 0, 0
        self._closed = False
        name = f"events-{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        self.segment = self.folder / name

    def stored(self, memory_id: str) -> None:
        """Record that a memory was stored. From now on, retrieving one that was not is refused."""
        with self._lock:
            if self._stored is None:
                self._stored = set()
            self._stored.add(_text(memory_id, "memory"))
            full = self._append(STORED, None, None, memory_id)
        if full:
            self._flush_if_free()

    def retrieved(
        self, query_id: str, arm: str, memory_id: str, *, rank: int | None = None, score: float | None = None
    ) -> None:
        """Record that a route returned a memory.

        Parameters
        ----------
        query_id, arm, memory_id : str
            The query, the route and the memory.
        rank : int, optional
            Place in the route; by default the next one.
        score : float, optional
            What it was ranked by.

        Raises
        ------
        InputError
            The memory was not stored, or the route has it already.
        """
        self.route(query_id, arm, (memory_id,), None if score is None else (score,), first_rank=rank)

    def route(
        self,
        query_id: str,
        arm: str,
        memory_ids: Sequence[str],
        scores: Sequence[float] | None = None,
        *,
        first_rank: int | None = None,
    ) -> None:
        """Record a whole ranked route, or the next stretch of one, in one call.

        Parameters
        ----------
        query_id, arm : str
            The query and the route.
        memory_ids : sequence of str
            In rank order.
        scores : sequence of float, optional
            One per memory.
        first_rank : int, optional
            Rank of the first; by default the one after what the route has.

        Raises
        ------
        InputError
            A memory was not stored or occurs twice in the route, the lengths differ, or the rank is below 1; nothing is
            recorded.
        """
        if isinstance(memory_ids, str):
            raise InputError(f"route: {memory_ids!r} is one id; expected a sequence of ids")
        if scores is not None:
            scores = [float(score) for score in scores]
            if len(scores) != len(memory_ids) or not all(map(math.isfinite, scores)):
                raise InputError(f"route: scores {scores}; expected {len(memory_ids)} finite numbers, one per memory")
        first_rank = None if first_rank is None else _rank(first_rank)
        with self._lock:
            held = self._routes.setdefault((_text(query_id, "query"), _text(arm, "route")), {})
            self._check_route(query_id, arm, memory_ids, held)
            rank = len(held) + 1 if first_rank is None else first_rank
            full = False
            for place, memory in enumerate(memory_ids):
                held[memory] = {RETRIEVED}
                score = None if scores is None else scores[place]
                full = self._append(RETRIEVED, query_id, arm, memory, rank + place, score)
        if full:
            self._flush_if_free()

    def gated(self, query_id: str, arm: str, memory_id: str, gate: str, allowed: bool | None) -> None:
        """Record a gate's decision on a retrieved memory; None is unresolved.

        Raises
        ------
        InputError
            The route did not retrieve the memory, or the decision is neither a bool nor None.
        """
        if allowed is not None and not isinstance(allowed, bool):
            raise InputError(f"gate {gate!r}: decision {allowed!r}; expected True, False or None")
        self._step(GATED, query_id, arm, memory_id, _text(gate, "gate"), allowed)

    def exposed(self, query_id: str, arm: str, memory_id: str) -> None:
        """Record that a retrieved memory was placed in the prompt.

        Raises
        ------
        InputError
            The route did not retrieve the memory, or it was exposed before.
        """
        self._step(EXPOSED, query_id, arm, memory_id)

    def disclosed(self, query_id: str, arm: str, memory_id: str, value: bool | None) -> None:
        """Record whether the answer disclosed a target; None is unresolved.

        The target need not have been exposed: disclosure is an observation of its own.

        Raises
        ------
        InputError
            The target was never stored, was observed before, or the value is neither a bool nor None.
        """
        if value is not None and not isinstance(value, bool):
            raise InputError(f"disclosed: {value!r}; expected True, False or None")
        with self._lock:
            self._check_stored(query_id, arm, memory_id, "is a target that was never stored")
            # Apart from the routes: a target may be observed that its route did not retrieve, or not yet.
            seen = self._observed.setdefault((_text(query_id, "query"), _text(arm, "route")), set())
            if memory_id in seen:
                raise InputError(_named(query_id, arm, memory_id, "was observed before"))
            seen.add(memory_id)
            full = self._append(DISCLOSED, query_id, arm, memory_id, None, None, None, value)
        if full:
            self._flush_if_free()

    def finish(self, query_id: str, arm: str) -> None:
        """Forget a route that is over, so that a long-running application keeps no memory of it."""
        with self._lock:
            self._routes.pop((query_id, arm), None)
            self._observed.pop((query_id, arm), None)

    def flush(self) -> int:
        """Write what was recorded; when this returns, a crash no longer loses it.

        Returns
        -------
        int
            Events of this segment that are on disk.

        Raises
        ------
        InputError
            The segment cannot be written; the events stay in memory and the next flush tries again.
        """
        with self._writing:
            return self._write()

    def close(self) -> None:
        """Flush, and turn the segment into Parquet; further calls are refused."""
        with self._writing:
            with self._lock:
                self._closed = True  # first, so that no thread adds what nobody would write
            written = self._write()
            if written and self.segment.exists():
                write_table(_read_segment(self.segment), self.segment.with_suffix(".parquet"))
                self.segment.unlink()

    def table(self) -> pd.DataFrame:
        """Return the folder's ledger, what other processes flushed included; see `to_ledger`."""
        if not self._closed:
            self.flush()
        return to_ledger(read_events(self.folder), self._stored)

    def save(self, path: Path | str) -> Path:
        """Write the folder's ledger as one table (Parquet, CSV or JSON Lines by extension)."""
        return write_table(self.table(), path)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _step(
        self, event: str, query_id: str, arm: str, memory_id: str, gate: str | None = None, value: bool | None = None
    ) -> None:
        mark = event if gate is None else f"{event}:{gate}"
        with self._lock:
            steps = self._routes.get((query_id, arm), {}).get(memory_id)
            if steps is None:
                raise InputError(_named(query_id, arm, memory_id, f"is {event} without retrieved"))
            if mark in steps:
                raise InputError(_named(query_id, arm, memory_id, f"is {mark} twice"))
            steps.add(mark)
            full = self._append(event, query_id, arm, memory_id, None, None, gate, value)
        if full:
            self._flush_if_free()

    def _append(
        self,
        event: str,
        query_id: str | None,
        arm: str | None,
        memory_id: str,
        rank: int | None = None,
        score: float | None = None,
        gate: str | None = None,
        value: bool | None = None,
    ) -> bool:
        """Add one event under the lock; tell whether the buffer is due."""
        if self._closed:
            raise InputError(f"{self.folder}: the ledger is closed; expected no further events")
        self._buffer.append((self._next, time.time_ns(), event, query_id, arm, memory_id, rank, score, gate, value))
        self._next += 1
        return len(self._buffer) >= self._flush_every

    def _check_route(self, query_id: str, arm: str, memory_ids: Sequence[str], held: dict[str, set[str]]) -> None:
        seen: set[str] = set()
        for memory in memory_ids:
            self._check_stored(query_id, arm, memory, "is retrieved without stored")
            if memory in held or memory in seen:
                raise InputError(_named(query_id, arm, memory, "is retrieved twice"))
            seen.add(memory)

    def _check_stored(self, query_id: str, arm: str, memory_id: str, what: str) -> None:
        _text(memory_id, "memory")
        if self._stored is not None and memory_id not in self._stored:
            raise InputError(_named(query_id, arm, memory_id, what))

    def _flush_if_free(self) -> None:
        """Flush unless another thread is at it: that thread, or the next call, will take these events along."""
        if self._writing.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._writing.release()

    def _write(self) -> int:
        """Append the buffer to the segment, whole lines only; the caller holds the writing lock."""
        with self._lock:
            batch, self._buffer = self._buffer, []
        if batch:
            try:
                self._append_lines(batch)
            except OSError as error:
                with self._lock:
                    self._buffer = batch + self._buffer
                raise InputError(f"{self.segment}: cannot be written ({error.strerror}); nothing was lost") from error
            self._written += len(batch)
        return self._written

    def _append_lines(self, batch: list[_Event]) -> None:
        lines = [] if self._written else [json.dumps(_HEADER)]
        lines += [json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in batch]
        data = memoryview(("\n".join(lines) + "\n").encode())
        handle = os.open(self.segment, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            length = os.fstat(handle).st_size
            try:
                while data:
                    data = data[os.write(handle, data) :]
                if self._sync:
                    os.fsync(handle)
            except OSError:
                os.ftruncate(handle, length)  # a full disk must not leave half a batch to be written again
                raise
        finally:
            os.close(handle)


def read_events(folder: Path | str) -> pd.DataFrame:
    """Read every event that was flushed into a recorder's folder, after a crash too.

    Parameters
    ----------
    folder : path
        The recorder's.

    Returns
    -------
    DataFrame
        ``segment``, ``seq`` (int64), ``time`` (int64, nanoseconds since 1970), ``event``, ``query_id``, ``arm``,
        ``memory_id``, ``rank`` (Int64), ``score`` (Float64), ``gate``, ``value`` (boolean); by segment and sequence.

    Raises
    ------
    InputError
        The folder cannot be read, or a segment is damaged before its end.
    """
    where = Path(folder)
    if not where.is_dir():
        raise InputError(f"{where}: no such folder; expected the folder of a recorder")
    names = sorted({path.stem for path in where.glob("events-*") if path.suffix in (".jsonl", ".parquet")})
    parts = []
    for name in names:
        compact = where / f"{name}.parquet"
        parts.append(_read_compact(compact) if compact.exists() else _read_segment(where / f"{name}.jsonl"))
    if not parts:
        return _frame([], "")
    return pd.concat(parts, ignore_index=True)


def to_ledger(events: pd.DataFrame, memories: Iterable[str] | None = None) -> pd.DataFrame:
    """Turn events into the ledger table (Protocol section 7).

    Parameters
    ----------
    events : DataFrame
        As :func:`read_events` returns them.
    memories : iterable of str, optional
        Ids that were stored, besides those whose storing was recorded. Without it only the recorders' own checks
        stand between a retrieval and the store.

    Returns
    -------
    DataFrame
        One row per (query, route, memory): ``query_id``, ``arm``, ``memory_id``, ``rank`` (Int64), ``score``, boolean
        ``retrieved``, ``exposed``, ``disclosed`` (``<NA>`` where nothing was observed), and ``gate_<name>`` per gate.

    Raises
    ------
    InputError
        Exposed or gated without retrieved, retrieved without stored, or an event recorded twice, by whichever
        processes: each with its names.
    """
    of_routes = events[events["event"] != STORED]
    _refuse_second(of_routes)
    rows = of_routes[KEY].drop_duplicates(ignore_index=True)
    first = of_routes[of_routes["event"] == RETRIEVED]
    ledger = rows.merge(first[[*KEY, "rank", "score"]].assign(retrieved=True), on=KEY, how="left")
    ledger["retrieved"] = ledger["retrieved"].eq(True).astype("boolean")  # not recorded means not retrieved
    shown = of_routes[of_routes["event"] == EXPOSED]
    ledger = ledger.merge(shown[KEY].assign(exposed=True), on=KEY, how="left")
    ledger["exposed"] = ledger["exposed"].eq(True).astype("boolean")
    for event, name in ((DISCLOSED, "disclosed"), (GATED, "gate")):
        ledger = _with_values(ledger, of_routes[of_routes["event"] == event], name)
    _refuse_unretrieved(ledger)
    if memories is None:
        return check(ledger)
    known = {*memories, *events.loc[events["event"] == STORED, "memory_id"]}
    return check(ledger, pd.DataFrame({"memory_id": sorted(known)}, dtype="str"))


def _with_values(ledger: pd.DataFrame, events: pd.DataFrame, name: str) -> pd.DataFrame:
    """Join observed values: one column for disclosures, one per gate for gates."""
    if name == "disclosed":
        return ledger.merge(events[[*KEY, "value"]].rename(columns={"value": name}), on=KEY, how="left")
    for gate, part in events.groupby("gate", sort=False):
        ledger = ledger.merge(part[[*KEY, "value"]].rename(columns={"value": f"gate_{gate}"}), on=KEY, how="left")
    return ledger


def _refuse_unretrieved(ledger: pd.DataFrame) -> None:
    gates = [name for name in ledger if str(name).startswith("gate_")]
    wrong = ~ledger["retrieved"] & (ledger["exposed"] | ledger[gates].notna().any(axis=1))
    if wrong.any():
        row = ledger.iloc[int(wrong.to_numpy(bool).argmax())]
        what = "is exposed without retrieved" if row["exposed"] else "is gated without retrieved"
        raise InputError(_named(row["query_id"], row["arm"], row["memory_id"], what))


def _refuse_second(events: pd.DataFrame) -> None:
    again = events.duplicated([*KEY, "event", "gate"])
    if again.any():
        row = events.iloc[int(again.to_numpy().argmax())]
        raise InputError(_named(row["query_id"], row["arm"], row["memory_id"], f"is {row['event']} twice"))


def _read_segment(path: Path) -> pd.DataFrame:
    """Read a JSON Lines segment, dropping a last line that was cut short."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    whole = raw[: raw.rfind(b"\n") + 1].splitlines()
    events = []
    for number, line in enumerate(whole[1:], 2):
        try:
            event = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}: line {number} is damaged ({error}); expected one event") from error
        if not isinstance(event, list) or len(event) != len(_FIELDS):
            raise InputError(f"{path}: line {number} holds no event; expected a list of {len(_FIELDS)} values")
        events.append(event)
    return _frame(events, path.stem)


def _read_compact(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path).astype(_DTYPES)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: cannot be read ({error}); expected a segment of events") from error


def _frame(events: list[list[Any]], segment: str) -> pd.DataFrame:
    table = pd.DataFrame(events, columns=list(_FIELDS), dtype=object)
    table.insert(0, "segment", segment)
    return table.astype(_DTYPES)


def _rank(value: object) -> int:
    """Take a rank as a plain integer, NumPy's own included."""
    try:
        rank = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        rank = -1
    if rank < 1:
        raise InputError(f"route: rank {value!r}; expected a whole number of at least 1")
    return rank


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value or not (value.isascii() or _encodable(value)):
        raise InputError(f"ledger: {what} id {value!r}; expected text")
    if not value.isprintable() and CONTROL.search(value):
        raise InputError(f"ledger: {what} id {value!r}; expected text without control characters")
    return value


def _encodable(value: str) -> bool:
    """Tell whether text can be written: a lone surrogate would spoil the whole batch it is flushed with."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _named(query_id: object, arm: object, memory_id: object, what: str) -> str:
    return f"ledger: query {query_id!r}, route {arm!r}, memory {memory_id!r} {what}"


_alive: weakref.WeakSet[Ledger] = weakref.WeakSet()
_hooked = False


def _follow_forks(ledger: Ledger) -> None:
    """Give a forked child a segment of its own, without the parent's unwritten events or a lock held elsewhere."""
    global _hooked
    _alive.add(ledger)
    if not _hooked and hasattr(os, "register_at_fork"):
        _hooked = True
        os.register_at_fork(after_in_child=_restart_all)


def _restart_all() -> None:
    for ledger in list(_alive):
        if not ledger._closed:
            ledger._start()
