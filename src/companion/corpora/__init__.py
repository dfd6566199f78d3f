"""Known corpora: a registry of loaders, each in a module of this folder.

Every module here that is not private is imported on first use of the package, and makes its corpus known by
calling `register`. A new corpus joins by adding a module; nothing else changes.
"""

from __future__ import annotations

import importlib
import pkgutil

from companion.corpora.base import (
    EVERYTHING,
    Corpus,
    CorpusSpec,
    corpora_dir,
    get,
    known,
    load,
    register,
)

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["EVERYTHING", "Corpus", "CorpusSpec", "corpora_dir", "get", "known", "load", "register"]
