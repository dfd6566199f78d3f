"""LangSmith and LangChain runs: retriever runs, alone or among the child runs of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from companion.importers.fields import Format
from companion.importers.files import Row, unpacked


def _runs(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield each run and the runs below it; documents lose the envelope of LangChain's serialisation."""
    for row in rows:
        if not isinstance(row.value, dict):
            yield row
            continue
        run = dict(row.value)
        outputs = unpacked(run.get("outputs"), f"{row.where}, outputs")
        if isinstance(outputs, list):
            outputs = {"documents": outputs}
        if isinstance(outputs, dict):
            named = next((n for n in ("documents", "output", "results") if isinstance(outputs.get(n), list)), None)
            if named is not None:
                outputs = {**outputs, "documents": [_document(item) for item in outputs[named]]}
                outputs = {name: value for name, value in outputs.items() if name == "documents" or name != named}
            run["outputs"] = outputs
        children = run.pop("child_runs", None)
        yield row._replace(value=run)
        if isinstance(children, list):
            yield from _runs(
                Row(f"{row.where}, child run {place}", place, child) for place, child in enumerate(children, start=1)
            )


def _document(item: Any) -> Any:
    serialised = isinstance(item, dict) and "lc" in item and isinstance(item.get("kwargs"), dict)
    return item["kwargs"] if serialised else item


FORMAT = Format(
    "langchain",
    "LangSmith or LangChain runs, as JSON, JSON Lines or a bulk export in Parquet.",
    documents=("outputs.documents",),
    query={
        "query_id": ("id", "run_id"),
        "text": ("inputs.query", "inputs.input", "inputs.question"),
        "time": "start_time",
        "arm": "name",
        "principal": ("extra.metadata.user_id", "metadata.user_id"),
    },
    memory={
        "memory_id": ("id", "metadata.memory_id", "metadata.id", "metadata.doc_id", "metadata.chunk_id"),
        "text": "page_content",
        "time": ("metadata.created_at", "metadata.timestamp"),
        "score": ("metadata.score", "metadata.relevance_score"),
    },
    owners=tuple(
        (f"{place}metadata.{name}", f"metadata.{name}")
        for name in ("namespace", "tenant_id", "tenant", "user_id")
        for place in ("extra.", "")
    ),
    envelopes=("runs", "data"),
    prepare=_runs,
    retrieval=lambda run: str(run.get("run_type")).lower() == "retriever",
    reads=("run_type", "outputs"),
)
