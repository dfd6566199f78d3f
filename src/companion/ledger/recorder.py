"""Record a ledger from a running application, at microseconds a call.

A recorder owns a folder. Each process appends events to a segment of its own, one JSON line per event, and what
`Ledger.flush` has returned for is on disk: killing the process loses at most what was not flushed, and a line that the
kill cut short is dropped when the folder is read. A database would roll back what was not committed when the disk is
full, and could not be carried over a fork; lines are kept in memory until they are written.
"""

from __future__ import annotations

import json
import math
import operator
import os
import re
import secrets
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from companion.errors import InputError
from companion.ledger.build import KEY, check
from companion.tables import write_table
from companion.tables.problems import CONTROL

RETRIEVED, GATED, EXPOSED, DISCLOSED, STORED = "retrieved", "gated", "exposed", "disclosed", "stored"
_DTYPES = dict.fromkeys(["segment", "event", "query_id", "arm", "memory_id", "gate"], "str")
_DTYPES |= {"seq": "int64", "time": "int64", "rank": "Int64", "score": "Float64", "value": "boolean"}
_FIELDS = ["seq", "time", "event", "query_id", "arm", "memory_id", "rank", "score", "gate", "value"]
_SURROGATE = re.compile("[\ud800-\udfff]")
_HEADER = {"format": "companion-ledger", "version": 1, "fields": _FIELDS}


class Ledger:
    """A thread-safe recorder of what was retrieved, exposed and disclosed.

    Parameters
    ----------
    folder : path
        Where segments go; made if absent. Several processes may share it.
    memories : iterable of str, optional
        Ids that are stored already. Once any id is known to be stored, a step of another one is refused.
    flush_every : int
        Events after which a call flushes by itself.
    sync : bool
        Whether a flush waits for the disk (survives a power failure) or only for the operating system.

    Notes
    -----
    A call that names a memory twice at one step of a route, or one that was never stored, raises `InputError` where it
    happens and records nothing. What is exposed without having been retrieved, from a cache, is recorded: the audit
    reports it. `finish` forgets a route that is over, so that a long-running application keeps no memory of it.

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
        self, folder: Path | str, memories: Iterable[str] | None = None, *, flush_every: int = 4096, sync: bool = True
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
        # (query, route) -> event, with its gate -> memories
        self._routes: dict[tuple[str, str], dict[str, set[str]]] = {}
        self._start()
        _alive.add(self)

    def _start(self) -> None:
        """Begin a segment of this process; its file appears with the first flush."""
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._buffer: list[tuple[Any, ...]] = []
        self._next, self._written = 0, 0
        self._closed = False
        name = f"events-{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        self.segment = self.folder / name

    def stored(self, memory_id: str) -> None:
        """Record that a memory was stored. From now on, retrieving one that was not is refused."""
        with self._lock:
            _text(memory_id, "memory")
            full = self._append(STORED, None, None, memory_id, None, None, None, None)
            if self._stored is None:
                self._stored = set()
            self._stored.add(memory_id)
        self._flush_if(full)

    def retrieved(
        self, query_id: str, arm: str, memory_id: str, *, rank: int | None = None, score: float | None = None
    ) -> None:
        """Record that a route returned a memory, by default at its next rank."""
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
        """Record a whole ranked route, or the next stretch of one; if one of its memories is refused, so are all.

        ``first_rank`` is by default the one after what the route has; ``scores`` are finite, one per memory.
        """
        if isinstance(memory_ids, str):
            raise InputError(f"route: {memory_ids!r} is one id; expected a sequence of ids")
        if scores is not None:
            scores = [float(score) for score in scores]
            if len(scores) != len(memory_ids) or not all(map(math.isfinite, scores)):
                raise InputError(f"route: scores {scores}; expected {len(memory_ids)} finite numbers, one per memory")
        first_rank = None if first_rank is None else _rank(first_rank)
        self._record(RETRIEVED, query_id, arm, memory_ids, first_rank, scores)

    def gated(self, query_id: str, arm: str, memory_id: str, gate: str, allowed: bool | None) -> None:
        """Record a gate's decision on a memory, once per gate; None is unresolved."""
        if allowed is not None and not isinstance(allowed, bool):
            raise InputError(f"gate {gate!r}: decision {allowed!r}; expected True, False or None")
        self._record(GATED, query_id, arm, (memory_id,), gate=_text(gate, "gate"), value=allowed)

    def exposed(self, query_id: str, arm: str, memory_id: str) -> None:
        """Record, once, that a memory was placed in the prompt, whether or not the route retrieved it."""
        self._record(EXPOSED, query_id, arm, (memory_id,))

    def disclosed(self, query_id: str, arm: str, memory_id: str, value: bool | None) -> None:
        """Record, once, whether the answer disclosed a target, exposed or not; None is unresolved."""
        if value is not None and not isinstance(value, bool):
            raise InputError(f"disclosed: {value!r}; expected True, False or None")
        self._record(DISCLOSED, query_id, arm, (memory_id,), value=value)

    def finish(self, query_id: str, arm: str) -> None:
        """Forget a route that is over; what was recorded twice is still found when the folder is read."""
        with self._lock:
            self._routes.pop((query_id, arm), None)

    def flush(self) -> int:
        """Write what was recorded, and return how many events of this segment are on disk: a crash spares them.

        Where the segment cannot be written, `InputError` is raised, the events stay, and the next flush tries again.
        """
        with self._writing:
            return self._write()

    def close(self) -> None:
        """Flush; further calls are refused."""
        with self._writing:
            with self._lock:
                self._closed = True  # first, so that no thread adds what nobody would write
            self._write()

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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _record(
        self,
        event: str,
        query_id: str,
        arm: str,
        memories: Sequence[str],
        rank: int | None = None,
        scores: Sequence[float] | None = None,
        gate: str | None = None,
        value: bool | None = None,
    ) -> None:
        """Check a call, then append its events: all of them or none."""
        mark = event if gate is None else f"{event}:{gate}"
        unstored, again = f"is {event} without stored", f"is {mark} twice"
        if event == DISCLOSED:
            unstored, again = "is a target that was never stored", "was observed before"
        with self._lock:
            route = (_text(query_id, "query"), _text(arm, "route"))
            seen = self._routes.setdefault(route, {}).setdefault(mark, set())
            new: set[str] = set()
            for memory in memories:
                if self._stored is not None and _text(memory, "memory") not in self._stored:
                    raise InputError(_named(query_id, arm, memory, unstored))
                if _text(memory, "memory") in seen or memory in new:
                    raise InputError(_named(query_id, arm, memory, again))
                new.add(memory)
            first = len(seen) + 1 if rank is None else rank
            full = False
            for place, memory in enumerate(memories):
                score = None if scores is None else scores[place]
                own = first + place if event == RETRIEVED else None
                full = self._append(event, query_id, arm, memory, own, score, gate, value)
            seen |= new
        self._flush_if(full)

    def _append(self, event: str, *rest: Any) -> bool:
        """Add one event under the lock; tell whether the buffer is due."""
        if self._closed:
            raise InputError(f"{self.folder}: the ledger is closed; expected no further events")
        self._buffer.append((self._next, time.time_ns(), event, *rest))
        self._next += 1
        return len(self._buffer) >= self._flush_every

    def _flush_if(self, full: bool) -> None:
        """Flush unless another thread is at it: that thread, or the next call, will take these events along."""
        if full and self._writing.acquire(blocking=False):
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

    def _append_lines(self, batch: list[tuple[Any, ...]]) -> None:
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
    """Read every event that was flushed into a recorder's folder, after a crash too, by segment and sequence."""
    where = Path(folder)
    if not where.is_dir():
        raise InputError(f"{where}: no such folder; expected the folder of a recorder")
    events = [event for path in sorted(where.glob("events-*.jsonl")) for event in _read_segment(path)]
    return pd.DataFrame(events, columns=["segment", *_FIELDS], dtype=object).astype(_DTYPES)


