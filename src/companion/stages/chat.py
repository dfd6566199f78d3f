"""Talk to any OpenAI-compatible chat server: capped, rate limited, resumable, every word of it on disk.

Verifiers and readers hand a list of :class:`ChatRequest` to :func:`complete` and get one :class:`ChatAnswer` each, in
order. Transport, time-outs and retries are the ``openai`` client's own. The key is read from the environment when
a client is made, is part of no setting, and is scrubbed from whatever a server says.

The transcript (:class:`ChatLog`) is one append-only JSON Lines file. A ``sent`` line is on disk before a request leaves
and an outcome line before the answer is used, so a run killed at any moment goes on without paying twice for an
answer that it had; what was in flight is sent again under the same idempotency key, and what it may have cost counts
against the cap. The cap is kept by reserving the most that a request can cost before it is sent: a token is at least
one byte of UTF-8, and an answer has at most ``max_tokens`` tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from companion.errors import InputError

DEFAULT_BASE_URL = "https://api.openai.com/v1"
_FATAL = {401: "refuses the key", 403: "refuses the key", 404: "does not know the model or path"}
_MISSES = 3  # requests in a run that reach nothing before the run is given up


@dataclass(frozen=True)
class ChatRequest:
    """One question: a unique ``id``, which is part of what makes it the same request, and the chat messages."""

    id: str
    messages: tuple[Mapping[str, str], ...]

    @classmethod
    def ask(cls, id: str, user: str, system: str | None = None) -> ChatRequest:
        """Make a request from one user message and, if given, one system message."""
        head = ({"role": "system", "content": system},) if system is not None else ()
        return cls(id, (*head, {"role": "user", "content": user}))


@dataclass(frozen=True)
class ChatAnswer:
    """What became of one request: status answered, failed, malformed or not_sent."""

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
    """Which server and model, how much (prices per million tokens, a cap over the whole transcript), how fast."""

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
        _check_address(self.address)
        for name, low in (("concurrency", 1), ("max_tokens", 1), ("retries", 0)):
            if getattr(self, name) < low:
                raise InputError(f"{name}: {getattr(self, name)}; expected at least {low}")
        for name in ("price_input", "price_output", "price_cap", "requests_per_minute", "timeout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(f"{name}: {value}; expected a finite number of at least 0")
        if 0 in (self.requests_per_minute, self.timeout):
            raise InputError("requests_per_minute and timeout must be above 0")
        if self.price_cap is not None and self.price_input + self.price_output == 0:
            raise InputError("price_cap: a cap needs price_input and price_output to be held against")

    @property
    def address(self) -> str:  # noqa: D102
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
        """Return an upper bound on input tokens: UTF-8 bytes, and 16 per message for a server's template."""
        sizes = (len(part.encode()) for m in request.messages for part in m.values())
        return sum(sizes) + 16 * (len(request.messages) + 1)

    def price(self, input_tokens: int, output_tokens: int) -> float:
        """Return the price of so many tokens."""
        return (input_tokens * self.price_input + output_tokens * self.price_output) / 1e6

    def most(self, request: ChatRequest) -> float:
        """Return the most one attempt of a request can cost."""
        return self.price(self.input_bound(request), self.max_tokens)


def _check_address(address: str) -> None:
    """Refuse what is no address, or holds what a run record must not (the message repeats none of it)."""
    try:
        parts = urlsplit(address)
        whole = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        parts, whole = urlsplit(""), False
    if parts.username or parts.password:
        raise InputError("base_url: holds a user name or password; put the key in the environment instead")
    if parts.query or parts.fragment:
        raise InputError("base_url: holds a query or fragment; expected the plain root of the API")
    if not whole or parts.scheme not in {"http", "https"} or not address.isprintable() or " " in address:
        raise InputError("base_url: expected an http or https address such as http://127.0.0.1:8000/v1")


