"""Transports for httpx that send a request again, with one key, until its answer is known.

http = httpx.Client(transport=RetryTransport())
"""

from __future__ import annotations

import asyncio
import time

import httpx

from ._decide import LONGEST_PROBLEM, Answer, Failure
from ._pursuit import Budget, Pursuit, Rules

__all__ = ["AsyncRetryTransport", "Budget", "RetryTransport", "Rules"]

# Nothing was written: there was no connection to write to.
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class RetryTransport(httpx.BaseTransport):
    """Retries what is sent through `inner`. Holds bodies in memory, and answers to requests with a key."""

    def __init__(self, inner: httpx.BaseTransport | None = None, rules: Rules | None = None) -> None:
        self._inner = inner or httpx.HTTPTransport()
        self._rules = rules or Rules()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        request = copy_of(request)
        pursuit = Pursuit(self._rules, request.method, request.headers)
        while True:
            response, error = None, None
            status = 0
            try:
                bound(request, pursuit)
                response = self._inner.handle_request(request)
                status = response.status_code
                if pursuit.is_read(status, response.headers):
                    assert isinstance(response.stream, httpx.SyncByteStream)
                    try:
                        body = b"".join(response.stream)
                    finally:
                        response.close()
                    response = whole(response, body)
            except httpx.TransportError as failed:
                response, error = None, failed
            pause = pursuit.pause(came(response, error, status))
            if pause is None:
                return pursuit.conclude(response, error)
            if response is not None:
                response.close()
            time.sleep(pause)

    def close(self) -> None:
        self._inner.close()


class AsyncRetryTransport(httpx.AsyncBaseTransport):
    """As `RetryTransport`, for `httpx.AsyncClient`."""

    def __init__(self, inner: httpx.AsyncBaseTransport | None = None, rules: Rules | None = None) -> None:
        self._inner = inner or httpx.AsyncHTTPTransport()
        self._rules = rules or Rules()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        request = copy_of(request)
        pursuit = Pursuit(self._rules, request.method, request.headers)
        while True:
            response, error = None, None
            status = 0
            try:
                bound(request, pursuit)
                response = await self._inner.handle_async_request(request)
                status = response.status_code
                if pursuit.is_read(status, response.headers):
                    assert isinstance(response.stream, httpx.AsyncByteStream)
                    try:
                        body = b"".join([piece async for piece in response.stream])
                    finally:
                        await response.aclose()
                    response = whole(response, body)
            except httpx.TransportError as failed:
                response, error = None, failed
            pause = pursuit.pause(came(response, error, status))
            if pause is None:
                return pursuit.conclude(response, error)
            if response is not None:
                await response.aclose()
            await asyncio.sleep(pause)

    async def aclose(self) -> None:
        await self._inner.aclose()


def copy_of(request: httpx.Request) -> httpx.Request:
    """The key is not the caller's: the same request, sent once more, is another intent."""
    return httpx.Request(
        request.method,
        request.url,
        headers=request.headers,
        stream=request.stream,
        extensions=request.extensions,
    )


def bound(request: httpx.Request, pursuit: Pursuit) -> None:
    given = request.extensions.get("timeout") or {}
    timeout = {name: pursuit.within(given.get(name)) for name in ("connect", "read", "write", "pool")}
    request.extensions = {**request.extensions, "timeout": timeout}


def whole(response: httpx.Response, body: bytes) -> httpx.Response:
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        stream=httpx.ByteStream(body),
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
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
        return Failure("invalid-request", sent=False)
    if status:
        return Failure("broken-answer", status=status)
    kind = "timeout" if isinstance(error, httpx.TimeoutException) else "reset"
    return Failure(kind, sent=not isinstance(error, UNSENT))  # type: ignore[arg-type] # one of two words
