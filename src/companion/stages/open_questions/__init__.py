"""What the paper leaves open (ours; chapter 08): namespaces that are guessed, and graphs that outsiders write to.

``data/open_questions`` holds both studies for public corpora as numbers; ``tools/open_questions.py`` makes them.
"""

from companion.stages.open_questions.graph_selectors import graph_study
from companion.stages.open_questions.inferred_namespaces import inference_study, scattered_gap
from companion.stages.open_questions.kept import keep, kept_meta, load_kept, searched

__all__ = ["graph_study", "inference_study", "keep", "kept_meta", "load_kept", "scattered_gap", "searched"]
