"""Where the project's own files live, in a checkout or in the wheel, and folders that appear as a whole."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from companion.errors import InputError

_CHECKOUT = Path(__file__).resolve().parents[2]
_PACKAGED = Path(str(resources.files("companion"))) / "_project"


def project_root() -> Path:
    """Return the folder that holds ``data/``, ``notebooks/`` and ``book/`` (``COMPANION_PROJECT`` overrides it)."""
    stated = os.environ.get("COMPANION_PROJECT")
    for root in [Path(stated).expanduser()] if stated else [_CHECKOUT, _PACKAGED]:
        if os.path.isdir(root / "data" / "published"):  # noqa: PTH112 - false, not an error, for an impossible name
            return root
    raise InputError(
        f"{stated or _CHECKOUT}: no data/published in it; set COMPANION_PROJECT to a checkout of the companion"
    )


def data_dir() -> Path:
    """Return the project's ``data/`` folder (``COMPANION_DATA`` overrides it)."""
    stated = os.environ.get("COMPANION_DATA")
    return Path(stated).expanduser() if stated else project_root() / "data"


def corpora_dir() -> Path:
    """Return the folder of fetched corpora: ``COMPANION_CORPORA``, or the user's data directory."""
    import platformdirs

    stated = os.environ.get("COMPANION_CORPORA")
    return Path(stated).expanduser() if stated else Path(platformdirs.user_data_dir("companion")) / "corpora"


def read_text(path: Path, most: int = 100_000_000) -> str:
    """Read a text file, but nothing that is not a regular file: a pipe would never end, nor would a device."""
    try:
        if not path.is_file():
            raise InputError(f"{path}: expected a regular file")
        if path.stat().st_size > most:
            raise InputError(f"{path}: larger than {most:,} bytes")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; expected a file that can be read") from error


def build_dir() -> Path:
    """Return where chapters are run and the book is laid out: ``_build`` of a checkout, or the user's cache."""
    import platformdirs

    root = project_root()
    if root != _PACKAGED and os.access(root, os.W_OK):
        return root / "_build"
    return Path(platformdirs.user_cache_dir("companion")) / "build"


@contextlib.contextmanager
def only_writer(target: Path) -> Iterator[None]:
    """Hold the lock beside a file or folder that is written; the system frees it however this process ends."""
    from filelock import FileLock, Timeout

    target = target.absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock"), timeout=0) as lock:
            try:
                yield
            finally:
                Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout as error:
        raise InputError(f"{target}: another process writes here; wait for it, or choose another place") from error


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give a folder to fill, and make it the new (or empty) folder ``out`` in one step when the block ends well."""
    out = out.absolute()
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out}: expected a new or an empty folder")
        with only_writer(out):
            for left in out.parent.glob(f".{glob.escape(out.name)}.*.partial"):  # by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
            try:
                staging.chmod(0o755)
                yield staging
                staging.rename(out)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise InputError(f"{out}: {error.strerror or error}; expected a folder that can be written") from error
