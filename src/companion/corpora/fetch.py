"""Fetching public corpora: git at the pinned revision, verified, resumable, atomic.

What a folder under its final name holds is whole: work happens beside it, in ``.<name>.partial``, and the folder is
renamed into place after every file has been hashed and the stamp written. An interrupted run leaves the partial folder
behind and the next run goes on from it. Two runs at the same time queue behind a lock. Transport and objects are git's.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from companion.corpora._git import FULL, GitError, git, git_fetch
from companion.corpora.upstreams import (
    INCOMPLETE,
    UPSTREAMS,
    WHOLE,
    Stamp,
    Upstream,
    contents,
    files_of,
    missing_layout,
    other_folders,
    read_stamp,
    size_of,
    state,
    tree_id,
)
from companion.errors import InputError
from companion.paths import corpora_dir

CHUNK = 256
"""Files per request: what an interruption can cost at most."""

_LICENCES = ("licen", "copying", "notice")
_REGULAR = ("100644", "100755")

Say = Callable[[str], None]
Report = Callable[[int, int], None]


@dataclass(frozen=True)
class Fetched:
    """What a fetch did."""

    name: str
    where: Path
    action: str
    state: str
    stamp: Stamp | None


@dataclass(frozen=True)
class _Job:
    """One fetch under its lock: where it works, and how it talks."""

    upstream: Upstream
    target: Path
    say: Say
    report: Report
    progress: TextIO | None

    @property
    def partial(self) -> Path:
        return self.target.parent / f".{self.target.name}.partial"

    @property
    def files(self) -> Path:
        return self.partial / "files"

    @property
    def repository(self) -> Path:
        return self.partial / "repository"

    def condemn(self, message: str) -> InputError:
        """Throw away what cannot be gone on from."""
        shutil.rmtree(self.partial, ignore_errors=True)
        return InputError(f"{message}; the partial copy was removed")


def fetch(
    name: str,
    source: str | None = None,
    *,
    unverified: bool = False,
    replace: bool = False,
    wait: float | None = None,
    say: Say = lambda _: None,
    report: Report = lambda _done, _total: None,
    progress: TextIO | None = None,
) -> Fetched:
    """Fetch a corpus into its folder under `corpora_dir`."""
    if name not in UPSTREAMS:
        raise InputError(f"unknown source '{name}'; expected one of {', '.join(UPSTREAMS)}")
    pinned = UPSTREAMS[name]
    # Where a link leads if there is one, since whoever made it wants the data there.
    target = corpora_dir() / name
    target = target.resolve() if target.is_symlink() else target
    if target.exists() and not target.is_dir():
        raise InputError(f"{target}: is a file, where the folder of {name} belongs; move it away")
    here = _already_here(pinned, target, replace)
    if here is not None:  # needs no lock: a shared, read-only folder is thus left alone
        return here
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target, wait, say):
            here = _already_here(pinned, target, replace)  # another run may have finished meanwhile
            if here is not None:
                return here
            if state(target, name) == INCOMPLETE and not replace:
                raise InputError(f"{target}: holds files but no whole copy of {name}; move them away, or add --replace")
            return _bring(_Job(pinned, target, say, report, progress), source, unverified)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        told = f"{target}: {FULL}" if full else f"{error.filename or target}: {error.strerror or error}"
        raise InputError(told) from error


def _already_here(upstream: Upstream, target: Path, replace: bool) -> Fetched | None:
    present = state(target, upstream.name)
    if replace or present not in WHOLE:
        return None
    return Fetched(upstream.name, target, "already here", present, read_stamp(target))


@contextlib.contextmanager
def _lock(target: Path, wait: float | None, say: Say) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(target.parent / f".{target.name}.lock")
    try:
        with contextlib.suppress(Timeout), lock.acquire(timeout=0):
            yield
            return
        say(f"another fetch of {target.name} is running; waiting for it")
        with lock.acquire(timeout=-1 if wait is None else wait):
            yield
    except Timeout:
        raise InputError(f"{target}: another fetch is running; wait for it, or stop it") from None


def _bring(job: _Job, source: str | None, unverified: bool) -> Fetched:
    upstream, address = job.upstream, job.upstream.url if source is None else source
    expected = f"a clone of {upstream.url}, its address, or a folder with its files at {upstream.revision[:12]}"
    folder = Path(address).expanduser()
    if not address:
        raise InputError(f"--from '': nothing is named; expected {expected}")
    if folder.is_dir() and not _is_repository(folder):
        lacking, action = missing_layout(folder, upstream), "copied"
        stamp = None if lacking else _copy(job, folder, unverified)
    else:
        if not folder.is_dir() and (address.startswith("-") or ":" not in address):
            raise InputError(f"{address}: neither a folder nor the address of a repository; expected {expected}")
        stamp, action = _fetch_revision(job, address, folder if folder.is_dir() else None), "fetched"
        lacking = missing_layout(job.files, upstream)
    if stamp is None or lacking:
        shutil.rmtree(job.partial, ignore_errors=True)
        raise InputError(f"{address}: lacks {lacking}; expected {expected}")
    stamp.write(job.files)
    _settle(job)
    return Fetched(upstream.name, job.target, action, state(job.target, upstream.name), stamp)


def _is_repository(folder: Path) -> bool:
    """Whether the folder itself is a clone or a bare repository; one further up does not make it one."""
    return (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())


def _needed(path: str, upstream: Upstream) -> bool:
    licence = "/" not in path and path.lower().startswith(_LICENCES)
    return licence or any(path.startswith(f"{folder}/") for folder in upstream.folders)


# A clone or an address


def _fetch_revision(job: _Job, address: str, clone: Path | None) -> Stamp:
    upstream, url = job.upstream, address if clone is None else clone.resolve().as_uri()
    revision = upstream.revision
    try:
        _open_partial(job, url)
        if git(job.repository, "for-each-ref", "--format=%(objectname)", "refs/heads/pinned").strip() != revision:
            job.say(f"fetching {upstream.name} at {revision[:12]} from {url}")
            git_fetch(job.repository, url, "--depth=1", "origin", revision, progress=job.progress)
            git(job.repository, "update-ref", "refs/heads/pinned", revision)
        try:  # git checks on arrival that objects have the ids they claim, fsck that they still do
            git(job.repository, "fsck", "--no-dangling", "--no-progress", "--no-reflogs", revision)
            tree = git(job.repository, "rev-parse", "--verify", f"{revision}^{{tree}}").strip()
            listed = _listed(job)
        except GitError as error:
            raise job.condemn(str(error)) from error
        if upstream.tree and tree != upstream.tree:
            raise job.condemn(f"commit {revision} has tree {tree}; expected tree {upstream.tree}")
        wanted = {path: blob for path, blob in listed.items() if _needed(path, upstream)}
        gone = _missing(job, clone) if clone is not None else set()
        lacks = [path for path, blob in listed.items() if blob in gone]
        short = [path for path in lacks if path in wanted]
        if short:
            raise InputError(f"lacks {_some(short)}, which {upstream.name} needs; fetch from {upstream.url}")
        _write_files(job, url, wanted)
        _confirm(job, wanted)
    except InputError as error:
        raise InputError(f"{url}: {error}") from error
    if lacks:
        job.say(f"{url} lacks {_some(lacks)} of the revision, which {upstream.name} does not need")
    return _stamp(job, url, revision, tree)


def _open_partial(job: _Job, url: str) -> None:
    """Start the partial folder, or go on with the one an interrupted run left."""
    job.files.mkdir(parents=True, exist_ok=True)
    # We hold the lock, so nobody else is at work here: git's own locks are leftovers of a killed run.
    for leftover in job.repository.rglob("*.lock"):
        leftover.unlink()
    with contextlib.suppress(GitError):
        if (job.repository / "HEAD").exists():
            git(job.repository, "config", "remote.origin.url", url)
            job.say(f"going on with an interrupted fetch in {job.partial}")
            return
    shutil.rmtree(job.repository, ignore_errors=True)
    # Without a template, whose hooks and settings are the user's.
    git(job.repository, "init", "--quiet", "--bare", "--template=")
    for key, value in (("url", url), ("promisor", "true"), ("partialclonefilter", "blob:none")):
        git(job.repository, "config", f"remote.origin.{key}", value)


def _listed(job: _Job) -> dict[str, str]:
    """List the regular files of the revision with their blob ids; links could point anywhere and are left out."""
    listed = {}
    for entry in filter(
        None, git(job.repository, "ls-tree", "-r", "-z", "--full-tree", job.upstream.revision).split("\0")
    ):
        description, path = entry.split("\t", 1)
        mode, _, blob = description.split(" ")
        if mode in _REGULAR and ".." not in path.split("/"):
            listed[path] = blob
    return listed


def _missing(job: _Job, folder: Path | None = None) -> set[str]:
    """Blobs of the revision that a repository lacks."""
    words = ("rev-list", "--objects", "--missing=print", "--no-object-names", job.upstream.revision)
    return {line[1:] for line in git(job.repository, *words, folder=folder).splitlines() if line.startswith("?")}


def _some(paths: list[str]) -> str:
    return paths[0] + (f" (and {len(paths) - 1} more)" if len(paths) > 1 else "")


def _write_files(job: _Job, url: str, wanted: Mapping[str, str]) -> None:
    """Fetch what is missing, in parts, and write it; what an interrupted run left whole is kept."""
    have = {path: blob for path, (_, blob) in contents(job.files).items()}
    for path in files_of(job.files):
        name = path.relative_to(job.files).as_posix()
        if path.is_symlink() or have.get(name) != wanted.get(name):
            path.unlink()
    remaining = sorted(path for path, blob in wanted.items() if have.get(path) != blob)
    missing = _missing(job) if remaining else set()
    for start in range(0, len(remaining), CHUNK):
        job.report(len(wanted) - len(remaining) + start, len(wanted))
        chunk = remaining[start : start + CHUNK]
        blobs = sorted({wanted[path] for path in chunk} & missing)
        if blobs:
            noop = ("-c", "fetch.negotiationAlgorithm=noop")
            git_fetch(
                job.repository,
                url,
                "--stdin",
                "origin",
                before=noop,
                stdin="".join(f"{blob}\n" for blob in blobs),
                progress=job.progress,
            )
        for name in chunk:
            (job.files / name).parent.mkdir(parents=True, exist_ok=True)
            with (job.files / name).open("wb") as file:
                git(job.repository, "cat-file", "blob", wanted[name], stdout=file)
    job.report(len(wanted), len(wanted))


def _confirm(job: _Job, wanted: Mapping[str, str]) -> None:
    """Hash every file as it is on disk; one that is not the committed one condemns the whole copy."""
    found = {path: blob for path, (_, blob) in contents(job.files).items()}
    for path in sorted(wanted):
        if found.get(path) != wanted[path]:
            was = f"{path} has git id {found.get(path, 'none')}, expected {wanted[path]}"
            raise job.condemn(f"{was}: the copy is damaged or has been tampered with")


# Plain files


def _copy(job: _Job, folder: Path, unverified: bool) -> Stamp:
    """Copy plain files, confirmed by the tree ids of their folders or of the whole, or openly unconfirmed."""
    upstream = job.upstream
    job.say(f"hashing the files in {folder}")
    found = contents(folder)
    other = other_folders(found, upstream)
    verified = not other or (bool(upstream.tree) and tree_id(found) == upstream.tree)
    if not verified and not unverified:
        raise InputError(
            f"{folder}: not a git repository, and {_some(other)} cannot be confirmed as {upstream.name} at "
            f"{upstream.revision[:12]} by its git tree id; add --unverified to use the files anyhow"
        )
    shutil.rmtree(job.partial, ignore_errors=True)
    wanted = {path: blob for path, (mode, blob) in found.items() if mode in _REGULAR and _needed(path, upstream)}
    for done, path in enumerate(wanted, start=1):
        (job.files / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / path, job.files / path)
        job.report(done, len(wanted))
    _confirm(job, wanted)
    commit, tree = (upstream.revision, upstream.tree) if verified else ("", "")
    return _stamp(job, str(folder.resolve()), commit, tree)


# Both


def _stamp(job: _Job, url: str, commit: str, tree: str) -> Stamp:
    ids = {path: blob for path, (_, blob) in contents(job.files).items()}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Stamp(job.upstream.name, url, commit, tree, bool(commit), now, *size_of(job.files), ids)


def _settle(job: _Job) -> None:
    """Give the finished folder its name; whatever had the name before is removed afterwards."""
    replaced = job.partial / "replaced"
    shutil.rmtree(replaced, ignore_errors=True)  # left by a run that was killed just here
    if job.target.exists():
        job.target.rename(replaced)
    try:
        job.files.rename(job.target)
    except OSError:
        if replaced.exists():
            replaced.rename(job.target)
        raise
    shutil.rmtree(job.partial, ignore_errors=True)
