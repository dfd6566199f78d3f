"""Fetching against local repositories: nothing that goes wrong may leave a half corpus under a whole one's name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from companion.corpora import _git, base, fetch, upstreams
from companion.errors import InputError

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

DOMAINS = ("education", "household", "medical", "office")
GIT = shutil.which("git") or "git"


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "core.autocrlf=false")
    done = subprocess.run([GIT, "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, message: str = "data") -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def fill(folder: Path) -> dict[str, bytes]:
    """Files in the layout of GateMem, with bytes that a careless checkout would change."""
    files = {"LICENSE": b"MIT\n"}
    for number, domain in enumerate(DOMAINS):
        for name in ("episodes", "checkpoints"):
            files[f"bench/data/{domain}/{name}.jsonl"] = f'{{"n": {number}}}\r\n{{"é": 1}}\n'.encode() * 40
    for name, content in {**files, "src/tool.py": b"print()\n", "README.md": b"# upstream\n"}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return files


class Upstream:
    """A repository to fetch from, pinned as GateMem's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        folder.mkdir(parents=True)
        git(folder, "init", "-q", "-b", "main")
        self.files = fill(folder)
        self.pin(commit(folder))

    def pin(self, revision: str, tree: str | None = None) -> None:
        self.revision = revision
        self.tree = git(self.folder, "rev-parse", f"{revision}^{{tree}}") if tree is None else tree
        pinned = replace(
            upstreams.UPSTREAMS["gatemem"],
            url=self.folder.as_uri(),
            revision=revision,
            tree=self.tree,
            folders={"bench/data": git(self.folder, "rev-parse", f"{revision}:bench/data")}
            if tree is None
            else {"bench/data": ""},
        )
        self.monkeypatch.setitem(upstreams.UPSTREAMS, "gatemem", pinned)


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("COMPANION_CORPORA", str(tmp_path / "corpora"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return tmp_path


@pytest.fixture
def upstream(home, monkeypatch) -> Upstream:
    return Upstream(home / "upstream", monkeypatch)


@pytest.fixture
def target(home) -> Path:
    return home / "corpora" / "gatemem"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in upstreams.files_of(folder)}


def assert_nothing_whole(target: Path) -> None:
    assert not target.exists()
    assert not upstreams.is_whole(target, "gatemem")


# What goes right


def test_only_what_is_needed_arrives_byte_by_byte(upstream, target):
    done = fetch.fetch("gatemem")
    assert (done.action, done.state) == ("fetched", "verified")
    assert contents(target) == upstream.files
    stamp = upstreams.read_stamp(target)
    assert (stamp.commit, stamp.tree, stamp.verified) == (upstream.revision, upstream.tree, True)
    assert (stamp.files, stamp.bytes) == (9, sum(map(len, upstream.files.values())))
    assert sorted(path.name for path in target.parent.iterdir()) == [".gatemem.lock", "gatemem"]


def test_a_second_run_has_nothing_to_do(upstream, target):
    fetch.fetch("gatemem")
    before = target.stat().st_mtime_ns
    assert fetch.fetch("gatemem").action == "already here"
    assert target.stat().st_mtime_ns == before


def test_git_variables_of_the_caller_do_not_redirect_it(upstream, home, target, monkeypatch):
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, str(home / "elsewhere"))
    fetch.fetch("gatemem")
    assert contents(target) == upstream.files


def test_links_are_left_out(upstream, target):
    (upstream.folder / "bench/data/office/passwd").symlink_to("/etc/passwd")
    upstream.pin(commit(upstream.folder))
    fetch.fetch("gatemem")
    assert contents(target) == upstream.files


def test_a_clone_serves_committed_files_whatever_lies_in_its_work_tree(upstream, home, target):
    clone = home / "clone"
    git(home, "clone", "-q", str(upstream.folder), str(clone))
    (clone / "bench/data/office/episodes.jsonl").write_text("tampered\n")
    done = fetch.fetch("gatemem", str(clone))
    assert done.state == "verified"
    assert contents(target) == upstream.files
    assert done.stamp.url == clone.as_uri()


# Moved branches


def test_a_moved_branch_does_not_move_the_data(upstream, target):
    (upstream.folder / "bench/data/office/episodes.jsonl").write_text("changed\n")
    commit(upstream.folder, "later")
    fetch.fetch("gatemem")
    assert contents(target) == upstream.files


