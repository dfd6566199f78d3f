"""What an audit makes of problems in its tables: some are let in and become findings, the others end it."""

from __future__ import annotations

from collections.abc import Sequence

from companion.errors import InputError
from companion.tables import Folder, Problem, examine_folder, listing
from companion.tables import examine as examine_rows
from companion.tables.checks import scope_left_empty

Fault = Problem
UNKNOWN_MEMORY = "unknown_memory_id"
NO_GROUP = "group_given"
NO_ROWS = "no_rows"
SCOPE_LEFT_EMPTY = "scope_left_empty"


class FaultsError(InputError):
    """Records that cannot be audited, with every fault that was found."""

    def __init__(self, message: str, faults: Sequence[Problem]) -> None:
        super().__init__(message)
        self.faults = list(faults)


__all__ = [
    "NO_GROUP",
    "NO_ROWS",
    "SCOPE_LEFT_EMPTY",
    "UNKNOWN_MEMORY",
    "Fault",
    "FaultsError",
    "Folder",
    "examine_folder",
    "examine_rows",
    "listing",
    "scope_left_empty",
]
