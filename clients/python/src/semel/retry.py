"""Transports for httpx that send a request again, with one key, until its answer is known.

http = httpx.Client(transport=RetryTransport())
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from ._claims import UNSENT
from ._decide import LONGEST_PROBLEM, Answer, Failure
from ._flow import Flow, Pause, Pieces, drive, drive_async, is_unsendable, is_untrusted
from ._pursuit import MARK, Budget, Pursuit, Redirected, Rules
from .errors import SemelError

__all__ = ["AsyncRetryTransport", "Budget", "RetryTransport", "Rules"]


class RetryTransport(httpx.BaseTransport):
    """Retries what is sent through `inner`. Holds bodies in memory, and answers to requests with a key."""

    def __init__(self, inner: httpx.BaseTransport | None = None, rules: Rules | None = None) -> None:
        self._inner = inner or httpx.HTTPTransport()
        self._rules = rules or Rules()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return drive(pursue(self._rules, request), self._do)

    def _do(self, todo: Any) -> Any:
        match todo:
            case Pause():
                time.sleep(todo.seconds)
            case Close():
                todo.response.close()
            case Read(response):
                stream = response.stream
                assert isinstance(stream, httpx.SyncByteStream)
                rest = iter(stream)
                try:
                    is_whole = all(todo.body.add(piece) for piece in rest)
                except BaseException:
                    stream.close()
                    raise
                if not is_whole:
                    return with_stream(response, Begun(todo.body.joined(), rest, stream))
                stream.close()
                return with_stream(response, httpx.ByteStream(todo.body.joined()))
            case _:
                return self._inner.handle_request(todo)
        return None

    def close(self) -> None:
        self._inner.close()


class AsyncRetryTransport(httpx.AsyncBaseTransport):
    """As `RetryTransport`, for `httpx.AsyncClient`."""

    def __init__(self, inner: httpx.AsyncBaseTransport | None = None, rules: Rules | None = None) -> None:
        self._inner = inner or httpx.AsyncHTTPTransport()
        self._rules = rules or Rules()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return await drive_async(pursue(self._rules, request), self._do)

    async def _do(self, todo: Any) -> Any:
        match todo:
            case Pause():
                await asyncio.sleep(todo.seconds)
            case Close():
                await todo.response.aclose()
            case Read(response):
                stream = response.stream
                assert isinstance(stream, httpx.AsyncByteStream)
                rest = aiter(stream)
                try:
                    async for piece in rest:
                        if not todo.body.add(piece):
                            return with_stream(response, AsyncBegun(todo.body.joined(), rest, stream))
                except BaseException:
                    await stream.aclose()
                    raise
                await stream.aclose()
                return with_stream(response, httpx.ByteStream(todo.body.joined()))
            case _:
                return await self._inner.handle_async_request(todo)
        return None

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass
class Read:
    """The body, into memory. What is too long for that comes as the stream that it is."""

    response: httpx.Response
    body: Pieces


@dataclass
class Close:
    response: httpx.Response


class Begun(httpx.SyncByteStream):
    """What was read of a long answer, and the rest of it."""

    def __init__(self, begin: bytes, rest: Iterator[bytes], stream: httpx.SyncByteStream) -> None:
        self._begin, self._rest, self.close = begin, rest, stream.close  # type: ignore[method-assign]

    def __iter__(self) -> Iterator[bytes]:
        yield self._begin
        yield from self._rest


class AsyncBegun(httpx.AsyncByteStream):
    def __init__(self, begin: bytes, rest: AsyncIterator[bytes], stream: httpx.AsyncByteStream) -> None:
        self._begin, self._rest, self.aclose = begin, rest, stream.aclose  # type: ignore[method-assign]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._begin
        async for piece in self._rest:
            yield piece


def pursue(rules: Rules, request: httpx.Request) -> Flow[httpx.Response]:
    """Asks for requests to be sent until there is an answer."""
    mark = request.extensions.get(MARK)
    request.extensions = {name: value for name, value in request.extensions.items() if name != MARK}
    asked, request = request, copy_of(request)
    key = mark.key if mark and mark.leads_to(asked) else None
    pursuit = Pursuit(rules, request.method, request.headers, key)
    given = request.extensions.get("timeout") or {}
    while True:
        response: httpx.Response | None = None
        error: httpx.TransportError | None = None
        status = 0
        try:
            timeout = {name: pursuit.within(given.get(name)) for name in ("connect", "read", "write", "pool")}
            request.extensions = {**request.extensions, "timeout": timeout}
            response = yield request
            status = response.status_code
            is_read = pursuit.is_read(status, response.headers)
            # What is handed on is read when the patience is over. httpcore looks here when the body begins.
            timeout["read"] = pursuit.between_pieces(given.get("read"), is_read)
            if is_read:
                response = yield Read(response, pursuit.pieces())
        except httpx.TransportError as failed:
            response, error = None, failed
        pause = pursuit.pause(came(response, error, status))
        if pause is None:
            try:
                response = pursuit.conclude(response, error)
            except SemelError:
                # What was not read of it holds a connection, and no client closes it.
                if response is not None:
                    yield Close(response)
                raise
            if response.has_redirect_location:
                mark = Redirected.by(asked, response.headers["location"], pursuit.key)
                asked.extensions = {**asked.extensions, MARK: mark}
            return response
        if response is not None:
            yield Close(response)
        yield Pause(pause)


def copy_of(request: httpx.Request) -> httpx.Request:
    """The key is not the caller's: the same request, sent once more, is another intent."""
    return httpx.Request(
        request.method,
        request.url,
        headers=request.headers,
        stream=request.stream,
        extensions=request.extensions,
    )


def with_stream(
    response: httpx.Response, stream: httpx.SyncByteStream | httpx.AsyncByteStream
) -> httpx.Response:
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        stream=stream,
        extensions=response.extensions,
    )


def problem_in(response: httpx.Response) -> bytes:
    """The body of a refusal, as it was before it was compressed."""
    stream = response.stream
    if response.status_code < 400 or not isinstance(stream, httpx.ByteStream):
        return b""
    body = b"".join(stream)
    if len(body) > LONGEST_PROBLEM:
        return b""
    try:
        return httpx.Response(response.status_code, headers=response.headers, content=body).content
    except httpx.DecodingError:
        return b""


def came(
    response: httpx.Response | None, error: httpx.TransportError | None, status: int
) -> Answer | Failure:
    if response is not None:
        return Answer(response.status_code, response.headers, problem_in(response))
    if status:
        return Failure("broken-answer", status=status)
    if error and (is_unsendable(error) or is_untrusted(error)):
        return Failure("invalid-request", sent=False)
    if isinstance(error, httpx.LocalProtocolError):
        return Failure("invalid-request")
    kind = "timeout" if isinstance(error, httpx.TimeoutException) else "reset"
    return Failure(kind, sent=not isinstance(error, UNSENT))  # type: ignore[arg-type] # one of two words
