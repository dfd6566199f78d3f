"""GateMem: a source with real policy and deletion labels (ours; not in the paper's main text).

One turn is one memory, an episode is a namespace and a resampling group, a domain is a source. A checkpoint asks at
one turn of its own episode: of that episode it sees the turns up to and including that one, of every other episode all
turns.

What the release settles, and nothing more, becomes a label. A utility checkpoint lists what its answer must include;
each listed pattern is one required item, and any visible turn that matches it serves. A privacy checkpoint lists what
its asker must not learn: matching turns have policy 0. A safety checkpoint lists what was deleted: matching turns have
lifecycle 0. Everything else in the episode stays unresolved, so bounds are honestly wide.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion.corpora import _read
from companion.corpora.base import EVERYTHING, Corpus, CorpusSpec, register
from companion.corpora.upstreams import UPSTREAMS, is_whole, origin
from companion.errors import InputError

DOMAINS = ("education", "household", "medical", "office")
KINDS = ("utility", "privacy", "safety")
_UPSTREAM = UPSTREAMS["gatemem"]
_ALL_MET = "utility checkpoints with every required item met by a visible turn"
PUBLISHED = {
    "domains": 4,
    "episodes": 91,
    "turns": 20_293,
    "checkpoints": 2_218,
    "utility checkpoints": 728,
    "privacy checkpoints": 727,
    "safety checkpoints": 763,
    _ALL_MET: 728,
}


@dataclass
class _Episode:
    """One episode, and which of its turns match a pattern, each pattern searched once.

    A released pattern is a regular expression or a literal and nothing says which, so a turn matches when either
    reading matches, ignoring case. A pattern that is no valid regular expression is a literal only, and is counted.
    """

    name: str
    domain: str
    turns: list[str]
    texts: list[str]
    times: list[Any]
    invalid: set[str] = field(default_factory=set)
    found: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folded = [text.casefold() for text in self.texts]

    def matches_any(self, patterns: Iterable[str], visible: int) -> list[int]:
        """List the first `visible` turns that match at least one of several patterns."""
        hit = np.zeros(len(self.turns), dtype=bool)
        for pattern in patterns:
            if pattern not in self.found:
                self.found[pattern] = self._search(pattern)
            hit |= self.found[pattern]
        return np.flatnonzero(hit[:visible]).tolist()

    def _search(self, pattern: str) -> np.ndarray:
        literal = pattern.casefold()
        hit = np.array([literal in text for text in self.folded], dtype=bool)
        try:
            compiled = re.compile(pattern, re.IGNORECASE)
        except re.error:
            self.invalid.add(pattern)
            return hit
        return hit | np.array([compiled.search(text) is not None for text in self.texts], dtype=bool)


def load_gatemem(root: Path) -> Corpus:
    """Load GateMem as a corpus."""
    files = [f"bench/data/{domain}/{name}.jsonl" for domain in DOMAINS for name in ("episodes", "checkpoints")]
    _read.require_files(root, files, "companion fetch gatemem")
    episodes: dict[str, _Episode] = {}
    checkpoints: list[dict[str, Any]] = []
    seen: set[str] = set()
    for domain in DOMAINS:
        folder = root / "bench" / "data" / domain
        for where, record in _read.read_json_lines(folder / "episodes.jsonl"):
            episode = _episode(record, domain, where)
            _read.once(set(episodes), episode.name, "episode_id", where)
            episodes[episode.name] = episode
        for where, record in _read.read_json_lines(folder / "checkpoints.jsonl"):
            checkpoints.append(_checkpoint(record, domain, episodes, where))
            _read.once(seen, checkpoints[-1]["query_id"], "checkpoint_id", where)
    memories = _memories(list(episodes.values()))
    labels, unmet = _labels(checkpoints, episodes)
    queries = pd.DataFrame(checkpoints).drop(columns=["include", "protected"])
    texts = queries.columns.difference(["as_of_order", "visible_own", "visible_foreign", "split", "intent"])
    invalid = sum(len(episode.invalid) for episode in episodes.values())
    return Corpus(
        name="gatemem",
        population="gatemem",
        memories=memories,
        queries=queries.astype(dict.fromkeys(texts, "str")),
        labels=labels,
        licence=_UPSTREAM.licence,
        origin=origin(root, "gatemem"),
        notes=_notes(memories, queries, labels, unmet, invalid),
    )


def _episode(record: dict[str, Any], domain: str, where: str) -> _Episode:
    name = _read.field(record, "episode_id", str, where)
    ids, texts, times = [], [], []
    seen: set[str] = set()
    for position, entry in enumerate(_read.field(record, "turns", list, where), start=1):
        place = f"{where}, turn {position}"
        turn = _read.an_object(entry, place)
        ids.append(_read.field(turn, "turn_id", str, place))
        _read.once(seen, ids[-1], f"episode '{name}': turn_id", where)
        texts.append(_read.field(turn, "text", str, place))
        times.append(turn.get("timestamp"))
    return _Episode(name, domain, ids, texts, times)


def _checkpoint(record: dict[str, Any], domain: str, episodes: dict[str, _Episode], where: str) -> dict[str, Any]:
    name = _read.field(record, "episode_id", str, where)
    if name not in episodes:
        raise InputError(f"{where}: episode_id '{name}' is not in episodes.jsonl; expected a listed episode")
    turn = _read.field(record, "as_of_turn_id", str, where)
    if turn not in episodes[name].turns:
        raise InputError(f"{where}: as_of_turn_id '{turn}' is no turn of episode '{name}'")
    order = episodes[name].turns.index(turn) + 1
    judge = _read.field(record, "judge_spec", dict, where)
    kind = _read.one_of(_read.field(record, "query_type", str, where), KINDS, "query_type", where)
    include, forbidden = _read.texts(judge, "include", where), _read.texts(judge, "not_include", where)
    leaks = _read.texts(record, "leak_targets", where)
    if kind == "utility" and not include:
        raise InputError(f"{where}: field 'include' is empty; expected at least one pattern for a utility checkpoint")
    return {
        "query_id": _read.field(record, "checkpoint_id", str, where),
        "namespace": name,
        "group": name,
        "source": domain,
        "split": "evaluation",
        "stratum": f"{domain}:{kind}",
        "intent": "current",  # a checkpoint asks as of its own turn
        "principal": _read.field(_read.field(record, "asker", dict, where), "principal_id", str, where),
        "time": episodes[name].times[order - 1],
        "text": _read.field(record, "query_text", str, where),
        "query_type": kind,
        "expected_action": record.get("expected_action"),
        "attack_type": record.get("attack_type"),
        "as_of_order": order,
        # Visible up to and including the checkpoint's own turn; the turns of other episodes are not limited.
        "visible_own": order + 1,
        "visible_foreign": EVERYTHING,
        "include": include if kind == "utility" else [],
        "protected": {"utility": [], "privacy": forbidden + leaks, "safety": leaks}[kind],
    }


def _memories(episodes: Sequence[_Episode]) -> pd.DataFrame:
    rows = [
        (f"{one.name}/{turn}", one.name, one.name, one.domain, order, time, text)
        for one in episodes
        for order, (turn, time, text) in enumerate(zip(one.turns, one.times, one.texts, strict=True), start=1)
    ]
    columns = ["memory_id", "namespace", "group", "source", "order", "time", "text"]
    table = pd.DataFrame(rows, columns=columns).astype({name: "str" for name in columns if name != "order"})
    # The state of a turn depends on who asks and when: it is released per checkpoint, not per turn.
    table.insert(6, "state", "unknown")
    return table.assign(visible_key=table["order"])


def _labels(
    checkpoints: Sequence[dict[str, Any]], episodes: dict[str, _Episode]
) -> tuple[pd.DataFrame, dict[str, int]]:
    rows: list[tuple[str, str, str, str | None]] = []
    unmet: Counter[str] = Counter()
    for one in checkpoints:
        episode = episodes[one["namespace"]]
        items: list[tuple[str | None, list[str]]] = [
            (f"item-{number:02d}", [pattern]) for number, pattern in enumerate(one["include"], start=1)
        ]
        items += [(None, one["protected"])] if one["protected"] else []
        for anchor, patterns in items:
            positions = episode.matches_any(patterns, one["as_of_order"])
            if anchor is not None and not positions:
                unmet[one["query_id"]] += 1
            ids = (f"{episode.name}/{episode.turns[position]}" for position in positions)
            rows += [(one["query_id"], memory, one["query_type"], anchor) for memory in ids]
    table = pd.DataFrame(rows, columns=["query_id", "memory_id", "kind", "anchor_id"], dtype="str")
    kind, anchors = table.pop("kind"), table.pop("anchor_id")
    useful = kind.eq("utility").to_numpy(dtype=bool)

    def axis(value: np.ndarray, settled: np.ndarray) -> pd.arrays.BooleanArray:
        return pd.arrays.BooleanArray(value.copy(), ~settled)

    every = np.ones(len(table), dtype=bool)
    table["relevant"], table["scope"] = axis(every, useful), axis(every, every)
    for name, protecting in (("policy", "privacy"), ("lifecycle", "safety")):
        table[name] = axis(useful, useful | kind.eq(protecting).to_numpy(dtype=bool))
    return table.assign(anchor_id=anchors), unmet


def _notes(
    memories: pd.DataFrame, queries: pd.DataFrame, labels: pd.DataFrame, unmet: dict[str, int], invalid: int
) -> dict[str, int]:
    kinds = Counter(queries["query_type"])
    protected = set(labels.loc[labels["anchor_id"].isna(), "query_id"])
    shown = Counter(queries.loc[queries["query_id"].isin(protected), "query_type"])
    return {
        "domains": int(memories["source"].nunique()),
        "episodes": int(memories["namespace"].nunique()),
        "turns": len(memories),
        "checkpoints": len(queries),
        **{f"{kind} checkpoints": kinds[kind] for kind in KINDS},
        "utility checkpoints that recall can evaluate": int(
            labels.loc[labels["anchor_id"].notna(), "query_id"].nunique()
        ),
        _ALL_MET: kinds["utility"] - len(unmet),
        "required items no visible turn meets": sum(unmet.values()),
        **{f"{kind} checkpoints with a protected turn visible": shown[kind] for kind in ("privacy", "safety")},
        "patterns that are no regular expression": invalid,
    }


register(
    CorpusSpec(
        name="gatemem",
        title=_UPSTREAM.title,
        population="gatemem",
        licence=_UPSTREAM.licence,
        url=_UPSTREAM.url,
        revision=_UPSTREAM.revision,
        load=load_gatemem,
        present=lambda root: is_whole(root, "gatemem"),
        published=PUBLISHED,
    )
)
