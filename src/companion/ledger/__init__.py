"""The exposure ledger: which memory was stored, retrieved, exposed, and what the answer disclosed.

``stored >= retrieved >= exposed`` is checked for every (query, route, memory), never assumed: what was exposed without
having been retrieved, from a cache for example, is kept and stays visible. What an answer disclosed is an observation
of its own, linked to the ledger and not derived from it. Methods, "Exposure and disclosure".
"""

from companion.ledger.build import PromptBudget, build, check, count_tokens
from companion.ledger.disclosures import disclosures, link
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
