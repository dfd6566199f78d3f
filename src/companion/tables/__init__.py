"""The record tables: what they hold, how they are read and written, and what is refused.

Seven tables (`TABLES`) carry everything the method needs. In memory they are pandas frames with fixed dtypes; on disk
they are Parquet, CSV, TSV, JSON or JSON Lines, the text formats also packed (.gz). Unresolved is <NA> in memory, a null
or an empty field on disk, and nothing in this package turns it into yes or no.
"""

from __future__ import annotations

from companion.tables.checks import examine, find_problems, schema_of, validate
from companion.tables.files import EXTENSIONS, atomic_path, format_of, guard, read_raw, read_table, write_table
from companion.tables.problems import Origin, Problem, listing
from companion.tables.records import OWN_RECORDS, Folder, Records, examine_folder, load_records
from companion.tables.rules import AXIS_COLUMNS, Rule
from companion.tables.schema import INTENTS, STATES, TABLES, Column, Schema, json_schema

__all__ = [
    "AXIS_COLUMNS",
    "EXTENSIONS",
    "INTENTS",
    "OWN_RECORDS",
    "STATES",
    "TABLES",
    "Column",
    "Folder",
    "Origin",
    "Problem",
    "Records",
    "Rule",
    "Schema",
    "atomic_path",
    "examine",
    "examine_folder",
    "find_problems",
    "format_of",
    "guard",
    "json_schema",
    "listing",
    "load_records",
    "read_raw",
    "read_table",
    "schema_of",
    "validate",
    "write_table",
]
