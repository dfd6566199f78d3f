"""Exact search under three-valued admissibility: encoders, dense and lexical search, filters, controls, routers.

`rank` runs registered arms over a corpus; `known_arms` lists them. Another package's arms and encoders join by the
entry points ``companion.arms`` and ``companion.encoders``.
"""

from companion.retrieval.encoders import Encoder
from companion.retrieval.engine import Search, rank
from companion.retrieval.registry import ArmSpec, Route, arm, base_arm, get_arm, known_arms

__all__ = ["ArmSpec", "Encoder", "Route", "Search", "arm", "base_arm", "get_arm", "known_arms", "rank"]