class ChatLog:
    """The transcript: an append-only JSON Lines file of every request sent and every outcome."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: IO[bytes] | None = None

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the transcript's lines, oldest first; what a crash left behind the last whole line is no line."""
        raw = self.path.read_bytes() if self.path.exists() else b""
        for number, line in enumerate(raw[: raw.rfind(b"\n") + 1].splitlines(), start=1):
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
        answered = [e for e in self.events() if e["event"] == "outcome" and e["status"] == "answered"]
        names = set(ChatAnswer.__dataclass_fields__)
        return {e["fingerprint"]: ChatAnswer(**{k: e[k] for k in names & set(e)}) for e in answered}

    def spent(self) -> float:
        """Return what the file accounts for: costs of outcomes, and the reserve of sends without an outcome."""
        total, waiting = 0.0, dict[str, float]()
        for e in self.events():
            open_send = waiting.pop(e["fingerprint"], 0.0)
            if e["event"] == "sent":
                total += open_send  # an earlier send that a crash left open
                waiting[e["fingerprint"]] = float(e["reserved"])
            else:
                total += float(e["cost"])
        return total + sum(waiting.values())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the file open for appending, locked against a second process; a torn last line is cut off."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as handle:
            _lock(handle, self.path)
            handle.seek(0)
            handle.truncate(handle.read().rfind(b"\n") + 1)
            self._file = handle
            try:
                yield
            finally:
                self._file = None

    def append(self, event: Mapping[str, Any], scrub: Callable[[str], str] = str) -> None:
        """Write one line and wait until it is on disk."""
        assert self._file is not None, "use `with log.writing():`"
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = scrub(json.dumps({**event, "time": stamp}, ensure_ascii=False, default=str))
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _lock(handle: IO[bytes], path: Path) -> None:
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # pragma: no cover - Windows
        return
    except OSError:
        raise InputError(f"{path}: another process is writing to this transcript; wait for it to end") from None


def pending(requests: Sequence[ChatRequest], settings: ChatSettings, log: ChatLog) -> list[ChatRequest]:
    """List the requests that :func:`complete` would send: those that the transcript does not answer yet."""
    known = log.answers()
    return [r for p, r in _prints(requests, settings).items() if p not in known]


