"""Audit somebody's own records: the protocol's numbers, known failures, and what cannot be known."""

from companion.audit.cells import guard, read_csv, unguard, write_csv
from companion.audit.context import Context
from companion.audit.core import Audit, Options, audit
from companion.audit.faults import SCOPE_LEFT_EMPTY, Fault, FaultsError, examine_folder, listing
from companion.audit.findings import Check, run_checks
from companion.audit.intake import Intake, take_in
from companion.audit.narrowing import macro_width, narrowing, over_arms, remaining

__all__ = [
    "SCOPE_LEFT_EMPTY",
    "Audit",
    "Check",
    "Context",
    "Fault",
    "FaultsError",
    "Intake",
    "Options",
    "audit",
    "examine_folder",
    "guard",
    "listing",
    "macro_width",
    "narrowing",
    "over_arms",
    "read_csv",
    "remaining",
    "run_checks",
    "take_in",
    "unguard",
    "write_csv",
]
