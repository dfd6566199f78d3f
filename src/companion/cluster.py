"""Connections to Dask clusters, for sweeps and for scoring."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from companion.errors import InputError

_PATIENCE = 30  # seconds to wait for the scheduler, and then for its first worker
_MISSING = "Dask clusters need the extra package: pip install 'admissibility-companion[cluster]'"


@contextlib.contextmanager
def connect(address: str, say: Callable[[str], None] = print, patience: float = _PATIENCE) -> Iterator[Any]:
    """Connect to a running Dask scheduler."""
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError(_MISSING) from error
    try:
        client = Client(address, timeout=patience, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"scheduler {address}: no answer ({' '.join(str(error).split())[:200]})") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=patience)
        except TimeoutError as error:
            raise InputError(f"scheduler {address}: no worker joined within {patience:g} seconds") from error
        say(f"{address}: {len(client.scheduler_info(n_workers=-1)['workers'])} workers")
        yield client


@contextlib.contextmanager
def local_cluster(workers: int) -> Iterator[Any]:
    """Start a cluster of processes on this machine, one thread each; a worker that dies is replaced."""
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise InputError(_MISSING) from error
    with (
        dask.config.set({"distributed.worker.profile.enabled": False}),  # sampling would cost much of a core
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,  # a worker that dies and is replaced is nothing to read about
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
