"""Operations that happen once, through a semel gateway."""

from ._claims import Outcome
from .client import AsyncAttempt, AsyncClient, Attempt, Client, OnError, Options, current, once
from .errors import (
    Expired,
    Failed,
    InFlight,
    Mismatch,
    NotRecorded,
    OutcomeUnknown,
    Problem,
    Refused,
    ResultOmitted,
    SemelError,
    Stale,
    StepConflict,
    StepsChanged,
    Unsettled,
    Untrusted,
)

__all__ = [
    "AsyncAttempt",
    "AsyncClient",
    "Attempt",
    "Client",
    "Expired",
    "Failed",
    "InFlight",
    "Mismatch",
    "NotRecorded",
    "OnError",
    "Options",
    "Outcome",
    "OutcomeUnknown",
    "Problem",
    "Refused",
    "ResultOmitted",
    "SemelError",
    "Stale",
    "StepConflict",
    "StepsChanged",
    "Unsettled",
    "Untrusted",
    "current",
    "once",
]
