"""Running the ``git`` executable, and saying in plain words what went wrong.

Transport, object verification and checkout are git's; this module only calls it, keeps it from being led astray by
the caller's environment and configuration, and turns its complaints into one `InputError` each.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from companion.errors import InputError

OLDEST = (2, 30)
"""The first git that has every option used here (``--no-write-fetch-head``, ``--pathspec-from-file``)."""

# What would redirect git to another repository, e.g. when we are started from a git hook.
_REDIRECTING = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_SHALLOW_FILE",
    "GIT_PREFIX",
)
_SETTINGS = (
    # The bytes of the commit, whatever the user's line-end or hook settings are.
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.quotePath=false",
    # A connection that has stalled for a minute counts as cut; it would otherwise hang for ever.
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
    "advice.detachedHead=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "fetch.writeCommitGraph=false",
)

_FULL = "the disk is full: make room and run the same command again"
_DAMAGED = "the repository is damaged or has been tampered with: its objects do not have the ids they claim"
_CAUSES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("no space left on device", "disk quota exceeded", "file too large"),
        _FULL + "; what has arrived is kept",
    ),
    (
        (
            "not our ref",
            "couldn't find remote ref",
            "no such remote ref",
            "unadvertised object",
            "not a valid object name",
            "does not point to a valid object",
        ),
        "the pinned revision is not there: upstream may have rewritten its history, or this is another repository",
    ),
    (
        (
            "repository not found",
            "does not appear to be a git repository",
            "does not exist",
            "not a git repository",
        ),
        "there is no repository at this address",
    ),
    (
        ("dubious ownership",),
        "git does not trust the folder's owner: allow it with git config --global --add safe.directory FOLDER",
    ),
    (
        ("authentication failed", "could not read username", "permission denied", "403 forbidden"),
        "access was denied: the address wants a login, or is not public",
    ),
    (
        (
            "could not resolve host",
            "failed to connect",
            "couldn't connect",
            "network is unreachable",
            "connection timed out",
            "timed out",
            "connection refused",
            "could not connect",
        ),
        "the network or the host cannot be reached: check the connection, or give --from a local copy",
    ),
    (
        (
            "early eof",
            "hung up unexpectedly",
            "rpc failed",
            "connection reset",
            "unexpected disconnect",
            "operation too slow",
            "invalid index-pack output",
            "protocol error",
            "remote end hung up",
            "could not read from remote repository",
            "expected flush after",
        ),
        "the connection was cut: run the same command again; what has arrived is kept",
    ),
    (
        ("from promisor remote", "failed to fetch some objects"),
        "an object of the pinned revision does not arrive: the connection was cut, or the repository is damaged",
    ),
    (
        (
            "corrupt",
            "hash mismatch",
            "sha1 collision",
            "bad object",
            "did not match",
            "unable to read",
            "missing blob",
        ),
        _DAMAGED,
    ),
)


class GitError(InputError):
    """Git refused or failed; `damaged` tells whether objects turned out not to be what they claim to be."""

    def __init__(self, message: str, damaged: bool = False) -> None:
        super().__init__(message)
        self.damaged = damaged


def executable() -> str:
    """Find the ``git`` executable."""
    found = shutil.which("git")
    if found is None:
        raise InputError(
            "git is not installed, or not on the PATH: install it (https://git-scm.com), "
            "or lay the files down by hand in the folder that `companion corpora` names"
        )
    return found


def require_version(git: Git) -> None:
    """Refuse a git that lacks the options used here."""
    said = git.run("version")
    found = re.search(r"(\d+)\.(\d+)", said)
    if found and (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise InputError(f"{said.strip()} is too old: expected git {oldest} or newer")


@dataclass(frozen=True)
class Git:
    """A repository, and how git is called on it."""

    folder: Path
    work_tree: Path | None = None
    keep_open: tuple[int, ...] = ()

    def run(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        progress: TextIO | None = None,
        index: Path | None = None,
    ) -> str:
        """Run one git command."""
        environment = {name: value for name, value in os.environ.items() if name not in _REDIRECTING}
        environment |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        tree = [] if self.work_tree is None else [f"--work-tree={self.work_tree.absolute()}"]
        command = [executable(), *settings, f"--git-dir={self.folder.absolute()}", *tree, *arguments]
        try:
            with subprocess.Popen(
                command,
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                pass_fds=self.keep_open,
            ) as process:
                output, complaints = _communicate(process, stdin, progress)
        except OSError as error:
            raise InputError(explain_os_error(error, self.folder)) from error
        if process.returncode:
            raise _error(_command_of(arguments), complaints, process.returncode)
        return output.decode("utf-8", "surrogateescape")

    def blob_ids(self, root: Path, paths: Sequence[str]) -> list[str]:
        """Compute the git blob ids of files as they are on disk, byte by byte."""
        names = "".join(f"{root.absolute() / path}\n" for path in paths)
        # --no-filters: the bytes, not what an attribute would make of them.
        found = self.run("hash-object", "--no-filters", "--stdin-paths", stdin=os.fsencode(names))
        return found.split()


def explain_os_error(error: OSError, folder: Path) -> str:
    """Say in plain words why the operating system refused."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{folder}: {_FULL}"
    return f"{error.filename or folder}: {error.strerror or error}"


def _command_of(arguments: Sequence[str]) -> str:
    """Name the git command among its arguments, past git's own options."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "-c":
            next(rest, None)
        elif not argument.startswith("-"):
            return argument
    return " ".join(arguments)


def _communicate(process: subprocess.Popen[bytes], stdin: bytes | None, progress: TextIO | None) -> tuple[bytes, str]:
    if progress is None:
        output, complaints = process.communicate(stdin)
        return output, complaints.decode("utf-8", "replace")
    # Only commands that print little on standard output are run with progress, so reading one pipe to its end
    # before the other cannot block.
    if stdin is not None:
        cast(BinaryIO, process.stdin).write(stdin)
        cast(BinaryIO, process.stdin).close()
    kept = "".join(_echo(cast(BinaryIO, process.stderr), progress))
    return cast(BinaryIO, process.stdout).read(), kept


def _echo(stream: BinaryIO, progress: TextIO) -> Iterable[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while chunk := os.read(stream.fileno(), 4096):
        text = decoder.decode(chunk)
        progress.write(text)
        progress.flush()
        yield text


def _error(command: str, complaints: str, code: int) -> GitError:
    lines = [line.strip() for line in complaints.replace("\r", "\n").split("\n") if line.strip()]
    telling = [line for line in lines if line.lower().startswith(("fatal:", "error:", "remote:"))] or lines
    said = telling[-1] if telling else f"exit code {code}"
    lowered = complaints.lower()
    for marks, explanation in _CAUSES:
        if any(mark in lowered for mark in marks):
            return GitError(f"{explanation} (git {command}: {said})", damaged=explanation == _DAMAGED)
    return GitError(f"git {command} failed ({said})")
