"""Audit somebody's own records: the protocol's numbers, known failures, and what cannot be known."""

from companion.audit.cells import guard, read_csv, shown, shown_table, unguard, write_csv
from companion.audit.checks import KINDS, headline, run_checks
from companion.audit.context import Context, Finding
from companion.audit.core import Audit, Options, audit
from companion.audit.intake import FaultsError, Intake, take_in
from companion.audit.narrowing import macro_width, narrowing, over_arms, remaining
from companion.audit.output import checks_table, markdown, newly, since, write
from companion.bootstrap import Resampling

__all__ = [
    "KINDS", "Audit", "Context", "FaultsError", "Finding", "Intake", "Options",
    "Resampling", "audit", "checks_table", "guard", "headline", "macro_width",
    "markdown", "narrowing", "newly", "over_arms", "read_csv", "remaining", "run_checks", "shown", "shown_table",
    "since", "take_in", "unguard", "write", "write_csv",
]  # fmt: skip
