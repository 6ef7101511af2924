"""One request with its retries: what `_decide` says of each try, in time."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from ._decide import IDEMPOTENT, Answer, Decision, Failure, Sent, decide
from .errors import Expired, Mismatch, OutcomeUnknown, Problem, SemelError, Unsettled

R = TypeVar("R")

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
        self._add(self.ratio)

    def spend(self) -> float:
        """For how long the next retry has to wait."""
        self._add(-1.0)
        return max(-self._left, 0.0) / self.per_second

    def _add(self, amount: float) -> None:
        with self._lock:
            now = time.monotonic()
            self._left += (now - self._at) * self.per_second
            self._left = min(self._left, self.reserve) + amount
            self._at = now


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


class Pursuit:
    """A request from its first try to the last. Gives it a key if it needs one and has none."""

    def __init__(self, rules: Rules, method: str, headers: MutableMapping[str, str]) -> None:
        if rules.key_header not in headers and method not in IDEMPOTENT:
            headers[rules.key_header] = str(uuid.uuid4())
        self.key = headers.get(rules.key_header)
        self._rules = rules
        self._sent = Sent(method, self.key is not None)
        self._end = time.monotonic() + rules.patience
        self._longest = rules.first_pause
        self._decision = Decision("done")
        self._body = b""
        rules.budget.earn()

    def pause(self, came: Answer | Failure) -> float | None:
        """How long to pause before the next try, or nothing: this was the last one."""
        self._body = came.body if isinstance(came, Answer) else b""
        self._decision = decide(self._sent, came)
        if self._decision.next != "retry-same-key":
            return None
        self._sent = Sent(self._sent.method, self._sent.key, lost=self._decision.effect != "none")
        pause = self._decision.after + random.uniform(0, self._longest)
        if time.monotonic() + pause > self._end:
            return None
        pause += self._rules.budget.spend()
        self._longest = min(self._longest * 2, self._rules.longest_pause)
        return pause if time.monotonic() + pause <= self._end else None

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
        if isinstance(response, httpx.Response):
            # It is held in memory, and no client will read it now.
            response.read()
        refusal.response = response
        return refusal


def members_of(body: bytes) -> dict[str, Any]:
    try:
        members = json.loads(body)
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}
