"""Cost of a recorder call: one thread and eight, with and without waiting for the disk.

Run with ``python benchmarks/recorder.py [EVENTS]``; prints a Markdown table of microseconds per event, flushes and the
final write included. The first row, appending the same tuple to a plain list under a lock, is the floor.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable

from companion.ledger import Ledger, read_events


def floor(events: int) -> tuple[float, float, int]:
    """Append tuples to a list under a lock."""
    lock, kept = threading.Lock(), []
    start = time.perf_counter()
    for i in range(events):
        with lock:
            kept.append((i, time.time_ns(), "retrieved", f"q{i // 25}", "r", f"m{i % 25}", i % 25, None, None, None))
    return time.perf_counter() - start, 0.0, len(kept)


def record(events: int, threads: int, sync: bool) -> tuple[float, float, int]:
    """Record routes of 20 memories of which 5 are exposed; return seconds of calls, of closing, and events found."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(folder, sync=sync)
        share = events // threads // 25

        def work(number: int) -> None:
            memories = [f"m{i}" for i in range(20)]
            for i in range(share):
                query = f"q{number}-{i}"
                for memory in memories:
                    ledger.retrieved(query, "r", memory)
                for memory in memories[:5]:
                    ledger.exposed(query, "r", memory)
                ledger.finish(query, "r")

        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        called = time.perf_counter() - start
        ledger.close()
        return called, time.perf_counter() - start - called, len(read_events(folder))


def main(events: int) -> None:
    """Run every case three times and print the best."""
    cases: dict[str, Callable[[], tuple[float, float, int]]] = {
        "list under a lock (floor)": lambda: floor(events),
        "1 thread": lambda: record(events, 1, sync=False),
        "1 thread, fsync": lambda: record(events, 1, sync=True),
        "8 threads": lambda: record(events, 8, sync=False),
        "8 threads, fsync": lambda: record(events, 8, sync=True),
    }
    print("| case | events | µs per call | µs per event to close as Parquet |")
    print("| --- | ---: | ---: | ---: |")
    for name, run in cases.items():
        called, closed, found = min(run() for _ in range(3))
        if found != events:
            raise SystemExit(f"{name}: {found} events found, {events} recorded")
        print(f"| {name} | {found:,} | {1e6 * called / found:.2f} | {1e6 * closed / found:.2f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
