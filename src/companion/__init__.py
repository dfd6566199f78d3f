"""Executable companion of *The Right Memory in the Wrong Context*.

Verify retrieval admissibility in long-term agent memory: three-valued labels, matched-recall scoring with
bounds for what is unresolved, clustered bootstrap intervals, and exposure accounting.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from companion.ledger import Ledger

__version__ = "0.1.0"
__all__ = ["Ledger", "__version__"]


def __getattr__(name: str) -> Any:
    """Load the recorder when it is first named: an application that records needs nothing else of the package."""
    if name == "Ledger":
        from companion.ledger import Ledger

        return Ledger
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
