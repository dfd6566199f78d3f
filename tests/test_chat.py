"""The chat client against a stub server on the loopback address: cap, errors, resume, and a key that stays out."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from companion.errors import InputError
from companion.stages import chat as llm
from companion.stages.chat import ChatLog, ChatRequest, ChatSettings, complete, incomplete, pending
from companion.stages.verification import ChatVerifier

pytest.importorskip("openai")

KEY = 'sk-test-"quoted"-0123456789abcdef'


class Stub(ThreadingHTTPServer):
    """Counts requests by their user text and answers as `script` says for that text and attempt."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: Counter[str] = Counter()
        self.starts: list[float] = []
        self.headers: list[dict[str, str]] = []
        self.script: Any = lambda text, attempt: (200, good("yes " + text))
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][-1]["content"]
        with self.server.lock:
            self.server.seen[text] += 1
            attempt = self.server.seen[text]
            self.server.starts.append(time.monotonic())
            self.server.headers.append({k.lower(): v for k, v in self.headers.items()})
        status, reply = self.server.script(text, attempt)
        raw = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.send_header("retry-after-ms", "1")
            self.end_headers()
            self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def good(text: str | None, tokens: tuple[int, int] | None = (10, 5), finish: str = "stop") -> dict[str, Any]:
    out: dict[str, Any] = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "stub-1",
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}],
    }
    if tokens:
        out["usage"] = {
            "prompt_tokens": tokens[0],
            "completion_tokens": tokens[1],
            "total_tokens": sum(tokens),
        }
    return out


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_KEY", KEY)


def settings(stub: Stub, **change: Any) -> ChatSettings:
    base: dict[str, Any] = {
        "model": "stub",
        "base_url": stub.url,
        "key_env": "STUB_KEY",
        "retries": 3,
        "concurrency": 1,
        "max_tokens": 5,
    }
    return ChatSettings(**{**base, **change})


def asks(n: int) -> list[ChatRequest]:
    return [ChatRequest.ask(f"r{i}", f"q{i}", system="be brief") for i in range(n)]


def test_answers_come_in_order_and_are_sent_once(stub: Stub, tmp_path: Path) -> None:
    log = ChatLog(tmp_path / "sub" / "t.jsonl")
    first = complete(asks(20), settings(stub, concurrency=8), log)
    assert [a.text for a in first] == [f"yes q{i}" for i in range(20)]
    assert complete(asks(20), settings(stub, concurrency=8), log) == first
    assert set(stub.seen.values()) == {1}
    assert all(h["authorization"] == f"Bearer {KEY}" for h in stub.headers)
    assert incomplete(first) == {}
    assert [r.id for r in pending(asks(25), settings(stub), log)] == [f"r{i}" for i in range(20, 25)]


def test_another_prompt_model_or_repeat_is_another_request(stub: Stub, tmp_path: Path) -> None:
    log = ChatLog(tmp_path / "t.jsonl")
    same = [ChatRequest.ask("a", "q"), ChatRequest.ask("b", "q")]
    complete(same, settings(stub), log)
    assert stub.seen["q"] == 2
    complete(same, settings(stub, model="other"), log)
    complete(same, settings(stub, temperature=None), log)
    assert stub.seen["q"] == 6
    complete(same, settings(stub, concurrency=2, retries=1, price_input=1.0), log)  # not part of the question
    assert stub.seen["q"] == 6


def test_cap_is_reached_mid_run_and_never_passed(stub: Stub, tmp_path: Path) -> None:
    log = ChatLog(tmp_path / "t.jsonl")
    paid = settings(stub, price_input=1e4, price_output=1e4, price_cap=1.0, concurrency=4)
    got = complete(asks(20), paid, log)
    sent = sum(stub.seen.values())
    assert 0 < sent < 20
    assert incomplete(got) == {"not_sent": 20 - sent}
    assert log.spent() == pytest.approx(sent * 0.15) and log.spent() <= 1.0
    # the cap holds over the file, not over the run: what fits now is only what fitted before
    again = complete(asks(20), paid, log)
    assert incomplete(again) == incomplete(got) and sum(stub.seen.values()) == sent
    more = complete(asks(20), settings(stub, price_input=1e4, price_output=1e4, price_cap=9.0), log)
    assert incomplete(more) == {} and set(stub.seen.values()) == {1}


def test_reserve_is_an_upper_bound_on_tokens(stub: Stub, tmp_path: Path) -> None:
    s = settings(stub, price_input=1e6, price_output=0.0)
    r = ChatRequest.ask("a", "héllo ✓")
    assert s.most(r) >= len("héllo ✓".encode())
    stub.script = lambda text, attempt: (200, good("ok", None))
    (a,) = complete([r], s, ChatLog(tmp_path / "t.jsonl"))
    assert a.usage == "estimated" and a.cost == s.most(r)


