"""A Dask cluster of separate processes that talk over TCP, as on several machines."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path


@contextlib.contextmanager
def tcp_cluster(folder: Path, workers: int = 2):
    """Start a scheduler and workers of one thread each, and yield the scheduler's address."""
    note = folder / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "tcp://127.0.0.1", "--port", "0"]
    started = [subprocess.Popen([*command, "--no-dashboard", "--scheduler-file", str(note)], **quiet)]
    try:
        for _ in range(workers):
            command = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(note)]
            command += ["--nthreads", "1", "--no-dashboard", "--local-directory", str(folder)]
            started.append(subprocess.Popen(command, **quiet))
        deadline = time.monotonic() + 60
        while not note.exists() or not note.read_text():
            assert time.monotonic() < deadline, "the scheduler did not start"
            time.sleep(0.05)
        yield json.loads(note.read_text())["address"]
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            process.kill()
            process.wait()
