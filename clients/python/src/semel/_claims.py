"""The claim API, without a network: each call is a flow of what to send and how long to pause.

`Client` and `AsyncClient` drive the same flows. What a claim means is decided by the gateway.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import random
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import httpx

from ._flow import Flow, Pause, is_unsendable, is_untrusted
from .errors import (
    Failed,
    InFlight,
    NotRecorded,
    Problem,
    ResultOmitted,
    SemelError,
    Stale,
    StepsChanged,
    StepTooLarge,
    Unsettled,
    Untrusted,
    problem,
)

Duration = float | str
OnLost = Literal["hold", "retry"]

# What the API allows for one call.
LONGEST_WAIT = 600.0
# Beyond what a call waits at the gateway, in seconds.
TIMEOUT = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
# For how long a claim that nobody waits for any more is sent again to be given back.
GIVE_BACK = 5.0
# The API takes no more. Refusing a longer one it closes the connection, and the refusal may be lost with it.
LONGEST_REQUEST = 2 << 20
# No store keeps an outcome of more than 32 MiB; as JSON it is longer.
LONGEST_ANSWER = 64 << 20
# Nothing was written: there was no connection to write to.
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


# Without `repr`, as all that holds a key, a token or what is asked for: those belong in no log.
@dataclass(repr=False)
class Send:
    """One request. What comes of it is an `Answer`, or an error of httpx."""

    path: str
    body: bytes
    timeout: float


@dataclass(repr=False)
class Answer:
    status: int
    headers: Mapping[str, str]
    # `None` where it is too long.
    body: bytes | None


@dataclass(frozen=True)
class Outcome:
    """What is recorded.

    `kind` is `success`, `failure` or `omitted`; `value` is JSON, text, bytes or nothing.
    """

    kind: str
    value: Any = None
    code: int = 0
    content_type: str | None = None

    def result(self) -> Any:
        """The value of a success.

        Raises `Failed` for a lasting failure, and `ResultOmitted` where the result was too large to keep.
        """
        if self.kind == "failure":
            raise Failed(self.value)
        if self.kind == "omitted":
            raise ResultOmitted("it is done, and its result was too large to keep")
        return self.value

    def to_wire(self) -> dict[str, Any]:
        body: dict[str, Any] = {"kind": self.kind, "code": self.code}
        if self.content_type is not None:
            body["content_type"] = self.content_type
        if isinstance(self.value, bytes):
            body["base64"] = base64.b64encode(self.value).decode()
        elif self.value is not None:
            body["json"] = self.value
        return body

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Outcome:
        value = wire.get("json", wire.get("text"))
        if "base64" in wire:
            value = base64.b64decode(wire["base64"])
        elif isinstance(value, str) and wire.get("content_type") == "application/octet-stream":
            # Bytes that are UTF-8 are shown as text.
            value = value.encode()
        return cls(wire["kind"], value, wire.get("code", 0), wire.get("content_type"))


@dataclass(repr=False)
class Claim:
    """What to claim, and how."""

    operation: str
    key: str
    payload: Any = None
    wait: float = 0.0
    lease: Duration = 30.0
    ttl: Duration = "24h"
    on_lost: OnLost = "hold"
    in_steps: bool = False
    scope: tuple[str, ...] = ()
    service: str = "default"
    tombstone: Duration = 0.0
    # Once for all tries: a claim whose answer was lost is found again by it.
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))

    def to_wire(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "operation": self.operation,
            "key": self.key,
            "service": self.service,
            "scope": list(self.scope),
            "nonce": self.nonce,
            "lease": duration(self.lease),
            "ttl": duration(self.ttl),
            "tombstone": duration(self.tombstone),
            "on_lost": "retry" if self.in_steps else self.on_lost,
        }
        if isinstance(self.payload, bytes):
            body["payload_base64"] = base64.b64encode(self.payload).decode()
        elif self.payload is not None:
            body["payload"] = self.payload
        return body


@dataclass(repr=False)
class Held:
    """A claim that was acquired: what its holder has to know."""

    id: str
    token: str
    fence: int
    attempt: int
    since: int
    lease: float
    # By this process's clock, counted from before the request: never later than the store's.
    until: float
    steps: list[tuple[str, Outcome]] = field(default_factory=list)
    # How many steps this attempt has come to.
    place: int = 0


def duration(value: Duration) -> str:
    return value if isinstance(value, str) else f"{round(value * 1000)}ms"


def claim(what: Claim, patience: float) -> Flow[Held | tuple[str, Outcome]]:
    """Claims until it is acquired, completed, or refused for good."""
    body = what.to_wire()
    waited_out = time.monotonic() + what.wait
    while True:
        sent = time.monotonic()
        wait = min(max(waited_out - sent, 0.0), LONGEST_WAIT)
        try:
            answer = yield from call("/v1/claims", body, wait + patience, wait_until=sent + wait)
        except Unsettled as unsettled:
            unsettled.nonce = what.nonce
            raise
        except InFlight as held:
            left = waited_out - time.monotonic()
            if left <= 0:
                raise
            # Its wait was cut short: the gateway stops, or has too many that wait.
            yield Pause(min(left, held.retry_after or FIRST_PAUSE))
            continue
        if "outcome" in answer:
            return answer["id"], Outcome.from_wire(answer["outcome"])
        lease = answer["lease_ms"] / 1000
        return Held(
            id=answer["id"],
            token=answer["token"],
            fence=answer["fence"],
            attempt=answer["attempt"],
            since=answer["since"],
            lease=lease,
            until=sent + lease,
            steps=[(step["name"], Outcome.from_wire(step["result"])) for step in answer["steps"]],
        )


def renew(held: Held, patience: float = 0.0) -> Flow[None]:
    """Unless it has patience, one try; where the gateway is not reached it ends as `Unsettled`."""
    sent = time.monotonic()
    answer = yield from call(f"/v1/claims/{held.id}/renew", {"token": held.token}, patience, held.lease / 3)
    held.until = max(held.until, sent + answer["lease_ms"] / 1000)


def settle(held: Held, verb: str, body: dict[str, Any], patience: float) -> Flow[dict[str, Any]]:
    return (yield from call(f"/v1/claims/{held.id}/{verb}", {"token": held.token, **body}, patience))


def complete(held: Held, kept: Outcome, ttl: dict[str, str], patience: float) -> Flow[Outcome]:
    """Records an outcome. Gives it back as every replay will show it."""
    omitted = Outcome("omitted", code=kept.code)
    try:
        try:
            answer = yield from settle(held, "complete", {"outcome": kept.to_wire(), **ttl}, patience)
        except Problem as refused:
            # It is too long for a proxy in front of the gateway.
            if refused.status != 413:
                raise
            answer = yield from settle(held, "complete", {"outcome": omitted.to_wire(), **ttl}, patience)
    except Stale:
        raise
    except (Problem, Untrusted) as refused:
        with contextlib.suppress(SemelError):
            yield from settle(held, "unknown", {}, patience=0)
        raise NotRecorded(f"the work ran, and recording it was refused: {refused}") from refused
    return omitted if answer.get("omitted") else kept


def next_step(held: Held, name: str) -> Outcome | str:
    """The result of a step that is finished, or the key for one that has to run."""
    place = held.place
    if place < len(held.steps):
        kept, result = held.steps[place]
        if kept != name:
            raise StepsChanged(f"step {place} was {kept!r} in an earlier attempt, and is {name!r} now")
        held.place += 1
        return result
    numbers = held.since.to_bytes(8, "big") + place.to_bytes(8, "big")
    return hashlib.sha256(b"semel/step/2" + bytes.fromhex(held.id) + numbers + name.encode()).hexdigest()


def keep_step(held: Held, name: str, value: Any, patience: float) -> Flow[Outcome]:
    """Keeps the result; gives it back as every later attempt will see it."""
    result = as_kept(Outcome("success", value))
    try:
        yield from settle(held, "steps", {"name": name, "result": result.to_wire()}, patience)
    except Problem as refused:
        if refused.status != 413:
            raise
        raise StepTooLarge(name, value) from refused
    held.steps.append((name, result))
    held.place += 1
    return result


def as_kept(outcome: Outcome) -> Outcome:
    """What a replay will show: a tuple becomes a list, a key of a dict becomes text.

    What cannot be sent is an error here: before anybody was told of an end.
    """
    return Outcome.from_wire(json.loads(to_json(outcome.to_wire())))


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def give_back(what: Claim) -> Flow[None]:
    """After a claim that nobody waits for any more: if it was made, it is found by its nonce, and ended."""
    # `hold`: no attempt that was lost is taken over for this.
    held = yield from claim(replace(what, wait=0.0, on_lost="hold", in_steps=False), GIVE_BACK)
    if not isinstance(held, Held):
        return
    if held.attempt > 1 and what.on_lost == "retry" and not what.in_steps:
        # It may have taken over a lost one, whose effect nobody knows, or follow one that was abandoned,
        # which is no case for operators. It is left to its lease: then the next claim takes it over.
        return
    yield from settle(held, "abandon", release(what.in_steps), GIVE_BACK)


def release(in_steps: bool) -> dict[str, Any]:
    # Steps gave out keys: the next attempt must have the same ones.
    return {"keys_given": True} if in_steps else {}


def call(
    path: str,
    body: dict[str, Any],
    patience: float,
    timeout: float = TIMEOUT,
    wait_until: float | None = None,
) -> Flow[dict[str, Any]]:
    """Sends the same until there is an answer, or patience is over: every call is safe to send again.

    What waits at the gateway waits until `wait_until`, however often it is sent.
    """
    end = time.monotonic() + patience
    longest = FIRST_PAUSE
    # An earlier try may have been carried out.
    sent = False
    while True:
        pause = random.uniform(0, longest)
        longest = min(longest * 2, LONGEST_PAUSE)
        wait = 0.0
        if wait_until is not None:
            wait = max(wait_until - time.monotonic(), 0.0)
            body["wait"] = duration(wait)
        encoded = to_json(body)
        if len(encoded) > LONGEST_REQUEST:
            detail = f"a request has {LONGEST_REQUEST} bytes at most"
            raise problem(413, {"code": "too-large", "detail": detail})
        why: Exception
        try:
            reply: Answer = yield Send(path, encoded, timeout + wait)
        except (httpx.TransportError, httpx.DecodingError) as error:
            if is_unsendable(error):
                raise
            if is_untrusted(error):
                untrusted = f"the certificate of the gateway is not trusted: {error}"
                raise (Unsettled if sent else Untrusted)(untrusted) from error
            sent = sent or not isinstance(error, UNSENT)
            why = error
        else:
            sent = True
            if reply.body is None:
                raise Unsettled(f"{path}: an answer of more than {LONGEST_ANSWER >> 20} MiB")
            answer = parsed(reply.body)
            if reply.status in (200, 201) and isinstance(answer, dict):
                return answer
            why = problem(reply.status, answer)
            asked = retry_after(reply)
            if isinstance(why, InFlight):
                why.retry_after = asked
            if not is_temporary(why):
                raise why
            pause += asked
        if time.monotonic() + pause > end:
            raise Unsettled(f"{path}: no answer within {patience:g} s") from why
        yield Pause(pause)


def is_temporary(answered: Problem) -> bool:
    """Whether nothing is known of the call after it; others are the answer to it."""
    status = answered.status
    return status >= 500 or status in (408, 425, 429) or answered.code == "incomplete-body"


def parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def retry_after(reply: Answer) -> float:
    text = reply.headers.get("retry-after", "").strip()
    return float(text) if text.isascii() and text.isdigit() else 0.0