def test_429_and_500_are_retried_by_the_client(stub: Stub, tmp_path: Path) -> None:
    plan_: dict[int, tuple[int, Any]] = {
        1: (429, {"error": {"message": "slow"}}),
        2: (500, {"error": {"message": "oops"}}),
    }
    stub.script = lambda text, attempt: plan_.get(attempt, (200, good("fine")))
    (a,) = complete(asks(1), settings(stub), ChatLog(tmp_path / "t.jsonl"))
    assert (a.status, a.text, stub.seen["q0"]) == ("answered", "fine", 3)


def test_lasting_500_is_reported_and_asked_again_next_time(stub: Stub, tmp_path: Path) -> None:
    log = ChatLog(tmp_path / "t.jsonl")
    stub.script = lambda text, attempt: (500, {"error": {"message": "down"}}) if text == "q1" else (200, good("ok"))
    got = complete(asks(3), settings(stub, retries=1), log)
    assert [a.status for a in got] == ["answered", "failed", "answered"]
    assert got[1].error is not None and got[1].error.startswith("HTTP 500") and got[1].cost == 0
    stub.script = lambda text, attempt: (200, good("back"))
    assert [a.text for a in complete(asks(3), settings(stub), log)] == ["ok", "back", "ok"]
    assert stub.seen["q0"] == 1


@pytest.mark.parametrize(
    "reply",
    [b"{not json", b'"a string"', b"{}", {**good(""), "choices": []}, good(None)],
)
def test_malformed_reply_is_named_and_counted_at_its_reserve(stub: Stub, tmp_path: Path, reply: Any) -> None:
    log = ChatLog(tmp_path / "t.jsonl")
    stub.script = lambda text, attempt: (200, reply)
    s = settings(stub, price_input=1.0)
    (a,) = complete(asks(1), s, log)
    assert a.status == "malformed" and a.text is None and a.error
    assert log.spent() == pytest.approx(s.most(asks(1)[0]))


@pytest.mark.parametrize("code", [401, 403, 404])
def test_refused_key_or_model_stops_the_run(stub: Stub, tmp_path: Path, code: int) -> None:
    stub.script = lambda text, attempt: (code, {"error": {"message": f"bad key {KEY}"}})
    with pytest.raises(InputError, match=f"HTTP {code}") as caught:
        complete(asks(50), settings(stub, concurrency=2), ChatLog(tmp_path / "t.jsonl"))
    assert KEY not in str(caught.value) and caught.value.__context__ is None
    assert sum(stub.seen.values()) <= 4


def test_key_is_nowhere_but_in_the_request(
    stub: Stub, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def leak(text: str, attempt: int) -> tuple[int, Any]:
        if text == "q0":
            return 400, {"error": {"message": f"your key {KEY} is fine but this is not"}}
        return 200, good(f"you authenticated with {KEY}")

    stub.script = leak
    caplog.set_level(logging.DEBUG)
    log = ChatLog(tmp_path / "t.jsonl")
    s = settings(stub)
    got = complete(asks(3), s, log)
    out, err = capfd.readouterr()
    spelled = json.dumps(KEY)[1:-1]
    for place in (repr(got), repr(s), log.path.read_text(), caplog.text, out, err):
        assert KEY not in place and spelled not in place and "0123456789abcdef" not in place
    assert got[1].text == "you authenticated with [key]"
    assert repr(list(log.events())).count("[key]") == 3
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


RUN = """
import sys
sys.path.insert(0, {tests!r})
from companion.stages.chat import ChatLog, ChatSettings, complete
from test_chat import asks
s = ChatSettings("stub", {url!r}, key_env="STUB_KEY", concurrency=1, max_tokens=5,
                 price_input=1.0, price_output=1.0, retries=0)
complete(asks(10), s, ChatLog({path!r}))
"""


def test_killed_process_resumes_without_paying_twice(stub: Stub, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    reached = threading.Event()

    def stall(text: str, attempt: int) -> tuple[int, Any]:
        if text == "q6" and attempt == 1:
            reached.set()
            time.sleep(30)
        return 200, good("yes " + text)

    stub.script = stall
    code = RUN.format(tests=str(Path(__file__).parent), url=stub.url, path=str(path))
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "STUB_KEY": KEY})
    assert reached.wait(60)
    process.send_signal(signal.SIGKILL)
    process.wait()
    log = ChatLog(path)
    assert len(log.answers()) == 6
    s = settings(stub, price_input=1.0, price_output=1.0)
    in_flight = s.most(asks(10)[6])
    assert log.spent() == pytest.approx(6 * 15e-6 + in_flight)  # what may have been paid is counted
    with path.open("ab") as handle:
        handle.write(b'{"event": "outcome", "id": "r6", "te')  # and a line cut short
    got = complete(asks(10), s, log)
    assert [a.text for a in got] == [f"yes q{i}" for i in range(10)]
    assert stub.seen == Counter({f"q{i}": 2 if i == 6 else 1 for i in range(10)})
    repeats = [h["idempotency-key"] for h in stub.headers]
    assert len(set(repeats)) == 10  # the repeat carries the same idempotency key as the lost one
    assert log.spent() == pytest.approx(10 * 15e-6 + in_flight)