def test_rewritten_history_without_the_revision_is_refused(upstream, target):
    git(upstream.folder, "checkout", "-q", "--orphan", "other")
    commit(upstream.folder, "rewritten")
    git(upstream.folder, "branch", "-q", "-D", "main")
    git(upstream.folder, "reflog", "expire", "--expire=now", "--all")
    git(upstream.folder, "gc", "-q", "--prune=now")
    with pytest.raises(InputError, match="the pinned revision is not there"):
        fetch.fetch("gatemem")
    assert_nothing_whole(target)


# Tampering


def loose(folder: Path, identity: str) -> Path:
    return folder / ".git" / "objects" / identity[:2] / identity[2:]


def overwrite(folder: Path, identity: str, kind: str, content: bytes) -> None:
    """Put other content under an object's id, well-formed in every other respect."""
    path = loose(folder, identity)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    path.write_bytes(zlib.compress(f"{kind} {len(content)}".encode() + b"\0" + content))


@pytest.mark.parametrize("victim", ["HEAD:bench/data/office/episodes.jsonl", "HEAD:bench/data/office", "HEAD"])
def test_a_tampered_clone_is_refused(upstream, target, victim):
    identity = git(upstream.folder, "rev-parse", victim)
    kind = git(upstream.folder, "cat-file", "-t", identity)
    if kind == "blob":
        content = b"tampered\n"
    elif kind == "tree":
        evil = git(upstream.folder, "rev-parse", "HEAD:README.md")
        content = b"".join(
            f"100644 {n}".encode() + b"\0" + bytes.fromhex(evil) for n in ("checkpoints.jsonl", "episodes.jsonl")
        )
    else:
        raw = subprocess.run(
            [GIT, "-C", str(upstream.folder), "cat-file", "commit", "HEAD"], check=True, capture_output=True
        )
        content = raw.stdout.replace(b"Test", b"Best")
    overwrite(upstream.folder, identity, kind, content)
    with pytest.raises(InputError) as refusal:
        fetch.fetch("gatemem")
    assert upstream.folder.as_uri() in str(refusal.value)
    assert_nothing_whole(target)


def test_another_tree_than_the_recorded_one_is_refused(upstream, target):
    tree = upstream.tree
    upstream.pin(upstream.revision, tree="0" * 40)
    with pytest.raises(InputError, match=f"commit {upstream.revision} has tree {tree}; expected tree 0000"):
        fetch.fetch("gatemem")
    assert_nothing_whole(target)
    assert not (target.parent / ".gatemem.partial").exists()


def test_files_that_differ_from_the_commit_condemn_the_copy(upstream, target, monkeypatch):
    honest = fetch._write_files

    def then_alter(job, url, wanted):
        honest(job, url, wanted)
        with (job.files / "bench/data/office/episodes.jsonl").open("ab") as file:
            file.write(b" ")

    monkeypatch.setattr(fetch, "_write_files", then_alter)
    with pytest.raises(InputError, match=r"bench/data/office/episodes.jsonl has git id \w+, expected"):
        fetch.fetch("gatemem")
    assert_nothing_whole(target)
    assert not (target.parent / ".gatemem.partial").exists()


def test_the_name_is_given_last_and_at_once(upstream, target, monkeypatch):
    renamed = []
    rename = Path.rename

    def watch(self, destination):
        if Path(destination) == target:
            assert upstreams.read_stamp(self).verified
            assert {path.name for path in self.iterdir()} == {"LICENSE", "bench", upstreams.STAMP}
            renamed.append(self)
        return rename(self, destination)

    monkeypatch.setattr(Path, "rename", watch)
    fetch.fetch("gatemem", report=lambda *_: assert_nothing_whole(target))
    assert len(renamed) == 1


# Interruption. A wrapper named git stands before the real one on the PATH and misbehaves on request.

WRAPPER = """#!/bin/sh
# Notes every call that asks for single objects, and does what the file "mode" says to the n-th of them.
mode=$(cat {folder}/mode 2>/dev/null)
case " $* " in *" --stdin origin "*)
    echo blobs >> {folder}/log
    count=$(wc -l < {folder}/log)
    if [ "$mode" = cut ] && [ "$count" -ge 3 ]; then
        exec {git} -c remote.origin.uploadpack={folder}/cut "$@"
    elif [ "$mode" = full ] && [ "$count" -ge 3 ]; then
        echo "fatal: write error: No space left on device" >&2; exit 128
    elif [ "$mode" = slow ]; then
        sleep 0.3
    fi;;
esac
exec {git} "$@"
"""


