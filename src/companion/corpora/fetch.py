"""Fetching public corpora: git at the pinned revision, verified, resumable, atomic.

What a folder under its final name holds is whole: work happens beside it, in ``.<name>.partial``, and the folder is
renamed into place after every file has been hashed and the stamp written. An interrupted run leaves the partial
folder behind and the next run goes on from it. Two runs at the same time queue behind a lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from companion.corpora._git import Git, GitError, explain_os_error, require_version
from companion.corpora.base import corpora_dir
from companion.corpora.upstreams import (
    INCOMPLETE,
    STAMP,
    UPSTREAMS,
    WHOLE,
    Stamp,
    Upstream,
    files_of,
    missing_layout,
    read_stamp,
    size_of,
    state,
)
from companion.errors import InputError

CHUNK = 256
"""Files per request: what an interruption can cost at most."""

_LICENCES = ("licen", "copying", "notice")
_REGULAR = ("100644", "100755")
_LFS = b"version https://git-lfs.github.com/spec/"

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
    keep_open: tuple[int, ...]
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
    def git(self) -> Git:
        return Git(self.partial / "repository", self.files, self.keep_open)


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
    pinned = _upstream(name)
    target = _target(pinned)
    here = _already_here(pinned, target, replace)
    if here is not None:
        # Needs no lock: what has its final name is whole. A shared, read-only folder is thus left alone.
        return here
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target, wait, say) as held:
            here = _already_here(pinned, target, replace)  # another run may have finished meanwhile
            if here is not None:
                return here
            if state(target, pinned.name) == INCOMPLETE and not replace:
                raise InputError(
                    f"{target}: holds files but no whole copy of {pinned.name}; move them away, or add --replace"
                )
            job = _Job(pinned, target, (held,), say, report, progress)
            return _bring(job, source, unverified)
    except OSError as error:
        raise InputError(explain_os_error(error, target)) from error


def _upstream(name: str) -> Upstream:
    if name not in UPSTREAMS:
        raise InputError(f"unknown source '{name}'; expected one of {', '.join(UPSTREAMS)}")
    return UPSTREAMS[name]


def _target(upstream: Upstream) -> Path:
    """Find the folder to fill: where a link leads if there is one, since whoever made it wants the data there."""
    target = corpora_dir() / upstream.name
    if target.is_symlink():
        target = target.resolve()
    if target.exists() and not target.is_dir():
        raise InputError(f"{target}: is a file, where the folder of {upstream.name} belongs; move it away")
    return target


def _already_here(upstream: Upstream, target: Path, replace: bool) -> Fetched | None:
    present = state(target, upstream.name)
    if replace or present not in WHOLE:
        return None
    return Fetched(upstream.name, target, "already here", present, read_stamp(target))


def _bring(job: _Job, source: str | None, unverified: bool) -> Fetched:
    address = job.upstream.url if source is None else source
    if not address:
        raise InputError(f"--from '': nothing is named; expected {_expected(job.upstream)}")
    folder = Path(address).expanduser()
    if source is not None and folder.is_dir() and not _is_repository(folder):
        stamp, action = _copy(job, folder, unverified), "copied"
    else:
        stamp, action = _fetch_revision(job, _address(address, folder, job.upstream)), "fetched"
    lacking = missing_layout(job.files, job.upstream)
    if lacking:
        shutil.rmtree(job.partial)
        raise InputError(f"{address}: lacks {lacking}; expected {_expected(job.upstream)}")
    stamp.write(job.files)
    _settle(job)
    return Fetched(job.upstream.name, job.target, action, state(job.target, job.upstream.name), stamp)


def _expected(upstream: Upstream) -> str:
    return f"a clone of {upstream.url}, its address, or a folder with its files at {upstream.revision[:12]}"


def _address(address: str, folder: Path, upstream: Upstream) -> str:
    if folder.is_dir():
        return folder.resolve().as_uri()
    if address.startswith("-") or ("://" not in address and ":" not in address):
        raise InputError(f"{address}: neither a folder nor the address of a repository; expected {_expected(upstream)}")
    return address


def _is_repository(folder: Path) -> bool:
    """Whether the folder itself is a clone or a bare repository; one further up does not make it one."""
    return (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())


# A clone or an address


def _fetch_revision(job: _Job, url: str) -> Stamp:
    upstream, git = job.upstream, job.git
    _open_partial(job, url)
    if not _has_commit(git, upstream.revision):
        job.say(f"fetching {upstream.name} at {upstream.revision[:12]} from {url}")
        options = ("--depth=1", "--filter=blob:none", "--no-tags", "--no-write-fetch-head")
        shown = ("--progress",) if job.progress else ()
        try:
            git.run("fetch", *options, *shown, "origin", upstream.revision, progress=job.progress)
            git.run("update-ref", "refs/heads/pinned", upstream.revision)
        except GitError as error:
            raise InputError(f"{url}: {error}") from error
    tree = _verify_commit(job, url)
    try:
        wanted = _wanted(git, upstream)
        _check_out(job, wanted)
        _verify_files(job, wanted, url)
    except GitError as error:
        if error.damaged:
            # What is damaged cannot be gone on from.
            shutil.rmtree(job.partial)
        raise InputError(f"{url}: {error}") from error
    return _stamp(job, url, upstream.revision, tree, verified=True)


def _open_partial(job: _Job, url: str) -> None:
    """Start the partial folder, or go on with the one an interrupted run left."""
    git = job.git
    job.files.mkdir(parents=True, exist_ok=True)
    if git.folder.exists():
        # We hold the lock, so nobody else is at work here: git's own locks are leftovers of a killed run.
        for leftover in [*git.folder.glob("*.lock"), *git.folder.glob("refs/**/*.lock")]:
            leftover.unlink()
        with contextlib.suppress(GitError):
            git.run("rev-parse", "--git-dir")
            job.say(f"going on with an interrupted fetch in {job.partial}")
            git.run("config", "remote.origin.url", url)
            return
        shutil.rmtree(git.folder)
    _initialise(git)
    for key, value in (
        ("core.bare", "false"),
        ("remote.origin.url", url),
        ("remote.origin.promisor", "true"),
        ("remote.origin.partialclonefilter", "blob:none"),
    ):
        git.run("config", key, value)
    # Attributes of the commit could turn line ends or run filters; these take precedence over them.
    (git.folder / "info").mkdir(exist_ok=True)
    (git.folder / "info" / "attributes").write_text("* -text -eol -ident -filter -working-tree-encoding\n")


def _initialise(git: Git) -> None:
    # Without a work tree, which init refuses; without a template, whose hooks and settings are the user's.
    git.folder.mkdir()
    fresh = Git(git.folder, None, git.keep_open)
    require_version(fresh)
    fresh.run("init", "--quiet", "--bare", "--template=")


def _has_commit(git: Git, revision: str) -> bool:
    # Not cat-file: in a partial clone that would go and fetch what is missing.
    with contextlib.suppress(GitError):
        return git.run("rev-parse", "--verify", "--quiet", "refs/heads/pinned").strip() == revision
    return False


def _verify_commit(job: _Job, url: str) -> str:
    """Check commit and tree; git checks on arrival that objects hash to their ids, fsck that they still do."""
    git, upstream = job.git, job.upstream
    try:
        commit = git.run("rev-parse", "--verify", f"{upstream.revision}^{{commit}}").strip()
        tree = git.run("rev-parse", "--verify", f"{upstream.revision}^{{tree}}").strip()
        git.run("fsck", "--no-dangling", "--no-progress", "--no-reflogs", "--connectivity-only", upstream.revision)
    except GitError as error:
        shutil.rmtree(job.partial)
        raise InputError(f"{url}: {error}; the partial copy was removed") from error
    if commit != upstream.revision or (upstream.tree and tree != upstream.tree):
        shutil.rmtree(job.partial)
        raise InputError(
            f"{url}: commit {commit} has tree {tree}; expected commit {upstream.revision} with tree {upstream.tree}"
        )
    return tree


def _wanted(git: Git, upstream: Upstream) -> dict[str, str]:
    """List the files to check out with their blob ids: regular files of the needed folders, and licences."""
    listing = git.run("ls-tree", "-r", "-z", "--full-tree", upstream.revision)
    wanted = {}
    for entry in filter(None, listing.split("\0")):
        description, path = entry.split("\t", 1)
        mode, _, blob = description.split(" ")
        needed = any(path.startswith(f"{folder}/") for folder in upstream.paths)
        licence = "/" not in path and path.lower().startswith(_LICENCES)
        # Links and submodules are left out: a link could point anywhere on this machine.
        if mode in _REGULAR and (needed or licence) and "\n" not in path:
            wanted[path] = blob
    return wanted


def _check_out(job: _Job, wanted: dict[str, str]) -> None:
    git = job.git
    done = _in_place(job, wanted)
    remaining = sorted(set(wanted) - done)
    missing = _missing_blobs(git, job.upstream.revision) if remaining else set()
    job.report(len(done), len(wanted))
    for start in range(0, len(remaining), CHUNK):
        chunk = remaining[start : start + CHUNK]
        blobs = sorted({wanted[path] for path in chunk} & missing)
        if blobs:
            git.run(
                "-c",
                "fetch.negotiationAlgorithm=noop",
                "fetch",
                "--quiet",
                "--no-tags",
                "--no-write-fetch-head",
                "--filter=blob:none",
                "--stdin",
                "origin",
                stdin="".join(f"{blob}\n" for blob in blobs).encode(),
            )
        names = "\0".join(chunk).encode("utf-8", "surrogateescape")
        git.run(
            "--literal-pathspecs",
            "checkout",
            "--quiet",
            "--force",
            job.upstream.revision,
            "--pathspec-from-file=-",
            "--pathspec-file-nul",
            stdin=names,
        )
        job.report(len(done) + start + len(chunk), len(wanted))


def _in_place(job: _Job, wanted: dict[str, str]) -> set[str]:
    """Files an interrupted run left whole; whatever else lies there is removed."""
    relative = {path.relative_to(job.files).as_posix(): path for path in files_of(job.files)}
    for name, path in relative.items():
        if name not in wanted or path.is_symlink():
            path.unlink()
    kept = sorted(name for name, path in relative.items() if path.exists() and name in wanted)
    (job.files / STAMP).unlink(missing_ok=True)
    found = dict(zip(kept, job.git.blob_ids(job.files, kept), strict=True)) if kept else {}
    return {name for name, blob in found.items() if blob == wanted[name]}


def _missing_blobs(git: Git, revision: str) -> set[str]:
    listing = git.run("rev-list", "--objects", "--missing=print", "--no-object-names", revision)
    return {line[1:] for line in listing.splitlines() if line.startswith("?")}


def _verify_files(job: _Job, wanted: dict[str, str], origin: str) -> None:
    """Hash every file as it is on disk; one that is not the committed one condemns the whole copy."""
    paths = sorted(wanted)
    present = [path for path in paths if (job.files / path).is_file()]
    found = dict(zip(present, job.git.blob_ids(job.files, present), strict=True)) if present else {}
    for path in paths:
        if found.get(path) != wanted[path]:
            shutil.rmtree(job.partial)
            raise InputError(
                f"{origin}: {path} has git id {found.get(path, 'none')}, expected {wanted[path]}: "
                "the copy is damaged or has been tampered with and was removed"
            )
    _refuse_pointers(job, paths, origin)


def _refuse_pointers(job: _Job, paths: Sequence[str], origin: str) -> None:
    for path in paths:
        if (job.files / path).stat().st_size < 1024 and (job.files / path).read_bytes().startswith(_LFS):
            shutil.rmtree(job.partial)
            raise InputError(f"{origin}: {path} is a Git LFS pointer, not data; clone with git-lfs and use --from")


# Plain files


def _copy(job: _Job, folder: Path, unverified: bool) -> Stamp:
    """Copy plain files, confirmed as the pinned tree by hashing, or openly unconfirmed."""
    upstream = job.upstream
    lacking = missing_layout(folder, upstream)
    if lacking:
        raise InputError(f"{folder}: lacks {lacking}; expected {_expected(upstream)}")
    if job.partial.exists():
        shutil.rmtree(job.partial)
    job.files.mkdir(parents=True)
    _initialise(job.git)
    job.say(f"hashing the files in {folder}")
    ids = _hash_folder(job, folder)
    verified = bool(upstream.tree) and _tree_of(job, folder, ids) == upstream.tree
    if not verified and not unverified:
        shutil.rmtree(job.partial)
        known = f"do not add up to git tree {upstream.tree[:12]}" if upstream.tree else "have no recorded git tree"
        raise InputError(
            f"{folder}: not a git repository, and its files {known}, so they cannot be confirmed as "
            f"{upstream.name} at {upstream.revision[:12]}; add --unverified to use them anyhow"
        )
    wanted = {path: blob for path, blob in ids.items() if _is_needed(path, upstream)}
    for done, path in enumerate(wanted, start=1):
        (job.files / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / path, job.files / path)
        job.report(done, len(wanted))
    _verify_files(job, wanted, str(folder))
    commit, tree = (upstream.revision, upstream.tree) if verified else ("", "")
    return _stamp(job, str(folder.resolve()), commit, tree, verified)


def _is_needed(path: str, upstream: Upstream) -> bool:
    licence = "/" not in path and path.lower().startswith(_LICENCES)
    return licence or any(path.startswith(f"{needed}/") for needed in upstream.paths)


def _hash_folder(job: _Job, folder: Path) -> dict[str, str]:
    paths = [path.relative_to(folder).as_posix() for path in files_of(folder) if not path.is_symlink()]
    if any("\n" in path for path in paths):
        raise InputError(f"{folder}: a file has a line end in its name; expected the files of {job.upstream.name}")
    return dict(zip(paths, job.git.blob_ids(folder, paths), strict=True)) if paths else {}


def _tree_of(job: _Job, folder: Path, ids: dict[str, str]) -> str:
    """Compute the git tree id of a folder without copying its contents into a repository."""
    lines = []
    for path, blob in ids.items():
        mode = "100755" if os.access(folder / path, os.X_OK) else "100644"
        lines.append(f"{mode} {blob}\t{path}\0")
    for link in (path for path in files_of(folder) if path.is_symlink()):
        target = os.fsencode(link.readlink())
        blob = job.git.run("hash-object", "--stdin", stdin=target).strip()
        lines.append(f"120000 {blob}\t{link.relative_to(folder).as_posix()}\0")
    index = job.partial / "index"
    listing = "".join(lines).encode("utf-8", "surrogateescape")
    job.git.run("update-index", "-z", "--index-info", stdin=listing, index=index)
    return job.git.run("write-tree", "--missing-ok", index=index).strip()


# Both


def _stamp(job: _Job, url: str, commit: str, tree: str, verified: bool) -> Stamp:
    files, size = size_of(job.files)
    paths = sorted(path.relative_to(job.files).as_posix() for path in files_of(job.files))
    ids = job.git.blob_ids(job.files, paths) if paths else []
    lines = "".join(f"{blob} {path}\n" for path, blob in zip(paths, ids, strict=True))
    return Stamp(
        name=job.upstream.name,
        url=url,
        commit=commit,
        tree=tree,
        verified=verified,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        files=files,
        bytes=size,
        manifest=hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest(),
    )


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


@contextlib.contextmanager
def _lock(target: Path, wait: float | None, say: Say) -> Iterator[int]:
    """Hold the lock of one corpus; yields the descriptor that holds it."""
    import fcntl  # only here: there is none on Windows, where reading a corpus laid down by hand still works

    path = target.parent / f".{target.name}.lock"
    with path.open("a+", encoding="utf-8") as file:
        waited, told = 0.0, False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                if wait is not None and waited >= wait:
                    raise InputError(
                        f"{target}: another fetch (process {holder}) is running; wait for it, or stop it"
                    ) from None
                if not told:
                    say(f"another fetch of {target.name} (process {holder}) is running; waiting for it")
                    told = True
                time.sleep(0.1)
                waited += 0.1
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield file.fileno()
