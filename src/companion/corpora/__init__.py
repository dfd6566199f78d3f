"""Known corpora: a registry of loaders, each in a module of this folder that calls `register`.

`load` loads one by name; ``companion fetch`` brings the public ones here.
"""

from companion.corpora import demo, gatemem, memops, rhelm
from companion.corpora.base import EVERYTHING, Corpus, CorpusSpec, corpora_dir, get, known, load, register

__all__ = [
    "EVERYTHING",
    "Corpus",
    "CorpusSpec",
    "corpora_dir",
    "demo",
    "gatemem",
    "get",
    "known",
    "load",
    "memops",
    "register",
    "rhelm",
]
