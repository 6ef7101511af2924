"""What to do with what came back. `clients/retry-cases.json` is the table that this is tested by."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Literal

Effect = Literal["none", "possible", "happened"]
Next = Literal["done", "retry-same-key", "new-key-allowed", "stop"]
FailureKind = Literal["refused", "reset", "timeout", "broken-answer", "invalid-request"]

# No problem is longer, and a longer body is not looked into.
LONGEST_PROBLEM = 16 << 10
# RFC 9111, section 1.2.2: what cannot be counted is this much.
LONGEST_TIME = float(1 << 31)
# RFC 9110, section 9.2.1: they need no key.
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
# Section 9.2.2; of other methods the key makes it so.
IDEMPOTENT = SAFE | {"PUT", "DELETE"}
# semel's and the draft's implementers', and Stripe's and ACP's.
REPLAY_MARKS = ("idempotency-replayed", "idempotent-replayed")


@dataclass(frozen=True)
class Sent:
    """What of a request decides whether it may be sent again.

    `lost`: an earlier try of the same intent may have had its effect.
    """

    method: str = "POST"
    key: bool = True
    lost: bool = False

    @property
    def repeatable(self) -> bool:
        return self.key or self.method in IDEMPOTENT


@dataclass(frozen=True)
class Answer:
    """An answer, read whole. The names of its fields are in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True)
class Failure:
    """No answer, or not the whole of it. `sent`: something of the request was written, or may have been."""

    kind: FailureKind
    sent: bool = True
    status: int = 0


@dataclass(frozen=True)
class Decision:
    """What to do, why, and what is known of the effect if nothing more is sent."""

    next: Next
    effect: Effect = "happened"
    reason: str | None = None
    after: float = 0.0
    replayed: bool = False


def decide(sent: Sent, came: Answer | Failure, now: datetime | None = None) -> Decision:
    if isinstance(came, Failure):
        return _after_failure(sent, came)
    return _after_answer(sent, came, now or datetime.now(timezone.utc))


def _after_failure(sent: Sent, failure: Failure) -> Decision:
    if failure.kind == "invalid-request":
        return _stop(sent, "invalid", "possible" if failure.sent else "none")
    if failure.kind == "broken-answer" and 200 <= failure.status < 300:
        return _again(sent, "happened") if sent.repeatable else _stop(sent, "answer-lost", "happened")
    if failure.kind != "broken-answer" and not failure.sent:
        return _again(sent, "none")
    return _again(sent, "possible") if sent.repeatable else _stop(sent, "unknown", "possible")


def _after_answer(sent: Sent, answer: Answer, now: datetime) -> Decision:
    says = answer.headers.get
    replayed = any(says(mark) == "true" for mark in REPLAY_MARKS)
    done = Decision("done", replayed=replayed)
    if 200 <= answer.status < 400:
        return done
    # A service that could not keep the key would run the request again.
    sent = replace(sent, key=sent.key and says("idempotency-protected") != "false")
    problem = _problem(answer)
    meaning = _meaning(answer.status, problem)
    if replayed and meaning != "precondition-failed":
        return done
    if replayed:
        # What is recorded under the key is what became of the lost try.
        sent = replace(sent, lost=False)
    after = _retry_after(answer, problem, now)
    decision = _by_meaning(sent, meaning, after) or _by_status(sent, answer, after) or done
    return replace(decision, replayed=replayed)


def _by_meaning(sent: Sent, meaning: str | None, after: float) -> Decision | None:
    match meaning:
        case "unknown":
            return _stop(sent, "unknown", "possible")
        # Without a key these are the service's own words.
        case "mismatch" if sent.key:
            return _stop(sent, "mismatch", "possible")
        case "expired" if sent.key:
            return _stop(sent, "expired", "happened")
        case "in-flight" if sent.key:
            return _again(sent, "possible", after)
        case "outside-window":
            return _stop(sent, "expired", "none")
        case "invalid-key":
            return _anew(sent, "invalid-key")
        case "precondition-failed":
            return _anew(sent, "precondition")
        case "unauthorized" | "invalid":
            return _stop(sent, meaning, "none")
        case "nothing-ran":
            return _again(sent, "none", after) if sent.repeatable else _stop(sent, "busy", "none")
    return None


def _by_status(sent: Sent, answer: Answer, after: float) -> Decision | None:
    status = answer.status
    should_retry = answer.headers.get("stripe-should-retry")
    if should_retry == "true" and sent.repeatable:
        return _again(sent, "possible", after)
    if should_retry == "false" and not 400 <= status <= 408:
        return None
    match status:
        case 409 if sent.key and "retry-after" in answer.headers:
            return _again(sent, "possible", after)
        case 425 | 429:
            return _again(sent, "none", after) if sent.repeatable else _stop(sent, "busy", "none")
        case 401 | 403 | 407 | 419:
            return _stop(sent, "unauthorized", "none")
        case 400 | 405 | 406 | 411 | 413 | 414 | 415 | 417 | 421 | 426 | 428 | 431 | 501 | 505:
            return _stop(sent, "invalid", "none")
    if status == 408 or status >= 500:
        return _again(sent, "possible", after) if sent.repeatable else _stop(sent, "unknown", "possible")
    return None


