"""Tables from what people already have: TREC files, OpenInference spans, plain JSON Lines.

Every importer returns `Imported`: checked records, and notes on everything that was decided or left out.
"""

from companion.importers import jsonl, openinference, trec
from companion.importers.common import Imported, check_folder, tables_in

__all__ = ["Imported", "check_folder", "jsonl", "openinference", "tables_in", "trec"]
