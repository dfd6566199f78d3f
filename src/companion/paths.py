"""Where the project's own data live, in a checkout and in an editable installation."""

from __future__ import annotations

import os
from pathlib import Path

from companion.errors import InputError


def project_root() -> Path:
    """Return the folder that holds ``pyproject.toml``, ``data/`` and ``notebooks/``."""
    stated = os.environ.get("COMPANION_PROJECT")
    root = Path(stated).expanduser() if stated else Path(__file__).resolve().parents[2]
    if not (root / "data" / "published").is_dir():
        raise InputError(
            f"{root}: not a checkout of the companion (no data/published in it); "
            "set COMPANION_PROJECT to the folder that holds pyproject.toml"
        )
    return root


def data_dir() -> Path:
    """Return the project's ``data/`` folder (``COMPANION_DATA`` overrides it)."""
    stated = os.environ.get("COMPANION_DATA")
    return Path(stated).expanduser() if stated else project_root() / "data"