@pytest.fixture
def wrapper(home, monkeypatch):
    folder = home / "wrapper"
    folder.mkdir()
    for name, text in (
        ("git", WRAPPER.format(folder=folder, git=GIT)),
        # The remote dies after 1,500 bytes: enough to have begun the pack, too few to end it.
        ("cut", f'#!/bin/sh\n{GIT} upload-pack "$@" | dd bs=1 count=1500 2>/dev/null\n'),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(fetch, "CHUNK", 1)

    def mode(name: str) -> None:
        (folder / "mode").write_text(name)
        (folder / "log").write_text("")

    mode("")
    mode.calls = lambda: len((folder / "log").read_text().split())
    return mode


def allow_partial(folder: Path) -> None:
    git(folder, "config", "uploadpack.allowFilter", "true")
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")


@pytest.mark.parametrize(("failure", "message"), [("cut", "connection was cut"), ("full", "disk is full")])
def test_an_interrupted_fetch_leaves_nothing_whole_and_goes_on(upstream, target, wrapper, failure, message):
    allow_partial(upstream.folder)
    # Different contents, so that every file is a blob of its own.
    for number, path in enumerate(sorted((upstream.folder / "bench").rglob("*.jsonl"))):
        path.write_bytes(os.urandom(4000) + str(number).encode())
        upstream.files[path.relative_to(upstream.folder).as_posix()] = path.read_bytes()
    upstream.pin(commit(upstream.folder))
    wrapper(failure)
    with pytest.raises(InputError, match=rf"{message}.* \(git fetch: "):
        fetch.fetch("gatemem")
    assert wrapper.calls() == 3
    assert_nothing_whole(target)
    assert base.get("gatemem").is_present() is False
    wrapper("")
    said = []
    done = fetch.fetch("gatemem", say=said.append)
    assert wrapper.calls() == len(upstream.files) - 2
    assert any("going on with an interrupted fetch" in line for line in said)
    assert done.state == "verified"
    assert contents(target) == upstream.files


def test_files_damaged_between_two_runs_are_fetched_again(upstream, target, wrapper):
    allow_partial(upstream.folder)
    wrapper("full")
    with pytest.raises(InputError):
        fetch.fetch("gatemem")
    files = target.parent / ".gatemem.partial" / "files"
    for path in upstreams.files_of(files):
        path.write_text("half")
    (files / "intruder.txt").write_text("not from upstream")
    wrapper("")
    fetch.fetch("gatemem")
    assert contents(target) == upstream.files


RUNNER = """
import dataclasses, sys
from companion.corpora import fetch, upstreams
upstreams.UPSTREAMS["gatemem"] = dataclasses.replace(
    upstreams.UPSTREAMS["gatemem"], url=sys.argv[1], revision=sys.argv[2], tree=sys.argv[3]
)
fetch.CHUNK = 1
print(fetch.fetch("gatemem", say=lambda line: print(line, file=sys.stderr, flush=True)).action)
"""


def start(upstream: Upstream) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUNNER, upstream.folder.as_uri(), upstream.revision, upstream.tree]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def await_blobs(wrapper, count: int) -> None:
    deadline = time.monotonic() + 60
    while wrapper.calls() < count:
        assert time.monotonic() < deadline, "the fetch did not get going"
        time.sleep(0.02)


def test_two_runs_at_the_same_time(upstream, target, wrapper):
    allow_partial(upstream.folder)
    wrapper("slow")
    first = start(upstream)
    await_blobs(wrapper, 1)
    with pytest.raises(InputError, match="another fetch is running"):
        fetch.fetch("gatemem", wait=0)
    assert_nothing_whole(target)
    second = start(upstream)
    outputs = [process.communicate(timeout=120) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], outputs
    assert outputs[0][0].strip() == "fetched"
    assert outputs[1][0].strip() == "already here"
    assert "another fetch of gatemem is running; waiting for it" in outputs[1][1]
    assert contents(target) == upstream.files


