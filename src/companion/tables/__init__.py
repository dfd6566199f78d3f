"""The record tables: what they hold, how they are read and written, and what is refused.

Seven tables (`TABLES`) carry everything the protocol needs. In memory they are pandas frames with fixed dtypes; on
disk they are Parquet, CSV or JSON Lines. Unresolved is <NA> in memory, a null or an empty field on disk, and
nothing in this package turns it into yes or no.
"""

from __future__ import annotations

from companion.tables.checks import find_problems, schema_of, validate
from companion.tables.files import (
    EXTENSIONS,
    atomic_path,
    find_file_problems,
    format_of,
    read_raw,
    read_table,
    write_table,
)
from companion.tables.problems import Origin, Problem
from companion.tables.records import OWN_RECORDS, Records, load_records, open_records
from companion.tables.schema import AXIS_COLUMNS, INTENTS, STATES, TABLES, Column, Rule, Schema

__all__ = [
    "AXIS_COLUMNS",
    "EXTENSIONS",
    "INTENTS",
    "OWN_RECORDS",
    "STATES",
    "TABLES",
    "Column",
    "Origin",
    "Problem",
    "Records",
    "Rule",
    "Schema",
    "atomic_path",
    "find_file_problems",
    "find_problems",
    "format_of",
    "load_records",
    "open_records",
    "read_raw",
    "read_table",
    "schema_of",
    "validate",
    "write_table",
]