def _again(sent: Sent, effect: Effect, after: float = 0.0) -> Decision:
    return Decision("retry-same-key", _known(sent, effect), after=after)


def _stop(sent: Sent, reason: str, effect: Effect) -> Decision:
    return Decision("stop", _known(sent, effect), reason)


def _anew(sent: Sent, reason: str) -> Decision:
    # With another key, if no earlier try may have had its effect under this one.
    return _stop(sent, reason, "possible") if sent.lost else Decision("new-key-allowed", "none", reason)


def _known(sent: Sent, effect: Effect) -> Effect:
    return "possible" if sent.lost and effect == "none" else effect


# Codes count with the statuses that they come with: a service may use the same words for its own purposes.
MEANINGS: list[tuple[range, str, str]] = [
    (
        range(400, 600),
        "unknown",
        "outcome-unknown idempotency-outcome-unknown commit-state-unknown-exception",
    ),
    (
        range(400, 500),
        "mismatch",
        "mismatch idempotency-mismatch idempotency-conflict idempotency-key-reused",
    ),
    (range(409, 410), "expired", "expired"),
    (range(400, 500), "expired", "idempotency-expired"),
    (range(412, 413), "outside-window", "outside-window"),
    (
        range(409, 410),
        "in-flight",
        "in-flight in-progress idempotency-in-flight idempotency-in-progress idempotency-key-in-use "
        "request-in-progress operation-in-progress previous-request-in-progress concurrent-request",
    ),
    (range(400, 401), "invalid-key", "invalid-key idempotency-key-invalid"),
    (range(412, 413), "precondition-failed", "precondition-failed"),
    (range(400, 401), "unauthorized", "missing-principal auth-missing"),
    (range(404, 405), "invalid", "no-route"),
    (range(503, 504), "nothing-ran", "overloaded capacity contended auth-unavailable"),
    (range(429, 430), "nothing-ran", "limit"),
    (range(502, 503), "nothing-ran", "upstream-unreachable"),
    (range(400, 401), "nothing-ran", "incomplete-body"),
]


def _meaning(status: int, problem: Any) -> str | None:
    code = _code_of(problem)
    for statuses, meaning, codes in MEANINGS:
        if status in statuses and code in codes.split():
            return meaning
    # Stripe's own answers have a type, and not always a code.
    if status in (400, 409) and _at(problem, "error", "type") == "idempotency_error":
        return "in-flight" if status == 409 else "mismatch"
    return None


def _problem(answer: Answer) -> Any:
    media_type = answer.headers.get("content-type", "").split(";")[0].strip().lower()
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if not is_json or len(answer.body) > LONGEST_PROBLEM:
        return None
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        return None


def _code_of(problem: Any) -> str | None:
    """At the top (RFC 9457's extension), in `error`, in the first of `errors`; Iceberg's is a `type`."""
    places = [
        ("code",),
        ("error", "code"),
        ("error", "type"),
        ("error",),
        ("errors", 0, "code"),
        ("adcp_error", "code"),
    ]
    for place in places:
        code = _at(problem, *place)
        if isinstance(code, str):
            return re.sub(r"[_. ]", "-", re.sub(r"(?<=[a-z])(?=[A-Z])", "-", code)).lower()
    return None


def _at(value: Any, *place: str | int) -> Any:
    for step in place:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and len(value) > step else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def _retry_after(answer: Answer, problem: Any, now: datetime) -> float:
    """How many seconds the service asks to wait: the field, else AdCP's member."""
    field = answer.headers.get("retry-after")
    if field is not None:
        return _time_in(field.strip(), answer.headers.get("date"), now)
    for place in [("error",), ("adcp_error",), ("errors", 0)]:
        seconds = _at(problem, *place, "retry_after")
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds >= 0:
            return float(min(seconds, LONGEST_TIME))
    return 0.0


def _time_in(field: str, date: str | None, now: datetime) -> float:
    if field.isascii() and field.isdigit():
        return min(float(field), LONGEST_TIME)
    until = _date(field)
    # The service's own clock, where it says what that is: this process's may be wrong.
    now = (date and _date(date)) or now
    return max((until - now).total_seconds(), 0.0) if until else 0.0


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (IndexError, OverflowError, ValueError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=timezone.utc)