def test_a_killed_run_leaves_nothing_whole_and_no_lock(upstream, target, wrapper):
    allow_partial(upstream.folder)
    wrapper("slow")
    process = start(upstream)
    await_blobs(wrapper, 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert_nothing_whole(target)
    wrapper("")
    assert fetch.fetch("gatemem", wait=30).action == "fetched"
    assert contents(target) == upstream.files


def test_a_disk_that_fills_up_when_the_stamp_is_written(upstream, target, monkeypatch):
    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(upstreams.Stamp, "write", no_room)
        with pytest.raises(InputError, match="disk is full"):
            fetch.fetch("gatemem")
        assert_nothing_whole(target)
    assert fetch.fetch("gatemem").state == "verified"


# A remote that dies at any byte

DYING = """#!{python}
import os, subprocess, sys
left = {left}
with subprocess.Popen([{git!r}, "upload-pack", *sys.argv[1:]], stdout=subprocess.PIPE) as process:
    while left and (sent := os.read(process.stdout.fileno(), min(left, 4096))):
        os.write(1, sent)
        left -= len(sent)
    process.kill()
"""


@pytest.mark.parametrize("share", [0, 0.01, 0.1, 0.3, 0.6, 0.95])
def test_a_connection_cut_at_any_byte_leaves_nothing_whole_and_goes_on(upstream, home, target, monkeypatch, share):
    for path in (upstream.folder / "bench").rglob("*.jsonl"):
        path.write_bytes(os.urandom(20_000))
        upstream.files[path.relative_to(upstream.folder).as_posix()] = path.read_bytes()
    upstream.pin(commit(upstream.folder))
    allow_partial(upstream.folder)
    helper = home / "remote"
    helper.write_text(DYING.format(python=sys.executable, git=GIT, left=int(share * 20_000)))
    helper.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("GIT_CONFIG_COUNT", "1")
        patch.setenv("GIT_CONFIG_KEY_0", "remote.origin.uploadpack")
        patch.setenv("GIT_CONFIG_VALUE_0", str(helper))
        with pytest.raises(InputError, match="connection was cut"):
            fetch.fetch("gatemem")
    assert_nothing_whole(target)
    assert fetch.fetch("gatemem").state == "verified"
    assert contents(target) == upstream.files


# Nothing to fetch with or from


def test_git_missing(upstream, target, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="git is not installed"):
        fetch.fetch("gatemem")
    assert_nothing_whole(target)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("https://nowhere.invalid/GateMem", "network or the host cannot be reached"),
        ("http://127.0.0.1:9/GateMem", "network or the host cannot be reached"),
        ("file:///nowhere/at/all", "no repository at this address"),
        ("neither-folder-nor-address", "neither a folder nor the address of a repository; expected a clone of"),
        ("", "nothing is named; expected a clone of"),
        ("--upload-pack=touch /tmp/x:y", "neither a folder nor the address"),
    ],
)
def test_addresses_that_lead_nowhere(upstream, target, address, message):
    with pytest.raises(InputError, match=message) as refusal:
        fetch.fetch("gatemem", address)
    assert "\n" not in str(refusal.value)
    assert_nothing_whole(target)


# Plain folders


def plain(upstream: Upstream, folder: Path) -> Path:
    shutil.copytree(upstream.folder, folder, ignore=shutil.ignore_patterns(".git"))
    return folder


@pytest.mark.parametrize("known", ["folders", "tree"])
def test_a_plain_folder_is_verified_by_git_ids(upstream, home, target, known):
    """By the ids of the needed folders, whatever else is there or not; by that of the whole where only it is known."""
    (upstream.folder / "src/tool.py").chmod(0o755)
    (upstream.folder / "link").symlink_to("README.md")
    upstream.pin(commit(upstream.folder))
    folder = home / "plain"
    shutil.copytree(upstream.folder, folder, ignore=shutil.ignore_patterns(".git"), symlinks=True)
    if known == "folders":
        (folder / "README.md").unlink()
    else:
        upstream.pin(upstream.revision, upstream.tree)
    done = fetch.fetch("gatemem", str(folder))
    assert (done.action, done.state, done.stamp.commit) == ("copied", "verified", upstream.revision)
    assert contents(target) == upstream.files


