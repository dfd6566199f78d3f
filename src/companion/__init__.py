"""Executable companion of *The Right Memory in the Wrong Context*.

Verify retrieval admissibility in long-term agent memory: three-valued labels, matched-recall scoring with
bounds for what is unresolved, clustered bootstrap intervals, and exposure accounting.
"""

__version__ = "0.1.0"
