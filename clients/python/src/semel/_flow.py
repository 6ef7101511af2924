"""What is written once for threads and for asyncio: generators of what to do next, and what came of it."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

T = TypeVar("T")
Flow = Generator[Any, Any, T]


@dataclass
class Pause:
    seconds: float
    # Ends a pause of a thread; a task is cancelled.
    until: threading.Event | None = None


def drive(flow: Flow[T], do: Callable[[Any], Any]) -> T:
    """Does what the flow asks for until it ends."""
    step, value = flow.send, None
    while True:
        try:
            todo = step(value)
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            step, value = flow.send, do(todo)
        except BaseException as error:
            step, value = flow.throw, error


async def drive_async(flow: Flow[T], do: Callable[[Any], Awaitable[Any]]) -> T:
    step, value = flow.send, None
    while True:
        try:
            todo = step(value)
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            step, value = flow.send, await do(todo)
        except BaseException as error:
            step, value = flow.throw, error


class Pieces:
    """A body while it is read: of `most` bytes at the most, and until `end`."""

    def __init__(self, most: int, end: float) -> None:
        self._most, self._end = most, end
        self._body = bytearray()

    def add(self, piece: bytes) -> bool:
        """Whether it is short enough to go on."""
        if time.monotonic() > self._end:
            raise httpx.ReadTimeout("the answer did not end in time")
        self._body += piece
        return len(self._body) <= self._most

    def joined(self) -> bytes:
        return bytes(self._body)


def is_unsendable(error: Exception) -> bool:
    """Whether there is no way to send it. Over HTTP/2, other faults may have come of the answer."""
    is_illegal = isinstance(error, httpx.LocalProtocolError) and str(error).startswith("Illegal ")
    return is_illegal or isinstance(error, httpx.UnsupportedProtocol)


def is_untrusted(error: Exception | None) -> bool:
    """Whether it is the other side's certificate: then nothing was sent."""
    # httpcore cuts the chain of causes. What it was raised in the course of may be another request.
    cause = error.__cause__ if error else None
    whys = (cause, *cause.args) if cause else ()
    return any(isinstance(why, ssl.SSLCertVerificationError) for why in whys)