@pytest.mark.parametrize("change", ["alter", "remove", "add", "elsewhere"])
def test_a_plain_folder_that_differs_is_refused_or_marked(upstream, home, target, change):
    folder = plain(upstream, home / "plain")
    if change == "alter":
        (folder / "bench/data/office/episodes.jsonl").write_text("altered\n")
    elif change == "remove":
        (folder / "bench/data/office/notes.txt").write_text("more\n")
    elif change == "add":
        (folder / "bench/data/extra.jsonl").write_text("more\n")
    else:
        (folder / "README.md").unlink()
        upstream.pin(upstream.revision, upstream.tree)
    with pytest.raises(InputError, match=r"bench/data cannot be confirmed as gatemem .*--unverified"):
        fetch.fetch("gatemem", str(folder))
    assert_nothing_whole(target)
    done = fetch.fetch("gatemem", str(folder), unverified=True)
    assert (done.state, done.stamp.verified, done.stamp.commit, done.stamp.tree) == ("unverified", False, "", "")
    assert upstreams.is_whole(target, "gatemem")


def test_a_plain_folder_without_the_expected_files_is_refused_even_unverified(upstream, home, target):
    folder = plain(upstream, home / "plain")
    shutil.rmtree(folder / "bench/data/office")
    with pytest.raises(InputError, match=r"lacks bench/data/\*/episodes.jsonl \(3 non-empty files found"):
        fetch.fetch("gatemem", str(folder), unverified=True)
    assert_nothing_whole(target)


def test_a_mirror_may_lack_what_the_corpus_does_not_need(upstream, home, target):
    said = []
    loose(upstream.folder, git(upstream.folder, "rev-parse", "HEAD:README.md")).unlink()
    assert fetch.fetch("gatemem", str(upstream.folder), say=said.append).state == "verified"
    assert contents(target) == upstream.files
    assert any("lacks README.md of the revision, which gatemem does not need" in line for line in said)
    shutil.rmtree(target)
    loose(upstream.folder, git(upstream.folder, "rev-parse", "HEAD:bench/data/office/episodes.jsonl")).unlink()
    with pytest.raises(InputError, match=r"lacks bench/data/office/checkpoints.jsonl \(and 1 more\)"):
        fetch.fetch("gatemem", str(upstream.folder))


