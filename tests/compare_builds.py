"""Compare two builds of the book, file by file: nothing but dates may differ.

Run: ``python tests/compare_builds.py`` builds the whole book twice from scratch (some minutes), from two clones of the
last commit, and compares the two. The builds have all in common but what must not matter: folder, seed of Python's
hashes, time zone, number of processes. ``python tests/compare_builds.py ONE OTHER`` compares two finished sites. Ends
with code 0 if they are the same apart from dates, else with 1 and a line for each file that differs.

A date is what :data:`DATES` matches in a text file: 2026-11-30, with or without a time of day; 30 Nov 2026; Nov 30,
2026. Each is blanked on both sides before the comparison. Files that are not UTF-8 text are compared as they are.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_TIME = r"(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
#: How a date is recognised.
DATES = re.compile(rf"\b(?:\d{{4}}-\d\d-\d\d{_TIME}|\d{{1,2}} {_MONTH} \d{{4}}|{_MONTH} \d{{1,2}}, \d{{4}})\b")
#: What must not matter, for each of the two builds.
ONE = {"PYTHONHASHSEED": "1", "TZ": "America/Lima"}
OTHER = {"PYTHONHASHSEED": "4242", "TZ": "Asia/Tokyo"}
# A build that asks the network gets no answer, and fails.
_OFFLINE = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
_LOCAL = {name: "localhost,127.0.0.1" for name in ("no_proxy", "NO_PROXY")}


def files_of(site: Path) -> dict[str, bytes]:
    """Return the content of every file of a site by its path."""
    return {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}


def without_dates(content: bytes) -> bytes:
    """Return a file's content with its dates blanked; a file that is not text as it is."""
    try:
        return DATES.sub("<date>", content.decode("utf-8")).encode()
    except UnicodeDecodeError:
        return content


def differences(one: Path, other: Path) -> list[str]:
    """Say what differs between two sites besides dates.

    Parameters
    ----------
    one, other : pathlib.Path
        Folders of two sites.

    Returns
    -------
    list of str
        One line for each file that only one of them holds, or whose content differs, with what stands where they part.
    """
    left, right = files_of(one), files_of(other)
    found = [f"{name}: only in {one if name in left else other}" for name in sorted(left.keys() ^ right.keys())]
    for name in sorted(left.keys() & right.keys()):
        if left[name] != right[name]:
            pair = without_dates(left[name]), without_dates(right[name])
            found += [f"{name}: {_parting(*pair)}"] if pair[0] != pair[1] else []
    return found


def _parting(one: bytes, other: bytes) -> str:
    place = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    seen = [content[max(0, place - 40) : place + 40] for content in (one, other)]
    return f"at byte {place}, {seen[0]!r} against {seen[1]!r}"


def surroundings(what: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for one of the builds, without a network."""
    return {**os.environ, **_OFFLINE, **_LOCAL, "PYTHONDONTWRITEBYTECODE": "1", **what}


def build_twice(folder: Path) -> tuple[Path, Path]:
    """Build the book from two clones of this checkout, one after the other."""
    root = Path(__file__).resolve().parents[1]
    plan = ((folder / "a", ONE, "2"), (folder / "a much longer name" / "b", OTHER, "1"))
    for clone, _, _ in plan:  # before anything is built: somebody may commit in the meantime
        subprocess.run(["git", "clone", "--quiet", str(root), str(clone)], check=True)
    for clone, what, jobs in plan:
        environment = surroundings({**what, "COMPANION_PROJECT": str(clone), "PYTHONPATH": str(clone / "src")})
        command = [sys.executable, "-m", "companion", "book", "--jobs", jobs]
        subprocess.run(command, check=True, env=environment, cwd=clone)
    one, other = (clone / "_build" / "html" for clone, _, _ in plan)
    return one, other


def main() -> int:
    """Compare, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sites", nargs="*", type=Path, metavar="SITE")
    sites = parser.parse_args().sites
    if len(sites) not in {0, 2}:
        parser.error("expected two sites, or none to build them")
    with tempfile.TemporaryDirectory(prefix="companion-twice-") as folder:
        one, other = sites or build_twice(Path(folder))
        found = differences(one, other)
        left, right = files_of(one), files_of(other)
        dated = sum(left[name] != right[name] for name in left.keys() & right.keys()) if not found else 0
        said = f"{len(left)} files: the same" + (f", {dated} of them apart from dates" if dated else "")
        print("\n".join(found) or said)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
