"""Where public data come from, at which revision, and how to tell a whole copy from a half or an altered one.

A fetched folder carries a stamp, ``.companion.json``, written before the folder gets its final name: it names the
revision and lists every file with its git id. A folder laid down by hand has no stamp; it is accepted when the files a
loader reads are all there, and reported as *hand-laid*, never as verified.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

STAMP = ".companion.json"
VERIFIED, UNVERIFIED, HAND_LAID = "verified", "unverified", "hand-laid"
INCOMPLETE, ABSENT = "incomplete", "absent"
WHOLE = (VERIFIED, UNVERIFIED, HAND_LAID)
"""States in which a loader may read the folder."""


@dataclass(frozen=True)
class Upstream:
    """One public source, pinned: needed folders with their git tree ids (empty: not recorded), and what they hold."""

    name: str
    title: str
    url: str
    revision: str
    tree: str
    licence: str
    folders: Mapping[str, str]
    layout: tuple[tuple[str, int], ...]


_MEMOPS = ("generated_result/2-evidence_conversation", "generated_result/4-inject_evidence_with_distractors")
_AUDIT = "results/natural_end_to_end_case_audit"
UPSTREAMS: dict[str, Upstream] = {
    upstream.name: upstream
    for upstream in (
        Upstream(
            name="rhelm",
            title="RHELM: a year of conversations of ten personas, one namespace each",
            url="https://github.com/microsoft/RHELM",
            revision="726fc42ea0d5c11085c1a961ade10d702ba187d3",
            tree="15bada413dc52f41177f5817563181243ed936d8",
            licence="MIT",
            folders={
                "data/conversations": "77c17cfdb3206f022e4eb380c77948154e028d86",
                "data/QA_final": "a2271132484e3fa2582d4ba0461c9fa4fd507c84",
            },
            layout=(("data/conversations/*/*.json", 629), ("data/QA_final/*.jsonl", 10)),
        ),
        Upstream(
            name="gatemem",
            title="GateMem: multi-principal episodes with utility, privacy and deletion checkpoints",
            url="https://github.com/rzhub/GateMem",
            revision="603f9f4b4ba4b77f043c20f85687fa016fd720b0",
            tree="1cc06ce6dfcdaf2d34d631db094ef49d3e4d8a09",
            licence="MIT",
            folders={"bench/data": "b7dd00ef7b860f0622a3c706609c5dd3be8d6d81"},
            layout=(("bench/data/*/episodes.jsonl", 4), ("bench/data/*/checkpoints.jsonl", 4)),
        ),
        Upstream(
            name="memops",
            title="MemOps: memories that are updated, forgotten and reflected on",
            url="https://github.com/MemTensor/MemOps",
            revision="0b85a27bba856c287405a36e53a39e59e424c4e9",
            tree="f9d5cf4ac3c600eecccfec008db4d487f961b5af",
            licence="MIT",
            folders=dict.fromkeys(_MEMOPS, ""),
            layout=tuple((f"{folder}/*.json", 1) for folder in _MEMOPS),
        ),
        Upstream(
            name="evidence",
            title="The paper's released evidence: answers of the downstream readers, case by case",
            url="https://github.com/ziwang11112/verify-agent-memory",
            revision="e525d8669a430164cdc079179af4b3a98ba82dc1",
            tree="",
            licence="none stated: fetched by the user, never redistributed",
            folders={_AUDIT: ""},
            layout=((f"{_AUDIT}/case_scores.csv", 1),),
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
    ids: dict[str, str] = field(repr=False)

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
        return Stamp(**json.loads((root / STAMP).read_text(encoding="utf-8")))
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


def git_id(kind: str, content: bytes) -> str:
    """Compute the id that git gives to a blob or a tree."""
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def contents(root: Path) -> dict[str, tuple[str, str]]:
    """Map each file of a folder to its git mode and blob id; a link is its target's name."""
    found = {}
    for path in files_of(root):
        if path.is_symlink():
            entry = ("120000", git_id("blob", os.fsencode(path.readlink())))
        else:
            mode = "100755" if path.stat().st_mode & 0o100 else "100644"
            entry = (mode, git_id("blob", path.read_bytes()))
        found[path.relative_to(root).as_posix()] = entry
    return found


def tree_id(files: Mapping[str, tuple[str, str]]) -> str:
    """Compute the git tree id of files given by path, mode and blob id."""
    here: dict[str, tuple[str, str]] = {}
    inside: dict[str, dict[str, tuple[str, str]]] = {}
    for path, entry in files.items():
        first, _, rest = path.partition("/")
        if rest:
            inside.setdefault(first, {})[rest] = entry
        else:
            here[first] = entry
    here |= {name: ("40000", tree_id(below)) for name, below in inside.items()}
    # Git sorts a folder as if its name ended in a slash.
    order = sorted(here, key=lambda name: os.fsencode(name + "/" * (name in inside)))
    lines = (here[name][0].encode() + b" " + os.fsencode(name) + b"\0" + bytes.fromhex(here[name][1]) for name in order)
    return git_id("tree", b"".join(lines))


def other_folders(files: Mapping[str, tuple[str, str]], upstream: Upstream) -> list[str]:
    """Name the needed folders whose tree id is not the pinned one; all of them where none is recorded."""
    wrong = []
    for folder, expected in upstream.folders.items():
        below = {path[len(folder) + 1 :]: entry for path, entry in files.items() if path.startswith(f"{folder}/")}
        if not expected or tree_id(below) != expected:
            wrong.append(folder)
    return wrong


def missing_layout(root: Path, upstream: Upstream) -> str:
    """Name the first thing a whole copy of a source has and this folder lacks; empty when nothing is missing."""
    for pattern, least in upstream.layout:
        found = sum(1 for path in root.glob(pattern) if path.is_file() and path.stat().st_size > 0)
        if found < least:
            return f"{pattern} ({found} non-empty file{'' if found == 1 else 's'} found, at least {least} expected)"
    return ""


def state(root: Path, name: str) -> str:
    """Tell whether a folder holds a whole copy of a source, and who says so; contents are not read."""
    if not root.is_dir():
        return ABSENT
    if (root / STAMP).exists():
        stamp = read_stamp(root)
        if stamp is None or stamp.name != name or size_of(root) != (stamp.files, stamp.bytes):
            return INCOMPLETE
        return VERIFIED if stamp.verified else UNVERIFIED
    if missing_layout(root, UPSTREAMS[name]):
        return INCOMPLETE if any(root.iterdir()) else ABSENT
    return HAND_LAID


def is_whole(root: Path, name: str) -> bool:
    """Whether a loader may read the folder: verified, fetched unverified, or hand-laid with every expected file."""
    return state(root, name) in WHOLE


def altered(root: Path, name: str) -> list[str]:
    """Read every byte of a copy, and name the files (hand-laid: folders) that are not what was fetched or pinned."""
    now, stamp = contents(root), read_stamp(root)
    if stamp is None:
        return other_folders(now, UPSTREAMS[name])
    ids = {path: blob for path, (_, blob) in now.items()}
    return sorted(path for path in ids.keys() | stamp.ids.keys() if ids.get(path) != stamp.ids.get(path))


def origin(root: Path, name: str) -> str:
    """Say where the copy in a folder came from, and how sure that is."""
    stamp = read_stamp(root)
    if stamp is None:
        return f"{UPSTREAMS[name].url} ({HAND_LAID}: no revision confirmed)"
    if not stamp.verified:
        return f"{stamp.url} ({UNVERIFIED}: no revision confirmed)"
    return f"{stamp.url} at {stamp.commit[:12]} ({VERIFIED})"
