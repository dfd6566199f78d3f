"""The failures that people report of real memory systems, looked for one by one, gravest first.

Every check says one of three things: *found*, with its evidence and what to do; *clear*, with what was looked at; or
*unknown*, with what the records lack. A check never guesses: what the tables do not say is not counted as a failure.
"""

from __future__ import annotations

from companion.audit.context import Context, Finding, Look
from companion.audit.force import contradictory_current, expired, forgotten, stale_twins, superseded
from companion.audit.ids import exposed_unretrieved, ghosts, id_forms
from companion.audit.owners import late_filter, ownerless, policy, wildcard, wrong_scope

CHECKS: tuple[Look, ...] = (
    wrong_scope, policy, forgotten, wildcard, exposed_unretrieved, ownerless, expired, superseded,
    contradictory_current, stale_twins, ghosts, late_filter, id_forms,
)  # fmt: skip
KINDS = tuple(look.__name__ for look in CHECKS)
_ORDER = ("found", "unknown", "clear")


def run_checks(context: Context) -> list[Finding]:
    """Run every check; findings come first, by severity, then what could not be looked for."""
    return sorted((look(context) for look in CHECKS), key=lambda finding: _ORDER.index(finding.outcome))


def headline(findings: list[Finding]) -> str:
    """Return the first line of an audit: the worst finding, or that there is none and what could not be looked for."""
    found = [finding for finding in findings if finding.outcome == "found"]
    if found:
        return found[0].says
    open_ = [finding for finding in findings if finding.outcome == "unknown"]
    could_not = "; ".join(f"{finding.kind.replace('_', ' ')} ({finding.says.rstrip('.')})" for finding in open_)
    nothing = "Nothing was found: no returned item is known to break an axis, and none of the other failures is there."
    return f"{nothing} It could not be looked for: {could_not}." if open_ else nothing
