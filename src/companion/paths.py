"""Where the project's own files live: in a checkout, or in the copy that rides in the wheel."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from companion.errors import InputError

_CHECKOUT = Path(__file__).resolve().parents[2]


def project_root() -> Path:
    """Return the folder that holds ``data/``, ``notebooks/`` and ``book/`` (``COMPANION_PROJECT`` overrides it)."""
    stated = os.environ.get("COMPANION_PROJECT")
    packaged = Path(str(resources.files("companion"))) / "_project"
    for root in [Path(stated).expanduser()] if stated else [_CHECKOUT, packaged]:
        if os.path.isdir(root / "data" / "published"):  # noqa: PTH112 - false, not an error, for an impossible name
            return root
    raise InputError(
        f"{stated or _CHECKOUT}: no data/published in it; set COMPANION_PROJECT to a checkout of the companion"
    )


def data_dir() -> Path:
    """Return the project's ``data/`` folder (``COMPANION_DATA`` overrides it)."""
    stated = os.environ.get("COMPANION_DATA")
    return Path(stated).expanduser() if stated else project_root() / "data"


def build_dir() -> Path:
    """Return where chapters are run and the book is laid out: ``_build`` of a checkout, or the user's cache."""
    import platformdirs

    root = project_root()
    own = (root / "pyproject.toml").is_file() and os.access(root, os.W_OK)
    return root / "_build" if own else Path(platformdirs.user_cache_dir("companion")) / "build"