def to_ledger(events: pd.DataFrame, memories: Iterable[str] | None = None) -> pd.DataFrame:
    """Turn events into the ledger table: one row per (query, route, memory), ``gate_<name>`` per gate.

    Not recorded means not retrieved, and not exposed; ``disclosed`` and gates are ``<NA>`` where nothing was observed.
    With ``memories`` (ids stored besides those whose storing was recorded) whatever else was never stored is refused;
    so is an event recorded twice, by whichever processes.
    """
    of_routes = events[events["event"] != STORED]
    again = of_routes.duplicated([*KEY, "event", "gate"])
    if again.any():
        row = of_routes[again].iloc[0]
        raise InputError(_named(row["query_id"], row["arm"], row["memory_id"], f"is {row['event']} twice"))
    parts = {event: part.set_index(KEY) for event, part in of_routes.groupby("event", sort=False)}
    nothing = of_routes.iloc[:0].set_index(KEY)
    index = pd.MultiIndex.from_frame(of_routes[KEY].drop_duplicates())
    found = parts.get(RETRIEVED, nothing)[["rank", "score"]].reindex(index)
    for event in (RETRIEVED, EXPOSED):
        found[event] = pd.array(index.isin(parts.get(event, nothing).index), dtype="boolean")
    found[DISCLOSED] = parts.get(DISCLOSED, nothing)["value"].reindex(index)
    for gate, part in parts.get(GATED, nothing).groupby("gate", sort=False):
        found[f"gate_{gate}"] = part["value"].reindex(index)
    if memories is None:
        return check(found.reset_index())
    known = {*memories, *events.loc[events["event"] == STORED, "memory_id"]}
    return check(found.reset_index(), pd.DataFrame({"memory_id": sorted(known)}, dtype="str"))


def _read_segment(path: Path) -> list[list[Any]]:
    """Read a segment, dropping a last line that was cut short."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    events = []
    for number, line in enumerate(raw[: raw.rfind(b"\n") + 1].splitlines()[1:], 2):
        try:
            event = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}: line {number} is damaged ({error}); expected one event") from error
        if not isinstance(event, list) or len(event) != len(_FIELDS):
            raise InputError(f"{path}: line {number} holds no event; expected a list of {len(_FIELDS)} values")
        events.append([path.stem, *event])
    return events


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
    # Half a surrogate pair would spoil the whole batch it is flushed with.
    if not isinstance(value, str) or not value or not (value.isascii() or not _SURROGATE.search(value)):
        raise InputError(f"ledger: {what} id {value!r}; expected text")
    if not value.isprintable() and CONTROL.search(value):
        raise InputError(f"ledger: {what} id {value!r}; expected text without control characters")
    return value


def _named(query_id: object, arm: object, memory_id: object, what: str) -> str:
    return f"ledger: query {query_id!r}, route {arm!r}, memory {memory_id!r} {what}"


_alive: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _restart_all() -> None:
    """Give a forked child segments of its own, without the parent's unwritten events or a lock held elsewhere."""
    for ledger in list(_alive):
        if not ledger._closed:
            ledger._start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_all)