def test_a_connection_that_stalls_is_ended_with_what_git_started(upstream, home, target, monkeypatch):
    (home / "stall").write_text(f"#!/bin/sh\necho $$ > {home}/pid\nexec sleep 1000\n")
    (home / "stall").chmod(0o755)
    monkeypatch.setattr(_git, "_UPLOAD_PACK", str(home / "stall"))
    monkeypatch.setattr(_git, "STALLED", 1.0)
    with pytest.raises(InputError, match=r"connection was cut.*silent for 1 s"):
        fetch.fetch("gatemem")
    pid = int((home / "pid").read_text())
    state = Path(f"/proc/{pid}/stat")
    deadline = time.monotonic() + 20
    while state.exists() and state.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_tree_ids_are_gits(tmp_path):
    """Names that sort otherwise as files and as folders, links, and an executable."""
    git(tmp_path, "init", "-q")
    for name in ("a/x", "a.b", "a-b/y/z", "ab", "é/1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "ab").chmod(0o755)
    (tmp_path / "link").symlink_to("a/x")
    revision = commit(tmp_path)
    assert upstreams.tree_id(upstreams.contents(tmp_path)) == git(tmp_path, "rev-parse", f"{revision}^{{tree}}")


# What counts as whole


def test_tampering_that_keeps_the_size_is_noticed(upstream, target, home):
    fetch.fetch("gatemem")
    path = target / "bench/data/office/episodes.jsonl"
    assert upstreams.altered(target, "gatemem") == []
    path.write_bytes(path.read_bytes()[:-2] + b"x\n")
    assert upstreams.state(target, "gatemem") == "verified"  # sizes tell nothing
    assert upstreams.altered(target, "gatemem") == ["bench/data/office/episodes.jsonl"]
    (target / upstreams.STAMP).unlink()  # laid down by hand: told by the folder's id
    assert upstreams.altered(target, "gatemem") == ["bench/data"]
    path.write_bytes(upstream.files["bench/data/office/episodes.jsonl"])
    assert upstreams.altered(target, "gatemem") == []


def test_a_stamped_folder_that_lost_a_file_is_no_longer_whole(upstream, target):
    fetch.fetch("gatemem")
    (target / "bench/data/office/episodes.jsonl").unlink()
    assert upstreams.state(target, "gatemem") == "incomplete"
    assert not base.get("gatemem").is_present()
    with pytest.raises(InputError, match="--replace"):
        fetch.fetch("gatemem")
    assert fetch.fetch("gatemem", replace=True).state == "verified"
    assert contents(target) == upstream.files


def test_a_truncated_file_or_a_broken_stamp_is_noticed(upstream, target):
    fetch.fetch("gatemem")
    path = target / "bench/data/office/episodes.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    assert upstreams.state(target, "gatemem") == "incomplete"
    fetch.fetch("gatemem", replace=True)
    (target / upstreams.STAMP).write_text("{")
    assert upstreams.state(target, "gatemem") == "incomplete"


def test_hand_laid_folders_are_whole_only_with_every_expected_file(upstream, target):
    assert upstreams.state(target, "gatemem") == "absent"
    fill(target)
    assert upstreams.state(target, "gatemem") == "hand-laid"
    done = fetch.fetch("gatemem")
    assert (done.action, done.state, done.stamp) == ("already here", "hand-laid", None)
    (target / "bench/data/office/episodes.jsonl").write_text("")
    assert upstreams.state(target, "gatemem") == "incomplete"
    assert fetch.fetch("gatemem", replace=True).state == "verified"


@pytest.mark.parametrize("replace_", [False, True])
def test_a_file_in_the_place_of_the_folder_is_left_alone(upstream, target, replace_):
    target.parent.mkdir(parents=True)
    target.write_text("mine")
    with pytest.raises(InputError, match=r"gatemem: is a file, where the folder of gatemem belongs"):
        fetch.fetch("gatemem", replace=replace_)
    assert target.read_text() == "mine"


@pytest.mark.parametrize("there", ["empty", "nothing", "another copy"])
def test_a_link_to_another_disk_is_followed_and_kept(upstream, home, target, there):
    elsewhere = home / "large" / "gate"
    target.parent.mkdir(parents=True)
    target.symlink_to(elsewhere)
    if there == "empty":
        elsewhere.mkdir(parents=True)
    if there == "another copy":
        fill(elsewhere)
    assert fetch.fetch("gatemem", replace=there == "another copy").state == "verified"
    assert target.is_symlink()
    assert contents(elsewhere) == upstream.files
    assert base.get("gatemem").is_present()
    assert fetch.fetch("gatemem").action == "already here"


def test_a_failed_replacement_keeps_what_was_there(upstream, target):
    fetch.fetch("gatemem")
    upstream.pin("1" * 40, tree="")
    with pytest.raises(InputError, match="pinned revision"):
        fetch.fetch("gatemem", replace=True)
    assert upstreams.state(target, "gatemem") == "verified"
    assert contents(target) == upstream.files


# The command


@pytest.fixture
def app() -> typer.Typer:
    from companion.cli import fetch as cli

    app = typer.Typer()
    app.callback()(lambda: None)
    cli.register(app)
    return app


def test_the_command_prints_a_sentence_or_json(upstream, target, app):
    runner = CliRunner()
    first = runner.invoke(app, ["fetch", "gatemem"])
    assert first.exit_code == 0, first.output
    assert f"verified as commit {upstream.revision[:12]}" in first.stdout
    second = runner.invoke(app, ["fetch", "gatemem", "--json", "--quiet"])
    printed = json.loads(second.stdout)
    assert (printed["action"], printed["state"]) == ("already here", "verified")
    assert printed["stamp"]["tree"] == upstream.tree
    assert "Example" in runner.invoke(app, ["fetch", "--help"]).stdout


def test_the_command_checks_what_it_fetched(upstream, target, app):
    import test_gatemem

    test_gatemem.lay(upstream.folder)
    # Domains without an episode are empty files, and an empty file is no whole corpus: give them one each.
    for domain in DOMAINS:
        folder = upstream.folder / "bench/data" / domain
        for name in ("episodes", "checkpoints"):
            path = folder / f"{name}.jsonl"
            path.write_text(path.read_text() or "\n")
    upstream.pin(commit(upstream.folder))
    done = CliRunner().invoke(app, ["fetch", "gatemem", "--check", "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    rows = {row["quantity"]: row for row in json.loads(done.stdout)["check"]}
    assert (rows["episodes"]["published"], rows["episodes"]["loaded"], rows["episodes"]["agrees"]) == (91, 3, False)
    assert rows["required items no visible turn meets"]["agrees"] is None
