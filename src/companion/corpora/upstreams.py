"""Where public data come from, at which revision, and how to tell a whole copy from a half one.

A fetched folder carries a stamp, ``.companion.json``, written before the folder gets its final name: it says what
the folder holds and how many files and bytes belong to it. A folder laid down by hand has no stamp; it is accepted
when the files a loader reads are all there, and reported as *hand-laid*, never as verified.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

STAMP = ".companion.json"

VERIFIED = "verified"
UNVERIFIED = "unverified"
HAND_LAID = "hand-laid"
INCOMPLETE = "incomplete"
ABSENT = "absent"

WHOLE = (VERIFIED, UNVERIFIED, HAND_LAID)
"""States in which a loader may read the folder."""


@dataclass(frozen=True)
class Upstream:
    """One public source, pinned."""

    name: str
    title: str
    url: str
    revision: str
    tree: str
    licence: str
    paths: tuple[str, ...]
    layout: tuple[tuple[str, int], ...]


UPSTREAMS: dict[str, Upstream] = {
    upstream.name: upstream
    for upstream in (
        Upstream(
            name="rhelm",
            title="RHELM: long personal conversations with questions that cite their evidence turns",
            url="https://github.com/microsoft/RHELM",
            revision="726fc42ea0d5c11085c1a961ade10d702ba187d3",
            tree="15bada413dc52f41177f5817563181243ed936d8",
            licence="MIT",
            paths=("data/conversations", "data/QA_final"),
            layout=(("data/conversations/*/*.json", 629), ("data/QA_final/*.jsonl", 10)),
        ),
        Upstream(
            name="gatemem",
            title="GateMem: multi-principal episodes with utility, privacy and deletion checkpoints",
            url="https://github.com/rzhub/GateMem",
            revision="603f9f4b4ba4b77f043c20f85687fa016fd720b0",
            tree="1cc06ce6dfcdaf2d34d631db094ef49d3e4d8a09",
            licence="MIT",
            paths=("bench/data",),
            layout=(("bench/data/*/episodes.jsonl", 4), ("bench/data/*/checkpoints.jsonl", 4)),
        ),
        Upstream(
            name="memops",
            title="MemOps: memories that are updated, forgotten and reflected on",
            url="https://github.com/MemTensor/MemOps",
            revision="0b85a27bba856c287405a36e53a39e59e424c4e9",
            tree="f9d5cf4ac3c600eecccfec008db4d487f961b5af",
            licence="MIT",
            paths=(
                "generated_result/2-evidence_conversation",
                "generated_result/4-inject_evidence_with_distractors",
            ),
            layout=(
                ("generated_result/2-evidence_conversation/*.json", 1),
                ("generated_result/4-inject_evidence_with_distractors/*.json", 1),
            ),
        ),
        Upstream(
            name="evidence",
            title="The paper's released evidence: answers of the downstream readers, case by case",
            url="https://github.com/ziwang11112/verify-agent-memory",
            revision="e525d8669a430164cdc079179af4b3a98ba82dc1",
            tree="",
            licence="none stated: fetched by the user, never redistributed",
            paths=("results/natural_end_to_end_case_audit",),
            layout=(("results/natural_end_to_end_case_audit/case_scores.csv", 1),),
        ),
    )
}


@dataclass(frozen=True)
class Stamp:
    """What `companion fetch` wrote beside the data."""

    name: str
    url: str
    commit: str
    tree: str
    verified: bool
    date: str
    files: int
    bytes: int
    manifest: str

    def write(self, root: Path) -> None:
        """Write the stamp into a folder, flushed to disk before it gets its name."""
        temporary = root / f"{STAMP}.{os.getpid()}"
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps(asdict(self), indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(root / STAMP)


def read_stamp(root: Path) -> Stamp | None:
    """Read a folder's stamp."""
    try:
        stated = json.loads((root / STAMP).read_text(encoding="utf-8"))
        return Stamp(**stated)
    except (OSError, ValueError, TypeError):
        return None


def files_of(root: Path) -> Iterator[Path]:
    """Yield the files of a corpus folder in path order, without the stamp and without git's own files."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name != ".git")
        yield from (Path(folder) / name for name in sorted(names) if not name.startswith(STAMP))


def size_of(root: Path) -> tuple[int, int]:
    """Count the files of a corpus folder and their bytes."""
    sizes = [path.lstat().st_size for path in files_of(root)]
    return len(sizes), sum(sizes)


def missing_layout(root: Path, upstream: Upstream) -> str:
    """Name the first thing a whole copy of a source has and this folder lacks; empty when nothing is missing."""
    for pattern, least in upstream.layout:
        found = sum(1 for path in root.glob(pattern) if path.is_file() and path.stat().st_size > 0)
        if found < least:
            return f"{pattern} ({found} non-empty file{'' if found == 1 else 's'} found, at least {least} expected)"
    return ""


def state(root: Path, name: str) -> str:
    """Tell whether a folder holds a whole copy of a source, and who says so."""
    if not root.is_dir():
        return ABSENT
    if (root / STAMP).exists():
        stamp = read_stamp(root)
        intact = stamp is not None and stamp.name == name and size_of(root) == (stamp.files, stamp.bytes)
        if stamp is None or not intact:
            return INCOMPLETE
        return VERIFIED if stamp.verified else UNVERIFIED
    if missing_layout(root, UPSTREAMS[name]):
        return INCOMPLETE if any(root.iterdir()) else ABSENT
    return HAND_LAID


def is_whole(root: Path, name: str) -> bool:
    """Whether a loader may read the folder: verified, fetched unverified, or hand-laid with every expected file."""
    return state(root, name) in WHOLE


def origin(root: Path, name: str) -> str:
    """Say where the copy in a folder came from, and how sure that is."""
    stamp = read_stamp(root)
    if stamp is None:
        return f"{UPSTREAMS[name].url} ({HAND_LAID}: no revision confirmed)"
    if not stamp.verified:
        return f"{stamp.url} ({UNVERIFIED}: no revision confirmed)"
    return f"{stamp.url} at {stamp.commit[:12]} ({VERIFIED})"