def complete(
    requests: Sequence[ChatRequest],
    settings: ChatSettings,
    log: ChatLog,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[ChatAnswer]:
    """Ask every request that the transcript does not answer yet; return one answer each, in order."""
    prints = _prints(requests, settings)
    answers = log.answers()
    todo = {p: r for p, r in prints.items() if p not in answers}
    if todo:
        run = _Run(settings, log)  # a missing key or client is refused before the transcript's file is made
        with log.writing():
            answers |= run.all(todo, len(prints), progress)
    return [answers[p] for p in prints]


def ready(settings: ChatSettings) -> None:
    """Make sure that requests could be sent: the client is installed, the key is fit to be sent. Nothing is sent."""
    _client(settings, _key(settings))


def incomplete(answers: Iterable[ChatAnswer]) -> dict[str, int]:
    """Count the answers that are not usable, by status; empty when the set is complete."""
    return dict(Counter(a.status for a in answers if a.status != "answered"))


def _prints(requests: Sequence[ChatRequest], settings: ChatSettings) -> dict[str, ChatRequest]:
    twice = [name for name, n in Counter(r.id for r in requests).items() if n > 1]
    if twice:
        raise InputError(f"request id {twice[0]!r} occurs twice; expected unique ids")
    return {settings.fingerprint(r): r for r in requests}


class _Run:
    """One call of `complete`. Only questions run in threads; accounts and transcript are kept in one place."""

    def __init__(self, settings: ChatSettings, log: ChatLog) -> None:
        key = _key(settings)
        self.settings, self.log, self.client = settings, log, _client(settings, key)
        # a shorter one is no key, and taking it out would garble honest text
        self.spellings = [json.dumps(key)[1:-1], key] if len(key) >= 8 else []
        self.fatal: str | None = None
        self.reached, self.missed = False, 0  # whether the server has said anything; requests without a connection
        self.spent, self.next_start, self.out = log.spent(), 0.0, dict[str, ChatAnswer]()
        self.flying: dict[Future[ChatAnswer], tuple[str, ChatRequest]] = {}

    def all(
        self, todo: Mapping[str, ChatRequest], total: int, progress: Callable[[int, int], None] | None
    ) -> dict[str, ChatAnswer]:
        """Send everything in `todo` and return the answers by fingerprint."""

        def settle() -> None:
            for future in wait(self.flying, return_when=FIRST_COMPLETED).done:
                self.settle(future)
                if progress:
                    progress(total - len(todo) + len(self.out), total)

        with ThreadPoolExecutor(self.settings.concurrency) as pool:
            try:
                for fingerprint, request in todo.items():
                    while self.flying and (len(self.flying) >= self.settings.concurrency or not self.fits(request)):
                        settle()
                    if self.fatal or not self.fits(request):
                        why = self.fatal or "the price cap leaves no room for it"
                        self.out[fingerprint] = ChatAnswer(request.id, "not_sent", error=why)
                        continue
                    self.pace()
                    self.note("sent", request, fingerprint)
                    self.flying[pool.submit(self.ask, request, fingerprint)] = (fingerprint, request)
            finally:
                while self.flying:  # also when interrupted: what was asked is paid for, so it is kept
                    settle()
        if self.fatal:
            raise InputError(self.fatal)
        return self.out

    def fits(self, request: ChatRequest) -> bool:
        cap, reserved = self.settings.price_cap, sum(self.settings.most(r) for _, r in self.flying.values())
        return cap is None or self.spent + reserved + self.settings.most(request) <= cap

    def pace(self) -> None:
        """Wait for the next start that the rate limit allows."""
        if self.settings.requests_per_minute:
            start = max(time.monotonic(), self.next_start)
            self.next_start = start + 60.0 / self.settings.requests_per_minute
            time.sleep(max(0.0, start - time.monotonic()))

    def note(self, event: str, request: ChatRequest, fingerprint: str, answer: ChatAnswer | None = None) -> None:
        how = self.settings
        sent = {"address": how.address, "request": how.body(request), "reserved": how.most(request)}
        told = sent if answer is None else asdict(answer)
        self.log.append({**told, "event": event, "id": request.id, "fingerprint": fingerprint}, self.scrub)

    def settle(self, future: Future[ChatAnswer]) -> None:
        fingerprint, request = self.flying.pop(future)
        answer = future.result()
        self.note("outcome", request, fingerprint, answer)
        self.spent += answer.cost
        self.out[fingerprint] = answer

    def ask(self, request: ChatRequest, fingerprint: str) -> ChatAnswer:
        """Put the question to the server and turn whatever comes back into an answer."""
        import openai

        body, most = self.settings.body(request), self.settings.most(request)
        failed = ChatAnswer(request.id, "failed")
        try:  # the header lets a server that honours it recognise a request repeated after a crash
            rest = {k: v for k, v in body.items() if k not in {"model", "messages"}}
            reply = self.client.chat.completions.create(
                model=body["model"], messages=body["messages"], extra_body=rest,
                extra_headers={"Idempotency-Key": fingerprint},
            )  # fmt: skip
        except openai.APIStatusError as error:
            self.reached = True
            if error.status_code in _FATAL:  # every further request would fail too
                where = f"{self.settings.address} (model {self.settings.model}, key from ${self.settings.key_env})"
                self.fatal = f"{where}: the server {_FATAL[error.status_code]} (HTTP {error.status_code})"
            return replace(failed, error=self.line(f"HTTP {error.status_code}: {error.message}"))
        except openai.APIConnectionError as error:
            why = self.line(f"{type(error).__name__}: {error.__cause__}")
            self.missed += 1
            if not self.reached and self.missed >= max(_MISSES, self.settings.concurrency):
                told = f"no server answers there ({why}); {self.missed} requests tried"
                self.fatal = f"{self.settings.address}: {told}"
            return replace(failed, cost=most, error=why)  # it may have worked, and billed, before the line broke
        except (openai.OpenAIError, ValueError) as error:  # a 200 whose body is no JSON, or not the promised one
            return ChatAnswer(request.id, "malformed", cost=most, error=self.line(f"{type(error).__name__}: {error}"))
        self.reached = True
        return self.read(reply, request)

    def read(self, reply: Any, request: ChatRequest) -> ChatAnswer:
        """Take text and usage out of a reply; a reply without text is malformed."""
        choice = next(iter(getattr(reply, "choices", None) or ()), None)
        text = getattr(getattr(choice, "message", None), "content", None)
        if choice is None or not isinstance(text, str):
            error = "the reply holds no choices[0].message.content"
            return ChatAnswer(request.id, "malformed", cost=self.settings.most(request), error=error)
        usage = getattr(reply, "usage", None)
        counts = (getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None))
        told = all(isinstance(c, int) and c >= 0 for c in counts)
        used: tuple[Any, Any] = counts if told else (self.settings.input_bound(request), self.settings.max_tokens)
        how, cost = "reported" if told else "estimated", self.settings.price(*used)
        model = getattr(reply, "model", None)
        return ChatAnswer(request.id, "answered", self.scrub(text), choice.finish_reason, model, *used, how, cost)

    def scrub(self, text: str) -> str:
        """Take the key out of a text, in plain and in JSON-escaped spelling."""
        for spelling in self.spellings:
            text = text.replace(spelling, "[key]")
        return text

    def line(self, text: str) -> str:
        """Return one scrubbed line of bounded length."""
        return " ".join(self.scrub(text).split())[:500]


def _key(settings: ChatSettings) -> str:
    """Return the key from the environment; a server of one's own needs none."""
    key = os.environ.get(settings.key_env, "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise InputError(f"${settings.key_env}: holds characters that no key has; expected printable ASCII")
    if not key and settings.address == DEFAULT_BASE_URL:
        raise InputError(f"${settings.key_env} is not set; expected the key for {settings.address}")
    return key or "unset"


def _client(settings: ChatSettings, key: str) -> Any:
    try:
        import openai
    except ImportError:
        raise InputError("the openai client is missing; run: pip install 'admissibility-companion[llm]'") from None
    return openai.OpenAI(api_key=key, base_url=settings.address, timeout=settings.timeout, max_retries=settings.retries)
