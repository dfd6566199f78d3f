"""Exact search under three-valued admissibility: encoders, dense and lexical search, filters, controls, routers.

`rank` runs registered arms over a corpus; `known_arms` lists them. A new arm joins by adding a module to
``companion/retrieval/arms``.
"""

from companion.retrieval.encoders import Encoder
from companion.retrieval.engine import rank
from companion.retrieval.registry import ArmSpec, Route, arm, base_arm, get_arm, known_arms

__all__ = ["ArmSpec", "Encoder", "Route", "arm", "base_arm", "get_arm", "known_arms", "rank"]
