"""The data card: every committed data file with its origin, licence, size and SHA-256 (``data/README.md``).

``python tools/datacard.py`` writes the table anew after files have changed; the prose around it stays.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pandas as pd

from companion.errors import InputError
from companion.paths import data_dir

CARD = "README.md"
_SUMS = re.compile(r"<!-- files -->\n.*?<!-- /files -->\n", re.DOTALL)

#: Where the files of each folder come from and under which licence; the longest matching path wins.
ORIGIN: dict[str, tuple[str, str]] = {
    "published": ("figures and outcomes reported by the paper, arXiv 2610.07309: facts, typed in by hand", "facts"),
    "demo": ("written for this project", "MIT"),
    "example": ("written for this project", "MIT"),
    "imports": ("written for this project, in the public shape of each format", "MIT"),
    "scenarios": ("written for this project", "MIT"),
    "frozen/rhelm": ("our runs on RHELM, github.com/microsoft/RHELM: identifiers and numbers, no text", "MIT"),
    "frozen/gatemem": ("our runs on GateMem, github.com/rzhub/GateMem: identifiers and numbers, no text", "MIT"),
    "corruption/rhelm": ("our corruption study on RHELM: identifiers and numbers, no text", "MIT"),
    "corruption/gatemem": ("our corruption study on GateMem: identifiers and numbers, no text", "MIT"),
    "open_questions/rhelm": ("our runs for chapter 08 on RHELM: identifiers and numbers, no text", "MIT"),
    "open_questions/gatemem": (
        "our runs for chapter 08 on GateMem: identifiers and numbers, no text",
        "MIT",
    ),
    "frozen": ("our runs: identifiers and numbers, no text", "MIT"),
    "corruption": ("our corruption studies: identifiers and numbers, no text", "MIT"),
}


def origin_of(path: str) -> tuple[str, str]:
    """Return origin and licence of a file by its path below ``data/``."""
    parts = path.split("/")[:-1]
    for length in range(len(parts), 0, -1):
        found = ORIGIN.get("/".join(parts[:length]))
        if found:
            return found
    raise InputError(f"data/{path}: no origin is stated for its folder; expected one of {', '.join(ORIGIN)}")


def table() -> pd.DataFrame:
    """List the data files as they are now."""
    root = data_dir()
    rows = []
    for path in sorted(p for p in root.rglob("*") if p.is_file() and not p.name.startswith(".")):
        name = path.relative_to(root).as_posix()
        if name != CARD:
            origin, licence = ("description", "MIT") if path.name == CARD else origin_of(name)
            rows.append((name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest(), origin, licence))
    return pd.DataFrame(rows, columns=["file", "bytes", "sha256", "origin", "licence"])


def render(files: pd.DataFrame) -> str:
    """Write the table as Markdown, one row per file, between the two marks of the card."""
    head = "| file | bytes | sha256 | origin | licence |\n| --- | ---: | --- | --- | --- |\n"
    rows = (f"| {r.file} | {r.bytes:,} | `{r.sha256}` | {r.origin} | {r.licence} |\n" for r in files.itertuples())
    return "<!-- files -->\n" + head + "".join(rows) + "<!-- /files -->\n"


def listed(card: str) -> dict[str, str]:
    """Read the SHA-256 of every file that a card lists."""
    return dict(re.findall(r"^\| (\S+) \| [\d,]+ \| `([0-9a-f]{64})` \|", card, re.MULTILINE))


def update(path: Path | None = None) -> Path:
    """Write the table of a card anew."""
    card = path if path is not None else data_dir() / CARD
    text = card.read_text(encoding="utf-8")
    if not _SUMS.search(text):
        raise InputError(f"{card}: no table between <!-- files --> and <!-- /files -->")
    fresh = render(table())
    card.write_text(_SUMS.sub(lambda _: fresh, text), encoding="utf-8")
    return card


if __name__ == "__main__":
    print(update())
