"""An adapter for requests that sends a request again, with one key, until its answer is known.

session.mount("https://", RetryAdapter())
"""

from __future__ import annotations

import contextlib
import io
import itertools
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import requests
import requests.adapters
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError, SSLError
from urllib3.util.ssl_match_hostname import CertificateError

from ._decide import Answer, Failure
from ._flow import Pieces
from ._pursuit import MARK, Budget, Pursuit, Redirected, Rules
from .errors import SemelError

__all__ = ["Budget", "RetryAdapter", "Rules"]

# Seconds for a connection, and between two pieces of an answer, where the caller says nothing.
TIMEOUT = 30.0
INVALID = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidHeader,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
)


class RetryAdapter(requests.adapters.HTTPAdapter):
    """Bodies, and answers to requests with a key, are held in memory."""

    def __init__(self, rules: Rules | None = None, **options: Any) -> None:
        self._rules = rules or Rules()
        super().__init__(**options)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        hold_body(request)
        # The key is not the caller's: the same request, sent once more, is another intent.
        mark = request.hooks.get(MARK)
        request.hooks = {name: value for name, value in request.hooks.items() if name != MARK}
        asked, request = request, request.copy()
        key = mark.key if mark and mark.leads_to(asked) else None
        pursuit = Pursuit(self._rules, request.method or "GET", request.headers, key)
        given = timeout or TIMEOUT
        while True:
            response, error = None, None
            status, body = 0, b""
            try:
                response = super().send(request, stream, within(pursuit, given), verify, cert, proxies)
                status = response.status_code
                is_read = pursuit.is_read(status, response.headers)
                bound_pieces(response, pursuit, given, is_read)
                if is_read:
                    body = hold(response, pursuit.pieces())
            except requests.RequestException as failed:
                if response is not None:
                    response.close()
                response, error = None, failed
            pause = pursuit.pause(came(response, error, status, body))
            if pause is None:
                try:
                    response = pursuit.conclude(response, error)
                except SemelError:
                    # What was not read of it holds a connection, and no session closes it.
                    if response is not None:
                        response.close()
                    raise
                if response.is_redirect:
                    # Nothing else is copied that would not be sent.
                    mark = Redirected.by(asked, response.headers["location"], pursuit.key)
                    asked.hooks = {**asked.hooks, MARK: mark}
                return response
            if response is not None:
                response.close()
            time.sleep(pause)


class Begun(io.RawIOBase):
    """What was read of a long answer, and the rest of it."""

    def __init__(self, raw: Any, pieces: Iterator[bytes]) -> None:
        self._pieces, self._left = pieces, b""
        self._close = raw.close
        # The session finds cookies in it.
        self._original_response = getattr(raw, "_original_response", None)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._left = self._left or next(self._pieces, b"")
        length = min(len(buffer), len(self._left))
        buffer[:length], self._left = self._left[:length], self._left[length:]
        return length

    def close(self) -> None:
        super().close()
        self._close()


def hold(response: requests.Response, body: Pieces) -> bytes:
    """Reads the body into memory. What is too long for that can still be read from the response."""
    pieces = response.iter_content(16 << 10)
    try:
        for piece in pieces:
            if not body.add(piece):
                response.raw = Begun(response.raw, itertools.chain([body.joined()], pieces))
                return b""
    except httpx.ReadTimeout as late:
        raise requests.ReadTimeout(str(late)) from None
    response._content = body.joined()
    return body.joined()


def within(pursuit: Pursuit, timeout: Any) -> Any:
    if isinstance(timeout, (int, float)):
        return pursuit.within(timeout)
    return tuple(map(pursuit.within, timeout)) if isinstance(timeout, tuple) else timeout


def bound_pieces(response: requests.Response, pursuit: Pursuit, timeout: Any, is_read: bool) -> None:
    """What is handed on is read when the patience is over: its timeout is not that of the last try."""
    between = timeout[-1] if isinstance(timeout, tuple) else timeout
    if between is None or isinstance(between, (int, float)):
        # urllib3 lets go of a connection that will not be used again; its socket is still here.
        with contextlib.suppress(AttributeError):
            original: Any = response.raw._original_response
            original.fp.raw._sock.settimeout(pursuit.between_pieces(between, is_read))


def hold_body(request: requests.PreparedRequest) -> None:
    """A file or a generator can be read once only."""
    body: Any = request.body
    if body is None or isinstance(body, (bytes, str)):
        return
    request.body = body.read() if hasattr(body, "read") else b"".join(body)
    request.headers.pop("Transfer-Encoding", None)
    request.prepare_content_length(request.body)


def came(
    response: requests.Response | None, error: Exception | None, status: int, body: bytes
) -> Answer | Failure:
    if response is not None:
        return Answer(response.status_code, response.headers, body)
    if isinstance(error, INVALID) or is_untrusted(error):
        return Failure("invalid-request", sent=False)
    if status:
        return Failure("broken-answer", status=status)
    unsent = isinstance(reason_of(error), (NewConnectionError, ConnectTimeoutError))
    timed_out = isinstance(error, requests.exceptions.Timeout)
    return Failure("timeout" if timed_out else "reset", sent=not unsent)


def reason_of(error: Exception | None) -> Any:
    reason = error.args[0] if error and error.args else None
    return reason.reason if isinstance(reason, MaxRetryError) else reason


def is_untrusted(error: Exception | None) -> bool:
    """Whether it is the other side's certificate, or a proxy's: then nothing was sent."""
    reason = reason_of(error)
    reason = getattr(reason, "original_error", reason)
    why = reason.args[0] if isinstance(reason, SSLError) and reason.args else None
    return isinstance(why, (ssl.SSLCertVerificationError, CertificateError))
