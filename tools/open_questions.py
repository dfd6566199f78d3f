"""Run both studies of chapter 08 on a public corpus and keep them: ``python tools/open_questions.py rhelm``.

The corpus has to be here (``companion fetch``); vectors are cached, so a second run takes minutes.
"""

from __future__ import annotations

import sys

from companion import corpora
from companion.paths import data_dir
from companion.stages.open_questions import graph_study, inference_study, keep, searched

EVERY = {"rhelm": 1, "gatemem": 2}
"""Each how many-th query is taken."""

SEEDS = (0, 1, 2)


def main(name: str) -> None:
    """Run and keep both studies of one corpus."""
    print(f"{name}: inferred namespaces", flush=True)
    search = searched(name, every=EVERY[name])
    inferred, accuracy = inference_study(search, seeds=SEEDS)
    print(f"{name}: graph selectors", flush=True)
    graph = graph_study(search, seeds=SEEDS)
    corpus = search.corpus
    about = {
        "name": name,
        "population": corpus.population,
        "licence": corpus.licence,
        "revision": corpora.get(name).revision,
        "command": f"python tools/open_questions.py {name}",
        "encoder": search.encoder.settings,
        "settings": {"top_k": 20, "target_recall": 0.8, "seeds": list(SEEDS), "every": EVERY[name]},
    }
    keep(data_dir() / "open_questions" / name, {"inferred": inferred, "accuracy": accuracy, "graph": graph}, about)


if __name__ == "__main__":
    main(sys.argv[1])
