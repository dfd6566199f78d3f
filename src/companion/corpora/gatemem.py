"""GateMem: a source with real policy and deletion labels (Protocol section 4).

One turn is one memory, an episode is a namespace and a resampling group, a domain is a source. A checkpoint asks
at one turn of its own episode: of that episode it sees the turns up to and including that one, of every other
episode it sees all turns.

What the release settles, and nothing more, becomes a label. A utility checkpoint lists what its answer must
include; each listed pattern is one required item, and any visible turn that matches it serves. A privacy checkpoint
lists what its asker must not learn: matching turns have policy 0. A safety checkpoint lists what was deleted:
matching turns have lifecycle 0. Everything else in the episode stays unresolved, so bounds are honestly wide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion.corpora import _read
from companion.corpora._counts import compare
from companion.corpora.base import EVERYTHING, Corpus, CorpusSpec, register
from companion.corpora.upstreams import UPSTREAMS, is_whole, origin
from companion.errors import InputError

DOMAINS = ("education", "household", "medical", "office")
KINDS = ("utility", "privacy", "safety")
UPSTREAM = UPSTREAMS["gatemem"]

PUBLISHED = {
    "domains": 4,
    "episodes": 91,
    "turns": 20_293,
    "checkpoints": 2_218,
    "utility checkpoints": 728,
    "privacy checkpoints": 727,
    "safety checkpoints": 763,
    "utility checkpoints with every required item met by a visible turn": 728,
}


@dataclass
class Patterns:
    """Which turns of one episode match a pattern, each pattern searched once.

    A released pattern is a regular expression or a literal and nothing says which, so a turn matches when either
    reading matches, ignoring case. A pattern that is no valid regular expression is a literal only; those are
    counted in `invalid`.
    """

    turns: list[str]
    invalid: set[str] = field(default_factory=set)
    _folded: list[str] = field(default_factory=list)
    _found: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._folded = [text.casefold() for text in self.turns]

    def matches(self, pattern: str) -> np.ndarray:
        """List the turns that match a pattern."""
        if pattern not in self._found:
            self._found[pattern] = self._search(pattern)
        return self._found[pattern]

    def matches_any(self, patterns: Iterable[str], visible: int) -> np.ndarray:
        """List the first `visible` turns that match at least one of several patterns."""
        found = [self.matches(pattern) for pattern in patterns]
        every = np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)
        return every[every < visible]

    def _search(self, pattern: str) -> np.ndarray:
        literal = pattern.casefold()
        hit = np.fromiter((literal in text for text in self._folded), dtype=bool, count=len(self._folded))
        try:
            compiled = re.compile(pattern, re.IGNORECASE)
        except re.error:
            self.invalid.add(pattern)
        else:
            hit |= np.fromiter(
                (compiled.search(text) is not None for text in self.turns), dtype=bool, count=len(self.turns)
            )
        return np.flatnonzero(hit)


@dataclass(frozen=True)
class Tables:
    """The tables of a GateMem release and what was noticed while reading it."""

    memories: pd.DataFrame
    queries: pd.DataFrame
    labels: pd.DataFrame
    counts: dict[str, int]


def files() -> list[str]:
    """List the files the loader reads, relative to the corpus folder."""
    return [f"bench/data/{domain}/{name}.jsonl" for domain in DOMAINS for name in ("episodes", "checkpoints")]


def read(root: Path) -> Tables:
    """Read a GateMem release into the tables of the contract."""
    _read.require_files(root, files(), "companion fetch gatemem")
    episodes: dict[str, dict[str, Any]] = {}
    checkpoints: dict[str, dict[str, Any]] = {}
    for domain in DOMAINS:
        folder = root / "bench" / "data" / domain
        for where, record in _read.read_json_lines(folder / "episodes.jsonl"):
            _keep(episodes, _episode(record, domain, where), "episode_id", where)
        for where, record in _read.read_json_lines(folder / "checkpoints.jsonl"):
            _keep(checkpoints, _checkpoint(record, domain, episodes, where), "checkpoint_id", where)
    searchers = {name: Patterns(episode["texts"]) for name, episode in episodes.items()}
    memories = _memories(list(episodes.values()))
    queries = _queries(list(checkpoints.values()))
    labels, unmet = _labels(list(checkpoints.values()), episodes, searchers)
    invalid = sum(len(searcher.invalid) for searcher in searchers.values())
    return Tables(memories, queries, labels, _counts(memories, queries, labels, unmet, invalid))


def compare_counts(counts: dict[str, int]) -> pd.DataFrame:
    """Set what was loaded beside what the protocol states."""
    return compare(counts, PUBLISHED)


def _keep(kept: dict[str, dict[str, Any]], record: dict[str, Any], key: str, where: str) -> None:
    name = record["id"]
    if name in kept:
        raise InputError(f"{where}: {key} '{name}' appears twice; expected each one once")
    kept[name] = record


def _episode(record: dict[str, Any], domain: str, where: str) -> dict[str, Any]:
    name = _read.field(record, "episode_id", str, where)
    turns = _read.field(record, "turns", list, where)
    ids, bodies, times = [], [], []
    for position, turn in enumerate(turns, start=1):
        place = f"{where}, turn {position}"
        if not isinstance(turn, dict):
            raise InputError(f"{place}: found {type(turn).__name__}; expected an object")
        ids.append(_read.field(turn, "turn_id", str, place))
        bodies.append(_read.field(turn, "text", str, place))
        times.append(turn.get("timestamp"))
    if len(set(ids)) < len(ids):
        repeated = next(turn for turn in ids if ids.count(turn) > 1)
        raise InputError(f"{where}: turn_id '{repeated}' appears twice in episode '{name}'; expected each one once")
    return {
        "id": name,
        "domain": domain,
        "turns": ids,
        "texts": bodies,
        "times": times,
        "position": {turn: position for position, turn in enumerate(ids, start=1)},
    }


def _checkpoint(record: dict[str, Any], domain: str, episodes: dict[str, dict[str, Any]], where: str) -> dict[str, Any]:
    episode_id = _read.field(record, "episode_id", str, where)
    if episode_id not in episodes:
        raise InputError(f"{where}: episode_id '{episode_id}' is not in episodes.jsonl; expected a listed episode")
    episode = episodes[episode_id]
    turn = _read.field(record, "as_of_turn_id", str, where)
    if turn not in episode["position"]:
        raise InputError(f"{where}: as_of_turn_id '{turn}' is no turn of episode '{episode_id}'")
    judge = _read.field(record, "judge_spec", dict, where)
    asker = _read.field(record, "asker", dict, where)
    kind = _read.one_of(_read.field(record, "query_type", str, where), KINDS, "query_type", where)
    include = _read.texts(judge, "include", where)
    if kind == "utility" and not include:
        raise InputError(f"{where}: field 'include' is empty; expected at least one pattern for a utility checkpoint")
    return {
        "id": _read.field(record, "checkpoint_id", str, where),
        "episode": episode_id,
        "domain": domain,
        "kind": kind,
        "action": record.get("expected_action"),
        "attack": record.get("attack_type"),
        "asker": _read.field(asker, "principal_id", str, where),
        "visible": episode["position"][turn],
        "time": episode["times"][episode["position"][turn] - 1],
        "text": _read.field(record, "query_text", str, where),
        "include": include if kind == "utility" else [],
        "protected": _protected(kind, judge, record, where),
    }


def _protected(kind: str, judge: dict[str, Any], record: dict[str, Any], where: str) -> list[str]:
    forbidden = _read.texts(judge, "not_include", where)
    leaks = _read.texts(record, "leak_targets", where)
    return {"utility": [], "privacy": forbidden + leaks, "safety": leaks}[kind]


def _memories(episodes: Sequence[dict[str, Any]]) -> pd.DataFrame:
    sizes = [len(episode["turns"]) for episode in episodes]
    namespaces = np.repeat(np.array([episode["id"] for episode in episodes], dtype=object), sizes)
    return pd.DataFrame(
        {
            "memory_id": pd.Series(
                [f"{episode['id']}/{turn}" for episode in episodes for turn in episode["turns"]], dtype="str"
            ),
            "namespace": pd.Series(namespaces, dtype="str"),
            "group": pd.Series(namespaces, dtype="str"),
            "source": pd.Series(np.repeat([episode["domain"] for episode in episodes], sizes), dtype="str"),
            "order": np.concatenate([np.arange(1, size + 1) for size in sizes]) if sizes else [],
            "time": pd.Series([time for episode in episodes for time in episode["times"]], dtype="str"),
            # The state of a turn depends on who asks and when: it is released per checkpoint, not per turn.
            "state": "unknown",
            "text": pd.Series([text for episode in episodes for text in episode["texts"]], dtype="str"),
        }
    )


def _queries(checkpoints: Sequence[dict[str, Any]]) -> pd.DataFrame:
    def column(name: str) -> pd.Series:
        return pd.Series([checkpoint[name] for checkpoint in checkpoints], dtype="str")

    return pd.DataFrame(
        {
            "query_id": column("id"),
            "namespace": column("episode"),
            "group": column("episode"),
            "source": column("domain"),
            "split": "evaluation",
            "stratum": column("domain") + ":" + column("kind"),
            # A checkpoint asks as of its own turn, which is what a current intent is.
            "intent": "current",
            "principal": column("asker"),
            "time": column("time"),
            "text": column("text"),
            "query_type": column("kind"),
            "expected_action": column("action"),
            "attack_type": column("attack"),
            "as_of_order": np.array([checkpoint["visible"] for checkpoint in checkpoints], dtype=np.int64),
        }
    )


def _labels(
    checkpoints: Sequence[dict[str, Any]], episodes: dict[str, dict[str, Any]], searchers: dict[str, Patterns]
) -> tuple[pd.DataFrame, dict[str, int]]:
    rows: list[tuple[str, str, str, str | None]] = []
    unmet: dict[str, int] = {}
    for checkpoint in checkpoints:
        episode, searcher = episodes[checkpoint["episode"]], searchers[checkpoint["episode"]]
        items: list[tuple[str | None, list[str]]] = [
            (f"item-{number:02d}", [pattern]) for number, pattern in enumerate(checkpoint["include"], start=1)
        ]
        items += [(None, checkpoint["protected"])] if checkpoint["protected"] else []
        for anchor, patterns in items:
            positions = searcher.matches_any(patterns, checkpoint["visible"])
            if anchor is not None and not len(positions):
                unmet[checkpoint["id"]] = unmet.get(checkpoint["id"], 0) + 1
            ids = (f"{checkpoint['episode']}/{episode['turns'][position]}" for position in positions)
            rows += [(checkpoint["id"], memory, checkpoint["kind"], anchor) for memory in ids]
    table = pd.DataFrame(rows, columns=["query_id", "memory_id", "kind", "anchor_id"], dtype="str")
    return _axes(table), unmet


def _axes(table: pd.DataFrame) -> pd.DataFrame:
    kind = table.pop("kind")
    anchors = table.pop("anchor_id")
    table["relevant"] = _flag(len(table), established=kind.eq("utility").to_numpy(), value=True)
    table["scope"] = pd.array(np.ones(len(table), dtype=bool), dtype="boolean")
    for axis, protecting in (("policy", "privacy"), ("lifecycle", "safety")):
        settled = kind.isin(["utility", protecting]).to_numpy()
        table[axis] = _flag(len(table), settled, kind.eq("utility").to_numpy())
    table["anchor_id"] = anchors
    return table


def _flag(size: int, established: np.ndarray, value: np.ndarray | bool) -> pd.arrays.BooleanArray:
    return pd.arrays.BooleanArray(np.broadcast_to(np.asarray(value), size).copy(), ~established)


def _counts(
    memories: pd.DataFrame, queries: pd.DataFrame, labels: pd.DataFrame, unmet: dict[str, int], invalid: int
) -> dict[str, int]:
    kinds = queries["query_type"].value_counts()
    protected = labels.loc[labels["anchor_id"].isna(), "query_id"].unique()
    with_protected = queries.loc[queries["query_id"].isin(protected), "query_type"].value_counts()
    evaluable = int(labels.loc[labels["anchor_id"].notna(), "query_id"].nunique())
    utility = int(kinds.get("utility", 0))
    return {
        "domains": int(memories["source"].nunique()),
        "episodes": int(memories["namespace"].nunique()),
        "turns": len(memories),
        "checkpoints": len(queries),
        "utility checkpoints": utility,
        "privacy checkpoints": int(kinds.get("privacy", 0)),
        "safety checkpoints": int(kinds.get("safety", 0)),
        "utility checkpoints that recall can evaluate": evaluable,
        "utility checkpoints with every required item met by a visible turn": utility - len(unmet),
        "required items no visible turn meets": sum(unmet.values()),
        "privacy checkpoints with a protected turn visible": int(with_protected.get("privacy", 0)),
        "safety checkpoints with a protected turn visible": int(with_protected.get("safety", 0)),
        "patterns that are no regular expression": invalid,
    }


def load(root: Path) -> Corpus:
    """Load GateMem as a corpus."""
    tables = read(root)
    memories = tables.memories.assign(visible_key=tables.memories["order"])
    # Visible up to and including the checkpoint's own turn; the turns of other episodes are not limited.
    queries = tables.queries.assign(visible_own=tables.queries["as_of_order"] + 1, visible_foreign=EVERYTHING)
    return Corpus(
        name=UPSTREAM.name,
        population="gatemem",
        memories=memories,
        queries=queries,
        labels=tables.labels,
        licence=UPSTREAM.licence,
        origin=origin(root, UPSTREAM.name),
        notes=tables.counts,
    )


SPEC = register(
    CorpusSpec(
        name=UPSTREAM.name,
        title=UPSTREAM.title,
        population="gatemem",
        licence=UPSTREAM.licence,
        url=UPSTREAM.url,
        revision=UPSTREAM.revision,
        load=load,
        present=lambda root: is_whole(root, UPSTREAM.name),
        tree=UPSTREAM.tree,
        paths=UPSTREAM.paths,
    )
)
