"""The exposure ledger: which memory was stored, retrieved, exposed, and what the answer disclosed.

``stored >= retrieved >= exposed`` holds for every (query, route, memory) and is checked, never assumed
(Protocol section 7). What an answer disclosed is a separate observation per query and target memory: it is linked to
the ledger, not derived from it.

``build`` makes a ledger from rankings, gates and a prompt budget; `Ledger` records one from a running application;
`flow` counts what reaches each step; `trace` follows single memories.
"""

from companion.ledger.build import PromptBudget, build, check, count_tokens, disclosures, link
from companion.ledger.flow import STEPS, flow, stored_counts
from companion.ledger.paths import refuse_unknown, trace
from companion.ledger.recorder import Ledger, read_events, to_ledger

__all__ = [
    "STEPS",
    "Ledger",
    "PromptBudget",
    "build",
    "check",
    "count_tokens",
    "disclosures",
    "flow",
    "link",
    "read_events",
    "refuse_unknown",
    "stored_counts",
    "to_ledger",
    "trace",
]
