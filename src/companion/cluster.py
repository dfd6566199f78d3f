"""Connections to Dask clusters, for sweeps and for scoring."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from companion.errors import InputError
from companion.extras import advice

_PATIENCE = 30  # seconds to wait for the scheduler, and then for its first worker


def cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextlib.contextmanager
def connect(address: str, say: Callable[[str], None] = print, patience: float = _PATIENCE) -> Iterator[Any]:
    """Connect to a running Dask scheduler."""
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError(advice("distributed") or "") from error
    try:
        client = Client(address, timeout=patience, set_as_default=False)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"scheduler {address}: no answer ({' '.join(str(error).split())[:200]})") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=patience)
        except TimeoutError as error:
            raise InputError(f"scheduler {address}: no worker joined within {patience:g} seconds") from error
        say(f"{address}: {len(client.scheduler_info(n_workers=-1)['workers'])} workers")
        yield client


@contextlib.contextmanager
def local_cluster(
    workers: int, environment: Mapping[str, str] | None = None, deaths: int = 3, scratch: str | None = None
) -> Iterator[Any]:
    """Start processes on this machine, one thread each; one that dies is replaced, a task may cost ``deaths`` more."""
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise InputError(advice("distributed") or "") from error
    settings = {
        "distributed.worker.profile.enabled": False,  # sampling would cost much of a core
        "distributed.scheduler.allowed-failures": deaths,
        "distributed.worker.memory.terminate": False,
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,  # a worker that dies and is replaced is nothing to read about
            env=dict(environment or {}),
            local_directory=scratch,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
