"""What can go wrong, by what to do about it."""

from __future__ import annotations

from typing import Any, ClassVar


class SemelError(Exception):
    """Everything that this package raises for reasons outside of the program."""


class Problem(SemelError):
    """An answer that is not the one that was hoped for.

    `code` is the stable word for it (docs/clients.md); `response` is the answer of a retried request.
    """

    codes: ClassVar[dict[str, type[Problem]]] = {}

    def __init__(
        self, status: int, code: str, detail: str = "", members: dict[str, Any] | None = None
    ) -> None:
        super().__init__(f"{code} ({status}): {detail}" if detail else f"{code} ({status})")
        self.status = status
        self.code = code
        self.detail = detail
        self.members = members or {}
        self.response: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.code, self.detail, self.members), self.__dict__

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        if code is not None:
            Problem.codes[code] = cls

    @property
    def id(self) -> str | None:
        """The operation's name, where the claim API says it."""
        return self.members.get("id")


class InFlight(Problem, code="in-flight"):
    """Another attempt holds the claim. Ask again after `retry_after` seconds."""

    retry_after: float = 0.0


class OutcomeUnknown(Problem, code="outcome-unknown"):
    """It may have happened, and nobody has recorded it. It does not run until that is resolved."""

    @property
    def fence(self) -> int | None:
        """The fence of the attempt that was lost."""
        return self.members.get("fence")


class Expired(Problem, code="expired"):
    """It happened, and its result is no longer kept."""


class Mismatch(Problem, code="mismatch"):
    """The key was used for something else. Nothing was changed."""


class Stale(Problem, code="stale"):
    """The claim is no longer this attempt's. Nothing was changed."""

    @property
    def reason(self) -> str | None:
        """`superseded`, `completed`, `released`, `unknown` or `missing`."""
        return self.members.get("reason")


class StepConflict(Problem, code="step-conflict"):
    """A step of this name is kept with another result."""


class Refused(Problem):
    """Everything else: the request has to be corrected, or its sender lacks a right. It changed nothing."""


class Unsettled(SemelError):
    """There was no answer in time, and it may have happened. The same again, later, finds out:
    with the same `key`, and the same `nonce` if it was a claim.
    """

    def __init__(self, what: str, key: str | None = None) -> None:
        super().__init__(what)
        self.key = key
        #: Of a claim that may be held: claim again with it, to have it and not to wait for it.
        self.nonce: str | None = None
        self.response: Any = None


class NotRecorded(SemelError):
    """The work ran, and the gateway refused to record it (`__cause__`). Its outcome counts as unknown."""


class Untrusted(SemelError):
    """The certificate of the gateway is not trusted: another authority, another name, or out of date.
    Nothing was sent.
    """


class Failed(SemelError):
    """A lasting failure: recorded as the result when the work raises it, raised again by every replay."""

    def __init__(self, result: Any = None) -> None:
        super().__init__(result)
        self.result = result


class StepsChanged(SemelError):
    """The steps are not those of an earlier attempt. Nothing was run."""


class StepTooLarge(SemelError):
    """The step ran, and its `result` does not fit into the record: all steps have 64 KiB. Another attempt
    runs it again, under the same key. Keep less of it: an id, say, under the same name.
    """

    def __init__(self, name: str, result: Any) -> None:
        super().__init__(f"step {name!r} ran, and its result is too large to keep")
        self.step = name
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step, self.result)


class ResultOmitted(SemelError):
    """It is done, and its result was too large to keep."""


def problem(status: int, body: Any) -> Problem:
    """The error for an answer of the claim API."""
    members = body if isinstance(body, dict) else {}
    code = members.get("code")
    code = code if isinstance(code, str) else "no-problem"
    detail = members.get("detail")
    return Problem.codes.get(code, Refused)(status, code, detail if isinstance(detail, str) else "", members)
