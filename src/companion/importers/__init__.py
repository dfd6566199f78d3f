"""Tables from what people already have: TREC files, OpenInference spans, plain JSON Lines.

Every importer returns `Imported`: checked records, and notes on everything that was decided or left out.
"""

from companion.importers import jsonl, openinference, trec
from companion.importers.common import Imported

__all__ = ["Imported", "jsonl", "openinference", "trec"]
