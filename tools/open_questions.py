"""Run both studies of chapter 08 on a public corpus and keep them: ``python tools/open_questions.py rhelm``.

The corpus has to be here (``companion fetch``); vectors are cached, so a second run takes minutes.
"""

from __future__ import annotations

import sys

from companion import corpora
from companion.paths import data_dir
from companion.stages.open_questions import graph_study, inference_study, keep, searched

EVERY = {"rhelm": 1, "gatemem": 4}
"""Each how many-th query is taken: two of every episode of GateMem."""

SEEDS = (0, 1, 2)


def main(name: str, studies: list[str]) -> None:
    """Run and keep the studies of one corpus: ``inferred``, ``graph``, or both."""
    search = searched(name, every=EVERY[name])
    corpus, tables = search.corpus, {}
    if "inferred" in studies:
        tables["inferred"], tables["accuracy"] = inference_study(search, seeds=SEEDS)
    if "graph" in studies:
        tables["graph"] = graph_study(search, seeds=SEEDS)
    about = {
        "name": name,
        "population": corpus.population,
        "licence": corpus.licence,
        "revision": corpora.get(name).revision,
        "command": f"python tools/open_questions.py {name}",
        "encoder": search.encoder.settings,
        "settings": {"top_k": 20, "target_recall": 0.8, "seeds": list(SEEDS), "every": EVERY[name]},
    }
    keep(data_dir() / "open_questions" / name, tables, about)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or ["inferred", "graph"])