def test_rate_limit_spaces_the_starts(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a clock that stands still, what each request waits is its starting time; a busy machine cannot change it.
    waited: list[float] = []
    still = types.SimpleNamespace(monotonic=lambda: 7.0, sleep=waited.append)
    monkeypatch.setattr(llm, "time", still)
    complete(asks(6), settings(stub, concurrency=6, requests_per_minute=600), ChatLog(tmp_path / "t.jsonl"))
    assert sorted(waited) == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])


def test_a_transcript_in_use_or_broken_is_refused(tmp_path: Path, stub: Stub) -> None:
    log = ChatLog(tmp_path / "t.jsonl")
    with log.writing(), pytest.raises(InputError, match="another process"):
        complete(asks(1), settings(stub), ChatLog(log.path))
    log.path.write_text('{"event": "sent", "id": "a", "fingerprint": "f", "reserved": 0}\nnonsense\n')
    with pytest.raises(InputError, match="line 2"):
        complete(asks(1), settings(stub), log)
    with pytest.raises(InputError, match="'r0' occurs twice"):
        complete(asks(1) * 2, settings(stub), ChatLog(tmp_path / "u.jsonl"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ""}, "model"),
        ({"base_url": "ftp://x"}, "base_url"),
        ({"base_url": "http://127.0.0.1:port/v1"}, "base_url: expected an http"),
        ({"base_url": "http://127.0.0.1:99999/v1"}, "base_url: expected an http"),
        ({"base_url": "http://[::1/v1"}, "base_url: expected an http"),
        ({"base_url": "http://exa mple/v1"}, "base_url: expected an http"),
        ({"base_url": "http://127.0.0.1/v1?key=secret"}, "holds a query or fragment"),
        ({"base_url": "http://me:secret@127.0.0.1/v1"}, "user name or password"),
        ({"price_cap": 1.0}, "price_cap"),
        ({"concurrency": 0}, "concurrency"),
        ({"timeout": float("inf")}, "timeout"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        ChatSettings(**{"model": "m", "base_url": "http://127.0.0.1/v1", **change})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", [None, "line\nfeed-0123", "é0123456789"])
def test_a_key_that_is_missing_or_unfit_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("THE_KEY", key or "")
    here = ChatSettings("m", key_env="THE_KEY")
    with pytest.raises(InputError, match=r"\$THE_KEY") as caught:
        complete(asks(1), here, ChatLog(tmp_path / "new" / "t.jsonl"))
    assert key is None or key not in str(caught.value)
    pair = pd.DataFrame({"query_id": ["q"], "memory_id": ["m"], "query_text": ["?"], "memory_text": ["!"]})
    with pytest.raises(InputError, match=r"\$THE_KEY"):
        ChatVerifier(here, tmp_path / "chat").probability(pair)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there_is_given_up_before_every_request_has_waited(tmp_path: Path) -> None:
    dead = ChatSettings("m", "http://127.0.0.1:9/v1", key_env="STUB_KEY", retries=0, timeout=2, concurrency=1)
    log = ChatLog(tmp_path / "t.jsonl")
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9/v1: no server answers there"):
        complete(asks(50), dead, log)
    assert sum(e["event"] == "sent" for e in log.events()) == 3


def test_connections_lost_after_an_answer_do_not_end_the_run(stub: Stub, tmp_path: Path) -> None:
    def cut(text: str, attempt: int) -> tuple[int, Any]:
        if text == "q0":
            return 200, good("yes")
        raise ConnectionResetError  # the handler dies, and the connection with it

    stub.script = cut
    stub.handle_error = lambda *args: None  # type: ignore[method-assign]
    got = complete(asks(6), settings(stub, retries=0), ChatLog(tmp_path / "t.jsonl"))
    assert [a.status for a in got] == ["answered"] + ["failed"] * 5
