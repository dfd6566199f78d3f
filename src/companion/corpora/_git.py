"""Running the ``git`` executable, and saying in plain words what went wrong."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from threading import Timer
from typing import IO, TextIO

from companion.errors import InputError

STALLED = 120.0
"""Seconds without a sign of life after which a connection counts as cut, whatever the protocol."""

_UPLOAD_PACK = "git -c uploadpack.allowFilter=true -c uploadpack.allowAnySHA1InWant=true upload-pack"
"""How a clone on this machine is asked: for single files, so that it may lack others."""

FULL = "the disk is full: make room and run the same command again; what has arrived is kept"
# What would lead git to another repository (when we are started from a hook) or to the user's own settings.
_REDIRECTING = re.compile(
    "GIT_(DIR|WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY|ALTERNATE_OBJECT_DIRECTORIES|COMMON_DIR|NAMESPACE|SHALLOW_FILE|PREFIX)"
)
_SETTINGS = ("core.hooksPath=/dev/null", "gc.auto=0", "maintenance.auto=false", "fetch.writeCommitGraph=false")
_DAMAGED = "the repository is damaged or has been tampered with: its objects do not have the ids they claim"
_CAUSES = (
    ("no space left|disk quota|file too large", FULL),
    (
        "not our ref|remote ref|unadvertised object|not a valid object name|does not point to a valid object",
        "the pinned revision is not there: upstream may have rewritten its history, or this is another repository",
    ),
    (
        "repository not found|appear to be a git repository|does not exist|not a git repository",
        "there is no repository at this address",
    ),
    (
        "dubious ownership",
        "git does not trust the folder's owner: allow it with git config --global --add safe.directory FOLDER",
    ),
    (
        "authentication failed|could not read username|permission denied|403 forbidden",
        "access was denied: the address wants a login, or is not public",
    ),
    (
        "could not resolve|failed to connect|couldn't connect|could not connect|unreachable|timed out|refused",
        "the network or the host cannot be reached: check the connection, or give --from a local copy",
    ),
    (
        "early eof|hung up|rpc failed|connection reset|unexpected disconnect|index-pack output|protocol error"
        "|could not read from remote|expected flush",
        "the connection was cut: run the same command again; what has arrived is kept",
    ),
    ("corrupt|hash mismatch|sha1 collision|bad object|did not match|unable to read|missing blob", _DAMAGED),
)


class GitError(InputError):
    """Git refused or failed."""


def git_fetch(
    repository: Path,
    url: str,
    *words: str,
    before: tuple[str, ...] = (),
    stdin: str = "",
    progress: TextIO | None = None,
) -> None:
    """Fetch commits and trees, and the blobs that are named; silence for `STALLED` seconds counts as a cut."""
    local = ("-c", f"remote.origin.uploadpack={_UPLOAD_PACK}") if url.startswith("file:") else ()
    options = ("--filter=blob:none", "--no-tags", "--no-write-fetch-head", "--progress")
    git(repository, *before, *local, "fetch", *options, *words, stdin=stdin, watched=(progress,))


def git(
    repository: Path,
    *words: str,
    folder: Path | None = None,
    stdin: str = "",
    stdout: IO[bytes] | int = subprocess.PIPE,
    watched: tuple[TextIO | None, ...] = (),
) -> str:
    """Run one git command on the partial repository (or in a folder), and say in plain words what went wrong."""
    program = shutil.which("git")
    if program is None:
        raise InputError(
            "git is not installed, or not on the PATH: install it (https://git-scm.com), "
            "or lay the files down by hand in the folder that `companion corpora` names"
        )
    environment = {name: value for name, value in os.environ.items() if not _REDIRECTING.fullmatch(name)}
    environment |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    where = [f"--git-dir={repository.absolute()}"] if folder is None else ["-C", str(folder)]
    command = [program, *settings, *where, *words]
    with subprocess.Popen(
        command, stdin=-1, stdout=stdout, stderr=-1, env=environment, start_new_session=True
    ) as process:
        try:
            if watched:
                assert process.stdin is not None
                process.stdin.write(stdin.encode())
                process.stdin.close()
                complaints, output = _watched(process, watched[0]), b""
            else:
                output, raw = process.communicate()
                complaints = raw.decode("utf-8", "replace")
        except BaseException:
            _end(process)
            raise
    if process.returncode:
        raise _error(next((word for word in words if word.isalpha()), "git"), complaints, process.returncode)
    return (output or b"").decode("utf-8", "surrogateescape")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End git with the programs it started: a stalled ssh would outlive it."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()


def _watched(process: subprocess.Popen[bytes], progress: TextIO | None) -> str:
    """Pass on what git says while it fetches; silence means that the connection has stalled."""
    decoder, kept = codecs.getincrementaldecoder("utf-8")("replace"), ""
    stalled: list[bool] = []

    def stop() -> None:
        stalled.append(True)
        _end(process)

    assert process.stderr is not None
    while True:
        timer = Timer(STALLED, stop)
        timer.start()
        try:
            chunk = os.read(process.stderr.fileno(), 4096)
        finally:
            timer.cancel()
        if not chunk:
            break
        text = decoder.decode(chunk)
        kept += text
        if progress is not None:
            progress.write(text)
            progress.flush()
    return f"fatal: the remote end hung up: silent for {STALLED:g} s\n" if stalled else kept


def _error(command: str, complaints: str, code: int) -> GitError:
    lines = [line.strip() for line in re.split(r"[\r\n]+", complaints) if line.strip()]
    telling = [line for line in lines if line.lower().startswith(("fatal:", "error:", "remote:"))] or lines
    said = telling[-1] if telling else f"exit code {code}"
    for marks, explanation in _CAUSES:
        if re.search(marks, complaints, re.IGNORECASE):
            return GitError(f"{explanation} (git {command}: {said})")
    return GitError(f"git {command} failed ({said})")
