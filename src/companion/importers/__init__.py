"""Tables from what people already have: logs of memories and retrievers, spans of traces, runs of evaluations.

Every importer returns `Imported`: checked records, and notes on everything that was decided or left out. Most formats
are a `Format`, which says where things stand, read by `read`; another package adds one by an entry point of the group
``companion.importers``.
"""

from __future__ import annotations

from companion.importers import jsonl, langchain, letta, llamaindex, mem0, spans, trec, zep
from companion.importers.common import Imported, check_folder, store_is_from_log, tables_in
from companion.importers.core import read
from companion.importers.fields import Format

FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        jsonl.FORMAT, mem0.FORMAT, langchain.FORMAT, llamaindex.FORMAT, zep.FORMAT, letta.FORMAT,
        spans.OPENINFERENCE, spans.OTEL,
    )
}  # fmt: skip

__all__ = ["FORMATS", "Format", "Imported", "check_folder", "read", "store_is_from_log", "tables_in", "trec"]
