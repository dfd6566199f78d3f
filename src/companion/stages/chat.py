"""Talk to any OpenAI-compatible chat server: capped, rate limited, resumable, every word of it on disk.

Two things in this package ask language models questions: the verifiers of stage two and the readers of stage
three. Both hand a list of :class:`ChatRequest` to :func:`complete` and get one :class:`ChatAnswer` each, in order.

* Transport, time-outs and retries (429, 5xx, broken connections) are the ``openai`` client's own.
* The key is read from an environment variable when a client is made. It is no part of any object here, and
  anything that a server says is scrubbed of it before it is written, raised or returned.
* A :class:`ChatLog` is an append-only JSON Lines file. A ``sent`` line is on disk before a request leaves and an
  outcome line is on disk before the answer is used, so a run killed at any moment goes on without paying twice
  for an answer it already had. Requests that were in flight at that moment (at most ``concurrency`` of them) are
  sent again, under the same idempotency key, and what they may have cost counts against the cap.
* The cap is kept by reserving the most that a request can cost before it is sent: a token is at least one byte
  of UTF-8, and an answer has at most ``max_tokens`` tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from companion.errors import InputError

DEFAULT_BASE_URL = "https://api.openai.com/v1"
_MESSAGE_OVERHEAD = 16  # tokens a chat template may add around one message; generous on purpose
_FATAL = frozenset({401, 403, 404})  # wrong key, no right, no such model: every further request would fail too
_MISSES = 3  # requests in a run that reach nothing before the run is given up
_DONE = "answered"


@dataclass(frozen=True)
class ChatRequest:
    """One question: a unique ``id`` and the chat messages, each ``{"role": ..., "content": ...}``.

    The id is part of what makes a request the same request: two repeats of one prompt under different ids are
    two requests, both sent and both paid for.
    """

    id: str
    messages: tuple[Mapping[str, str], ...]

    @classmethod
    def ask(cls, id: str, user: str, system: str | None = None) -> ChatRequest:
        """Make a request from one user message and, if given, one system message."""
        head = ({"role": "system", "content": system},) if system is not None else ()
        return cls(id, (*head, {"role": "user", "content": user}))


@dataclass(frozen=True)
class ChatAnswer:
    """What became of one request."""

    id: str
    status: str
    text: str | None = None
    finish_reason: str | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    usage: str | None = None
    cost: float = 0.0
    error: str | None = None


@dataclass(frozen=True)
class ChatSettings:
    """How to ask: which server and model, how much, how fast."""

    model: str
    base_url: str | None = None
    key_env: str = "OPENAI_API_KEY"
    price_input: float = 0.0
    price_output: float = 0.0
    price_cap: float | None = None
    requests_per_minute: float | None = None
    concurrency: int = 4
    max_tokens: int = 512
    max_tokens_field: str = "max_tokens"
    temperature: float | None = 0.0
    timeout: float = 120.0
    retries: int = 5
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.model:
            raise InputError("model: an empty name; expected the name of a model the server offers")
        self._check_address()
        self._check_numbers()

    def _check_address(self) -> None:
        """Refuse what is no address, or holds what a run record must not (the message repeats none of it)."""
        try:
            parts = urlsplit(self.address)
            whole = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:  # a port that is no number, a bracket that is not closed
            parts, whole = urlsplit(""), False
        if parts.username or parts.password:
            raise InputError("base_url: holds a user name or password; put the key in the environment instead")
        if parts.query or parts.fragment:
            raise InputError("base_url: holds a query or fragment; expected the plain root of the API")
        if not whole or parts.scheme not in {"http", "https"} or not self.address.isprintable() or " " in self.address:
            raise InputError("base_url: expected an http or https address such as http://127.0.0.1:8000/v1")

    def _check_numbers(self) -> None:
        for name, low in (("concurrency", 1), ("max_tokens", 1), ("retries", 0)):
            if int(getattr(self, name)) < low:
                raise InputError(f"{name}: {getattr(self, name)}; expected at least {low}")
        for name in ("price_input", "price_output", "price_cap", "requests_per_minute", "timeout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(f"{name}: {value}; expected a finite number of at least 0")
        if self.requests_per_minute == 0 or self.timeout == 0:
            raise InputError("requests_per_minute and timeout must be above 0")
        if self.price_cap is not None and self.price_input + self.price_output == 0:
            raise InputError("price_cap: a cap needs price_input and price_output to be held against")

    @property
    def address(self) -> str:
        """Root of the API in use."""
        return self.base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL

    def body(self, request: ChatRequest) -> dict[str, Any]:
        """Return the request body, without the key: what is sent, and what the transcript keeps."""
        out: dict[str, Any] = {"model": self.model, "messages": [dict(m) for m in request.messages]}
        out[self.max_tokens_field] = self.max_tokens
        if self.temperature is not None:
            out["temperature"] = self.temperature
        return {**out, **self.extra}

    def fingerprint(self, request: ChatRequest) -> str:
        """Return a hash of everything that makes the answer what it is: server, body and the request's id."""
        key = json.dumps([self.address, request.id, self.body(request)], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(key.encode()).hexdigest()

    def input_bound(self, request: ChatRequest) -> int:
        """Return an upper bound on the request's input tokens: its UTF-8 bytes and a little per message."""
        sizes = (len(part.encode()) for m in request.messages for part in m.values())
        return sum(sizes) + _MESSAGE_OVERHEAD * (len(request.messages) + 1)

    def price(self, input_tokens: int, output_tokens: int) -> float:
        """Return the price of so many tokens."""
        return (input_tokens * self.price_input + output_tokens * self.price_output) / 1e6

    def most(self, request: ChatRequest) -> float:
        """Return the most one attempt of a request can cost."""
        return self.price(self.input_bound(request), self.max_tokens)


class ChatLog:
    """The transcript: an append-only JSON Lines file of every request sent and every outcome."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the transcript's lines, oldest first."""
        raw = self.path.read_bytes() if self.path.exists() else b""
        whole = raw[: raw.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                event = json.loads(line)
                _ = event["event"], event["id"], event["fingerprint"]
            except (ValueError, TypeError, KeyError):
                raise InputError(
                    f"{self.path}, line {number}: expected a JSON object with event, id and fingerprint"
                ) from None
            yield event

    def answers(self) -> dict[str, ChatAnswer]:
        """Return the answers on file, by fingerprint; only requests that were answered."""
        fields = ChatAnswer.__dataclass_fields__
        return {
            e["fingerprint"]: ChatAnswer(**{k: v for k, v in e.items() if k in fields})
            for e in self.events()
            if e["event"] == "outcome" and e["status"] == _DONE
        }

    def spent(self) -> float:
        """Return what the file accounts for: costs of outcomes, and the reserve of sends without an outcome."""
        total = 0.0
        waiting: dict[str, float] = {}
        for e in self.events():
            if e["event"] == "sent":
                total += waiting.pop(e["fingerprint"], 0.0)  # an earlier send that a crash left open
                waiting[e["fingerprint"]] = float(e["reserved"])
            else:
                waiting.pop(e["fingerprint"], None)
                total += float(e["cost"])
        return total + sum(waiting.values())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the file open for appending, locked against a second process."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as handle:
            _lock(handle, self.path)
            _drop_torn_line(handle)
            self._file = handle
            try:
                yield
            finally:
                self._file = None

    def append(self, event: Mapping[str, Any], scrub: Callable[[str], str] = str) -> None:
        """Write one line and wait until it is on disk; safe to call from several threads."""
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = scrub(json.dumps({**event, "time": stamp}, ensure_ascii=False, default=str))
        with self._lock:
            if self._file is None:
                raise RuntimeError("ChatLog.append needs the file to be open: use `with log.writing():`")
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())


def _lock(handle: IO[bytes], path: Path) -> None:
    """Take the file's lock or refuse."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - Windows
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(f"{path}: another process is writing to this transcript; wait for it to end") from None


def _drop_torn_line(handle: IO[bytes]) -> None:
    """Cut off what a crash left behind the last complete line, so that the next line starts on its own."""
    handle.seek(0)
    raw = handle.read()
    keep = raw.rfind(b"\n") + 1
    if keep < len(raw):
        handle.truncate(keep)
    handle.seek(0, os.SEEK_END)


class _Budget:
    """What may still be spent. Reserve before sending, settle after; both under one lock."""

    def __init__(self, cap: float | None, spent: float) -> None:
        self.cap, self.spent, self.reserved, self.closed = cap, spent, 0.0, False
        self._changed = threading.Condition()

    def reserve(self, amount: float) -> bool:
        """Set `amount` aside; wait while requests in flight may still give some back; False once it cannot fit."""
        with self._changed:
            while not self.closed and not self._fits(amount):
                if self.reserved == 0:
                    self.closed = True  # nothing in flight: no room will ever be freed
                else:
                    self._changed.wait()
            if self.closed:
                self._changed.notify_all()
                return False
            self.reserved += amount
            return True

    def _fits(self, amount: float) -> bool:
        return self.cap is None or self.spent + self.reserved + amount <= self.cap

    def settle(self, amount: float, cost: float) -> None:
        """Replace a reservation by what it came to."""
        with self._changed:
            self.reserved = max(0.0, self.reserved - amount)
            if self.reserved < 1e-12:  # sums of floats: treat the last crumbs as nothing in flight
                self.reserved = 0.0
            self.spent += cost
            self._changed.notify_all()

    def close(self) -> None:
        """Let nothing further through."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class _Pace:
    """Hand out starting times no closer than the rate limit allows."""

    def __init__(self, per_minute: float | None) -> None:
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        if not self._gap:
            return
        with self._lock:
            start = max(time.monotonic(), self._next)
            self._next = start + self._gap
        time.sleep(max(0.0, start - time.monotonic()))


@dataclass(frozen=True)
class ChatPlan:
    """What a run would do: requests in all, answered already, still to send, and the most those can cost."""

    total: int
    answered: int
    pending: int
    most: float
    spent: float


def plan(requests: Sequence[ChatRequest], settings: ChatSettings, log: ChatLog) -> ChatPlan:
    """Say what :func:`complete` would send and the most it could cost, without sending anything."""
    _check_ids(requests)
    known = log.answers()
    todo = [r for r in requests if settings.fingerprint(r) not in known]
    most = sum(settings.most(r) for r in todo)
    return ChatPlan(len(requests), len(requests) - len(todo), len(todo), most, log.spent())


def complete(
    requests: Sequence[ChatRequest],
    settings: ChatSettings,
    log: ChatLog,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[ChatAnswer]:
    """Ask every request that the transcript does not answer yet; return one answer each, in order."""
    _check_ids(requests)
    prints = [settings.fingerprint(r) for r in requests]
    known = log.answers()
    todo = {p: r for p, r in zip(prints, requests, strict=True) if p not in known}
    fresh: dict[str, ChatAnswer] = {}
    if todo:
        run = _Run(settings, log)  # a missing key or client is refused before the transcript's file is made
        with log.writing():
            run.budget = _Budget(settings.price_cap, log.spent())
            fresh = run.all(todo, len(requests), progress)
    return [known[p] if p in known else fresh[p] for p in prints]


def ready(settings: ChatSettings) -> None:
    """Make sure that requests could be sent: the client is installed, the key is there and fit to be sent.

    Nothing is sent and nothing is written.
    """
    _client(settings, _key(settings))


def incomplete(answers: Iterable[ChatAnswer]) -> dict[str, int]:
    """Count the answers that are not usable, by status; empty when the set is complete."""
    counts: dict[str, int] = {}
    for a in answers:
        if a.status != _DONE:
            counts[a.status] = counts.get(a.status, 0) + 1
    return counts


def _check_ids(requests: Sequence[ChatRequest]) -> None:
    seen: set[str] = set()
    for r in requests:
        if r.id in seen:
            raise InputError(f"request id {r.id!r} occurs twice; expected unique ids")
        seen.add(r.id)


class _Run:
    """One call of `complete`: the client, the key's scrubber, the budget and the pace."""

    def __init__(self, settings: ChatSettings, log: ChatLog) -> None:
        self.settings, self.log = settings, log
        self.budget = _Budget(settings.price_cap, 0.0)
        self.pace = _Pace(settings.requests_per_minute)
        self.fatal: str | None = None
        self.reached = False  # whether the server has said anything at all
        self.unreached = 0  # requests that got no connection, each after the client's own retries
        key = _key(settings)
        self.client = _client(settings, key)
        self.scrub = _scrubber(key)

    def all(
        self, todo: Mapping[str, ChatRequest], total: int, progress: Callable[[int, int], None] | None
    ) -> dict[str, ChatAnswer]:
        """Send everything in `todo` and return the answers by fingerprint."""
        settled = total - len(todo)
        out: dict[str, ChatAnswer] = {}
        with ThreadPoolExecutor(self.settings.concurrency) as pool:
            futures = [(p, pool.submit(self.one, p, r)) for p, r in todo.items()]
            try:
                for p, future in futures:
                    out[p] = future.result()
                    settled += 1
                    if progress:
                        progress(settled, total)
            except BaseException:
                self.budget.close()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        if self.fatal:
            raise InputError(self.fatal)
        return out

    def one(self, fingerprint: str, request: ChatRequest) -> ChatAnswer:
        """Send one request: reserve, note, ask, note, settle."""
        most = self.settings.most(request)
        if not self.budget.reserve(most):
            return ChatAnswer(request.id, "not_sent", error=self.fatal or "the price cap leaves no room for it")
        cost = most
        try:
            self.pace.wait()
            keys = {"id": request.id, "fingerprint": fingerprint}
            body = self.settings.body(request)
            sent = {"event": "sent", **keys, "address": self.settings.address, "request": body, "reserved": most}
            self.log.append(sent, self.scrub)
            answer = self.ask(request, body, fingerprint)
            cost = answer.cost
            self.log.append({"event": "outcome", **asdict(answer), **keys}, self.scrub)
            return answer
        finally:
            self.budget.settle(most, cost)

    def ask(self, request: ChatRequest, body: Mapping[str, Any], fingerprint: str) -> ChatAnswer:
        """Put the question to the server and turn whatever comes back into an answer."""
        import openai

        most = self.settings.most(request)
        failed = ChatAnswer(request.id, "failed")
        try:
            # the header lets a server that honours it recognise a request repeated after a crash
            head = {"Idempotency-Key": fingerprint}
            rest = {k: v for k, v in body.items() if k not in {"model", "messages"}}
            reply = self.client.chat.completions.create(
                model=body["model"], messages=body["messages"], extra_body=rest, extra_headers=head
            )
        except openai.APIStatusError as error:
            if error.status_code in _FATAL:
                self.stop(error.status_code)
            self.reached = True
            return replace(failed, error=self.line(f"HTTP {error.status_code}: {error.message}"))
        except openai.APIConnectionError as error:
            self.miss(error)
            # the server may have worked, and billed, before the line broke
            return replace(failed, cost=most, error=self.line(f"{type(error).__name__}: {error.__cause__}"))
        except (openai.OpenAIError, ValueError) as error:  # a 200 whose body is no JSON, or not the promised one
            text = self.line(f"{type(error).__name__}: {error}")
            return ChatAnswer(request.id, "malformed", cost=most, error=text)
        self.reached = True
        return self.read(reply, request, most)

    def read(self, reply: object, request: ChatRequest, most: float) -> ChatAnswer:
        """Take text and usage out of a reply; a reply without text is malformed."""
        try:
            choice = reply.choices[0]  # type: ignore[attr-defined]
            text, finish = choice.message.content, choice.finish_reason
        except (AttributeError, IndexError, TypeError):
            text, finish = None, None
        if not isinstance(text, str):
            error = "the reply holds no choices[0].message.content"
            return ChatAnswer(request.id, "malformed", cost=most, error=error)
        used = _usage(reply, self.settings, request)
        price = self.settings.price(used[0], used[1])
        model = getattr(reply, "model", None)
        text = self.scrub(text)
        return ChatAnswer(request.id, _DONE, text, finish, model, used[0], used[1], used[2], price)

    def stop(self, code: int) -> None:
        """Send nothing more: what went wrong would go wrong for every request."""
        why = "does not know the model or path" if code == 404 else "refuses the key"
        where = f"{self.settings.address} (model {self.settings.model}, key from ${self.settings.key_env})"
        self.fatal = f"{where}: the server {why} (HTTP {code})"
        self.budget.close()

    def miss(self, error: Exception) -> None:
        """Send nothing more once it is plain that no server is there: each miss has cost all the retries' waiting."""
        self.unreached += 1
        if not self.reached and self.unreached >= max(_MISSES, self.settings.concurrency):
            why = self.line(f"{type(error).__name__}: {error.__cause__}")
            self.fatal = f"{self.settings.address}: no server answers there ({why}); {self.unreached} requests tried"
            self.budget.close()

    def line(self, text: str) -> str:
        """Return one scrubbed line of bounded length."""
        return " ".join(self.scrub(text).split())[:500]


def _usage(reply: object, settings: ChatSettings, request: ChatRequest) -> tuple[int, int, str]:
    """Return input tokens, output tokens, and whether the server reported them."""
    usage = getattr(reply, "usage", None)
    counts = (getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None))
    if all(isinstance(c, int) and c >= 0 for c in counts):
        return int(counts[0] or 0), int(counts[1] or 0), "reported"
    return settings.input_bound(request), settings.max_tokens, "estimated"


def _key(settings: ChatSettings) -> str:
    """Return the key from the environment; a placeholder for a server of one's own that needs none."""
    key = os.environ.get(settings.key_env, "").strip()
    if key and not (key.isascii() and key.isprintable()):
        # A header cannot hold it; sending would fail once per request, with the key in the client's message.
        raise InputError(f"${settings.key_env}: holds characters that no key has; expected printable ASCII")
    if key:
        return key
    if settings.address == DEFAULT_BASE_URL:
        raise InputError(f"${settings.key_env} is not set; expected the key for {settings.address}")
    return "unset"


def _client(settings: ChatSettings, key: str) -> Any:
    try:
        import openai
    except ImportError:
        raise InputError(
            "the openai client is missing; install the extra: pip install 'admissibility-companion[llm]'"
        ) from None
    return openai.OpenAI(api_key=key, base_url=settings.address, timeout=settings.timeout, max_retries=settings.retries)


def _scrubber(key: str) -> Callable[[str], str]:
    """Return a function that takes the key out of a text, in plain and in JSON-escaped spelling."""
    if len(key) < 8:  # too short to be a real key; replacing it would garble honest text
        return str
    spellings = sorted({key, json.dumps(key)[1:-1], json.dumps(key, ensure_ascii=False)[1:-1]}, key=len)

    def scrub(text: str) -> str:
        for spelling in reversed(spellings):
            text = text.replace(spelling, "[key]")
        return text

    return scrub
