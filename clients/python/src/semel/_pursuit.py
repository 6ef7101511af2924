"""One request with its retries: what `_decide` says of each try, in time."""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
import time
import uuid
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import quote, urldefrag, urljoin

import httpx

from ._decide import SAFE, Answer, Decision, Failure, Sent, decide
from ._flow import Pieces
from .errors import Expired, Mismatch, OutcomeUnknown, Problem, SemelError, Unsettled

R = TypeVar("R")

# A longer one is handed on as the stream that it is.
LONGEST_ANSWER = 1 << 20
# Under this a request whose answer redirects holds a `Redirected`: what follows is made of it.
MARK = "semel"
# What is not encoded where it stands in a URL.
IN_URLS = "!#$%&'()*+,/:;=?@[]~"

REFUSALS: dict[str, tuple[type[Problem], str]] = {
    "mismatch": (Mismatch, "mismatch"),
    "unknown": (OutcomeUnknown, "outcome-unknown"),
    "expired": (Expired, "expired"),
}


class Budget:
    """Bounds retries: a part of the requests, a few a second, and a reserve.

    A retry that it has no room for waits, so that many clients do not flood a service that is down.
    """

    def __init__(self, ratio: float = 0.2, per_second: float = 1.0, reserve: float = 10.0) -> None:
        self.ratio, self.per_second, self.reserve = ratio, per_second, reserve
        self._left = reserve
        self._at = time.monotonic()
        self._lock = threading.Lock()

    def earn(self) -> None:
        """A request begins."""
        with self._lock:
            self._left = self._filled() + self.ratio

    def spend(self, within: float) -> float | None:
        """For how long the next retry has to wait. Nothing is spent where that is longer than `within`."""
        with self._lock:
            left = self._filled() - 1.0
            wait = 0.0
            if left < 0:
                wait = -left / self.per_second if self.per_second > 0 else math.inf
            if wait > within or wait == math.inf:
                return None
            self._left = left
            return wait

    def _filled(self) -> float:
        now = time.monotonic()
        self._left = min(self._left + (now - self._at) * self.per_second, self.reserve)
        self._at = now
        return self._left


@dataclass
class Rules:
    """How patiently to retry. All times are seconds."""

    #: For one request with all its retries.
    patience: float = 60.0
    #: The pause before the first retry is between nothing and this; it doubles up to `longest_pause`.
    first_pause: float = 0.5
    longest_pause: float = 20.0
    key_header: str = "Idempotency-Key"
    budget: Budget = field(default_factory=Budget)


@dataclass(frozen=True)
class Redirected:
    """A request whose answer leads elsewhere, for the one that its client makes of it."""

    key: str | None
    asked: tuple[str | None, str]
    #: By its `id`: it lives as long as its client follows redirects.
    request: int
    to_itself: bool

    @classmethod
    def by(cls, request: Any, location: str, key: str | None) -> Redirected:
        url = str(request.url)
        try:
            target = urljoin(url, quote(location, safe=IN_URLS))
            to_itself = urldefrag(target).url == urldefrag(url).url
        except ValueError:
            # It leads nowhere.
            to_itself = False
        return cls(key, (request.method, url), id(request), to_itself)

    def leads_to(self, request: Any) -> bool:
        """The request itself, sent once more, is another intent; so is a copy, unless it led to itself."""
        if (request.method, str(request.url)) != self.asked:
            return True
        return self.to_itself and id(request) != self.request


class Pursuit:
    """A request from its first try to the last. Gives it a key if it needs one and has none.

    `redirected`: the key of the request whose answer led here. The intent is the same, and so is the key.
    """

    def __init__(
        self, rules: Rules, method: str, headers: MutableMapping[str, str], redirected: str | None = None
    ) -> None:
        self.key = headers.get(rules.key_header, redirected)
        if method not in SAFE:
            self.key = headers.setdefault(rules.key_header, self.key or str(uuid.uuid4()))
        self._is_redirected = redirected is not None
        self._rules = rules
        self._sent = Sent(method, rules.key_header in headers)
        self._end = time.monotonic() + rules.patience
        self._longest = rules.first_pause
        self._decision = Decision("done")
        self._body = b""
        rules.budget.earn()

    def pause(self, came: Answer | Failure) -> float | None:
        """How long to pause before the next try, or nothing: this was the last one."""
        if isinstance(came, Failure) and self._is_redirected:
            # The request that was redirected may have had its effect.
            came = replace(came, sent=True)
        self._body = came.body if isinstance(came, Answer) else b""
        self._decision = decide(self._sent, came)
        if self._decision.next != "retry-same-key":
            return None
        self._sent = Sent(self._sent.method, self._sent.key, lost=self._decision.effect != "none")
        pause = self._decision.after + random.uniform(0, self._longest)
        left = self._end - time.monotonic() - pause
        wait = self._rules.budget.spend(left) if left >= 0 else None
        if wait is None:
            return None
        self._longest = min(self._longest * 2, self._rules.longest_pause)
        return pause + wait

    def within(self, timeout: float | None) -> float | None:
        """A timeout of one try: no longer than the patience. An answer without a key may be a stream."""
        if not self._sent.key:
            return timeout
        left = max(self._end - time.monotonic(), 0.001)
        return left if timeout is None else min(timeout, left)

    def between_pieces(self, timeout: float | None, is_read: bool) -> float | None:
        """A timeout of a body: the caller's. One that is read is not waited for without a bound."""
        if not self._sent.key or not is_read:
            return timeout
        return self._rules.patience if timeout is None else min(timeout, self._rules.patience)

    def is_read(self, status: int, headers: Mapping[str, str]) -> bool:
        """An answer that breaks off is asked for again. Those to GET and the like may be streams."""
        if headers.get("content-type", "").lower().startswith("text/event-stream"):
            return False
        length = headers.get("content-length", "")
        if length.isascii() and length.isdigit() and float(length) > LONGEST_ANSWER:
            return False
        return self._sent.key or status >= 400

    def pieces(self) -> Pieces:
        """Of an answer that is read."""
        return Pieces(LONGEST_ANSWER, self._end)

    def conclude(self, response: R | None, error: Exception | None) -> R:
        """After the last try: its response or error, or what has to be known instead."""
        decision = self._decision
        if decision.next != "done" and decision.effect != "none" and self.key is not None:
            raise self._refusal(decision, response) from error
        if response is None:
            raise error or RuntimeError("neither a response nor an error")
        return response

    def _refusal(self, decision: Decision, response: Any) -> SemelError:
        if decision.next == "stop" and decision.reason in REFUSALS and response is not None:
            kind, code = REFUSALS[decision.reason]
            members = members_of(self._body)
            refusal: Problem | Unsettled = kind(
                response.status_code, code, members.get("detail", ""), members
            )
        else:
            what = "it happened" if decision.effect == "happened" else "it may have happened"
            refusal = Unsettled(f"{what}, and its answer did not come in time", self.key)
        if isinstance(response, httpx.Response) and isinstance(response.stream, httpx.ByteStream):
            # It is held in memory, and no client will read it now. It may not be what it says it is.
            with contextlib.suppress(httpx.DecodingError):
                response.read()
        refusal.response = response
        return refusal


def members_of(body: bytes) -> dict[str, Any]:
    try:
        members = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return members if isinstance(members, dict) else {}
