"""Claims with a lease that is renewed in the background, and the decorator over them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, TypeVar, overload

import httpx

from . import _claims
from ._claims import Claim, Duration, Flow, Held, OnLost, Outcome, Pause, Reply, Send
from .errors import Failed, SemelError, Stale

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

OnError = Literal["unknown", "abandon"]

log = logging.getLogger("semel")
# A claim that waits holds a connection: renewals must not wait for it.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
_current: ContextVar[Any] = ContextVar("semel attempt")


class Options(TypedDict, total=False):
    """How to claim. The README says what each means."""

    wait: float
    lease: Duration
    ttl: Duration
    on_lost: OnLost
    in_steps: bool
    scope: tuple[str, ...]
    service: str
    tombstone: Duration
    nonce: str
    on_error: OnError | Callable[[BaseException], OnError]


def current() -> Any:
    """The attempt that runs, within a function of `once`: an `Attempt` or `AsyncAttempt`."""
    return _current.get()


class _Attempt:
    """What both kinds of attempts know."""

    def __init__(self, got: Held | tuple[str, Outcome], options: Options) -> None:
        self._held = got if isinstance(got, Held) else None
        self._options = options
        # Somebody was told how it ended, or is being told: leaving the block changes nothing.
        self._ended = self._held is None
        self._lost = False
        self._stepping = threading.Lock()
        # There is a result.
        self._worked = False
        # Shared with the renewals, which must not keep the attempt itself alive.
        self._stop = threading.Event()
        #: What is recorded: of an earlier attempt, or of this one once it is complete.
        self.outcome: Outcome | None = None if isinstance(got, Held) else got[1]
        #: The operation's name: the same in every attempt, different for every other key.
        self.id: str = got.id if isinstance(got, Held) else got[0]
        weakref.finalize(self, self._stop.set)

    @property
    def fence(self) -> int:
        """A number that grows with every attempt. Let the service with the effect refuse a lower one."""
        return self._mine().fence

    @property
    def attempt(self) -> int:
        """1, or more where an earlier attempt was abandoned, lost or resolved."""
        return self._mine().attempt

    def result(self) -> Any:
        """The value of `outcome`, if it is a success. Raises `Failed`, or `ResultOmitted`."""
        if self.outcome is None:
            raise RuntimeError("it is not complete")
        return self.outcome.result()

    def still_held(self) -> bool:
        """Whether no other attempt can be running, as far as this process knows."""
        held = self._mine()
        return not self._lost and time.monotonic() < held.until

    def _mine(self) -> Held:
        if self._held is None:
            raise RuntimeError("it was done before: there is an `outcome`, and no claim")
        return self._held

    @contextlib.contextmanager
    def _next_step(self, name: str) -> Iterator[Outcome | str]:
        if not self._options.get("in_steps"):
            raise RuntimeError("to run steps, claim with in_steps=True: then a lost attempt runs again")
        # An attempt that takes over goes by their order.
        if not self._stepping.acquire(blocking=False):
            raise RuntimeError(f"step {name!r} has to wait until the step before it has ended")
        try:
            yield _claims.next_step(self._mine(), name)
        finally:
            self._stepping.release()

    def _verdict(self, error: BaseException | None) -> OnError:
        in_steps = self._options.get("in_steps", False)
        on_error = self._options.get("on_error", "abandon" if in_steps else "unknown")
        # Where the work is over, the effect is there. Not so with steps: their keys protect them.
        if error is None or (self._worked and not in_steps):
            return "unknown"
        if callable(on_error):
            return on_error(error)
        # Who is cancelled or interrupted may have sent something.
        return on_error if in_steps or isinstance(error, Exception) else "unknown"

    def _completion(self, outcome: Outcome, ttl: Duration | None) -> tuple[Outcome, dict[str, Any]]:
        self._worked = True
        body: dict[str, Any] = {"outcome": outcome.to_wire()}
        if ttl is not None:
            body["ttl"] = _claims.duration(ttl)
        return _claims.as_kept(outcome), body

    def _release(self) -> dict[str, Any]:
        # Steps gave out keys: the next attempt must have the same ones.
        return {"keys_given": True} if self._options.get("in_steps") else {}


class Attempt(_Attempt):
    """A claim. `outcome` is what an earlier attempt recorded; while it is `None` the claim is ours."""

    def __init__(self, client: Client, got: Held | tuple[str, Outcome], options: Options) -> None:
        super().__init__(got, options)
        self._client = client
        if self._held is not None:
            renewals = (client, self._held, self._stop, weakref.ref(self))
            threading.Thread(target=_renew_in_thread, args=renewals, name="semel-renew", daemon=True).start()

    def step(self, name: str, work: Callable[[str], R]) -> R:
        """Runs `work` with the step's key, unless an earlier attempt has finished it. Gives its result."""
        with self._next_step(name) as known:
            step = known
            if isinstance(step, str):
                if not self.still_held():
                    self._tell(_claims.renew(self._mine(), self._client.patience))
                result = Outcome("success", work(step))
                step = self._tell(_claims.keep_step(self._mine(), name, result, self._client.patience))
        value: R = step.result()
        return value

    def complete(
        self, result: Any = None, *, failed: bool = False, code: int = 0, ttl: Duration | None = None
    ) -> None:
        """Records the result, for everybody. With `failed` it is a lasting failure."""
        kept, body = self._completion(Outcome("failure" if failed else "success", result, code), ttl)
        self._settle("complete", body)
        self.outcome = kept

    def abandon(self) -> None:
        """Gives the key back: nothing happened, beyond the finished steps."""
        self._settle("abandon", self._release())

    def mark_unknown(self) -> None:
        """Says that it may have happened, and that nobody will record it."""
        self._settle("unknown", {})

    def _settle(self, verb: str, body: dict[str, Any], patience: float | None = None) -> None:
        held = self._mine()
        self._ended = True
        try:
            self._tell(
                _claims.settle(held, verb, body, self._client.patience if patience is None else patience)
            )
        finally:
            self._stop.set()

    def _tell(self, flow: Flow[T]) -> T:
        try:
            return self._client._drive(flow)
        except Stale:
            self._ended = self._lost = True
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._ended:
            self._stop.set()
            return
        try:
            if isinstance(error, Failed):
                self.complete(error.result, failed=True)
            elif self._verdict(error) == "abandon":
                self.abandon()
            else:
                # Once: that nobody renews the lease any more says the same.
                self._settle("unknown", {}, patience=0)
        except SemelError as unsaid:
            if isinstance(error, Failed):
                raise
            log.warning("the end of attempt %s could not be recorded: %s", self.id, unsaid)
        finally:
            # A result that is not JSON, or an `on_error` that raises.
            if not self._ended:
                with contextlib.suppress(SemelError):
                    self._settle("unknown", {}, patience=0)


class Client:
    """Talks to the claim API at `url`, the gateway's operators' listener. Can be used by many threads."""

    def __init__(
        self, url: str, *, token: str | None = None, patience: float = 60.0, http: httpx.Client | None = None
    ) -> None:
        self.url = _url(url)
        #: For how many seconds a call is sent again while the gateway does not answer it.
        self.patience = patience
        self._own = http is None
        self._http = http or httpx.Client(limits=LIMITS)
        self._headers = _headers(token)

    def claim(self, operation: str, key: str, *, payload: Any = None, **options: Unpack[Options]) -> Attempt:
        """Claims a key, or raises a `Problem` that says why not, or `Unsettled`."""
        what = _claim(operation, key, payload, options)
        return Attempt(self, self._drive(_claims.claim(what, self.patience)), options)

    def run(
        self,
        operation: str,
        key: str,
        work: Callable[[Attempt], R],
        *,
        payload: Any = None,
        **options: Unpack[Options],
    ) -> R:
        """Runs `work` unless it has run before. Gives the result that is recorded."""
        with self.claim(operation, key, payload=payload, **options) as attempt:
            if attempt.outcome is None:
                before = _current.set(attempt)
                try:
                    result = work(attempt)
                finally:
                    _current.reset(before)
                attempt.complete(result)
        value: R = attempt.result()
        return value

    def close(self) -> None:
        if self._own:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drive(self, flow: Flow[T]) -> T:
        reply: Reply = None
        while True:
            try:
                todo = flow.send(reply)
            except StopIteration as end:
                result: T = end.value
                return result
            reply = None
            if isinstance(todo, Pause):
                time.sleep(todo.seconds)
                continue
            try:
                reply = self._http.post(**_request(self.url, self._headers, todo))
            except (httpx.UnsupportedProtocol, httpx.LocalProtocolError):
                raise
            except httpx.TransportError as error:
                reply = error


def _renew_in_thread(client: Client, held: Held, stop: threading.Event, of: weakref.ref[Attempt]) -> None:
    while not stop.wait(_until_renewal(held)):
        try:
            client._drive(_claims.renew(held))
        except Exception as error:
            if stop.is_set() or _lost_by(error, of()):
                return
            stop.wait(held.lease / 10)


class AsyncAttempt(_Attempt):
    """As `Attempt`, for asyncio."""

    def __init__(self, client: AsyncClient, got: Held | tuple[str, Outcome], options: Options) -> None:
        super().__init__(got, options)
        self._client = client
        if self._held is not None:
            renewals = _renew_in_task(client, self._held, self._stop, weakref.ref(self))
            self._renewals = client._start(renewals, client._renewals)

    async def step(self, name: str, work: Callable[[str], Awaitable[R]]) -> R:
        """Runs `work` with the step's key, unless an earlier attempt has finished it. Gives its result."""
        with self._next_step(name) as known:
            step = known
            if isinstance(step, str):
                if not self.still_held():
                    await self._tell(_claims.renew(self._mine(), self._client.patience))
                result = Outcome("success", await work(step))
                kept = _claims.keep_step(self._mine(), name, result, self._client.patience)
                step = await self._tell(kept)
        value: R = step.result()
        return value

    async def complete(
        self, result: Any = None, *, failed: bool = False, code: int = 0, ttl: Duration | None = None
    ) -> None:
        """Records the result, for everybody. With `failed` it is a lasting failure."""
        kept, body = self._completion(Outcome("failure" if failed else "success", result, code), ttl)
        await self._settle("complete", body)
        self.outcome = kept

    async def abandon(self) -> None:
        """Gives the key back: nothing happened, beyond the finished steps."""
        await self._settle("abandon", self._release())

    async def mark_unknown(self) -> None:
        """Says that it may have happened, and that nobody will record it."""
        await self._settle("unknown", {})

    async def _settle(self, verb: str, body: dict[str, Any], patience: float | None = None) -> None:
        held = self._mine()
        self._ended = True

        async def pursue() -> None:
            try:
                flow = _claims.settle(
                    held, verb, body, self._client.patience if patience is None else patience
                )
                await self._tell(flow)
            finally:
                self._stop.set()
                self._renewals.cancel()

        # Goes on if the caller is cancelled: what is known is not thrown away.
        await asyncio.shield(self._client._start(pursue(), self._client._tasks))

    async def _tell(self, flow: Flow[T]) -> T:
        try:
            return await self._client._drive(flow)
        except Stale:
            self._ended = self._lost = True
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        try:
            if isinstance(error, Failed):
                await self.complete(error.result, failed=True)
            elif self._verdict(error) == "abandon":
                await self.abandon()
            else:
                await self._settle("unknown", {}, patience=0)
        except SemelError as unsaid:
            if isinstance(error, Failed):
                raise
            log.warning("the end of attempt %s could not be recorded: %s", self.id, unsaid)
        finally:
            # A result that is not JSON, or an `on_error` that raises.
            if not self._ended:
                with contextlib.suppress(SemelError):
                    await self._settle("unknown", {}, patience=0)


class AsyncClient:
    """As `Client`, for asyncio."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        patience: float = 60.0,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self.url = _url(url)
        #: For how many seconds a call is sent again while the gateway does not answer it.
        self.patience = patience
        self._own = http is None
        self._http = http or httpx.AsyncClient(limits=LIMITS)
        self._headers = _headers(token)
        # Completions, and renewals: these have no end of their own.
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewals: set[asyncio.Task[None]] = set()

    async def claim(
        self, operation: str, key: str, *, payload: Any = None, **options: Unpack[Options]
    ) -> AsyncAttempt:
        """Claims a key, or raises a `Problem` that says why not, or `Unsettled`."""
        what = _claim(operation, key, payload, options)
        return AsyncAttempt(self, await self._drive(_claims.claim(what, self.patience)), options)

    async def run(
        self,
        operation: str,
        key: str,
        work: Callable[[AsyncAttempt], Awaitable[R]],
        *,
        payload: Any = None,
        **options: Unpack[Options],
    ) -> R:
        """Runs `work` unless it has run before. Gives the result that is recorded."""
        async with await self.claim(operation, key, payload=payload, **options) as attempt:
            if attempt.outcome is None:
                before = _current.set(attempt)
                try:
                    result = await work(attempt)
                finally:
                    _current.reset(before)
                await attempt.complete(result)
        value: R = attempt.result()
        return value

    async def aclose(self) -> None:
        """Waits for completions that are still being told, then closes the connections."""
        for renewing in self._renewals:
            renewing.cancel()
        if self._tasks:
            # Not `gather`, which would cancel them along with the caller.
            await asyncio.wait(self._tasks)
        if self._own:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _start(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def _drive(self, flow: Flow[T]) -> T:
        reply: Reply = None
        while True:
            try:
                todo = flow.send(reply)
            except StopIteration as end:
                result: T = end.value
                return result
            reply = None
            if isinstance(todo, Pause):
                await asyncio.sleep(todo.seconds)
                continue
            try:
                reply = await self._http.post(**_request(self.url, self._headers, todo))
            except (httpx.UnsupportedProtocol, httpx.LocalProtocolError):
                raise
            except httpx.TransportError as error:
                reply = error


async def _renew_in_task(
    client: AsyncClient, held: Held, stop: threading.Event, of: weakref.ref[AsyncAttempt]
) -> None:
    while not stop.is_set():
        await asyncio.sleep(_until_renewal(held))
        try:
            if not stop.is_set():
                await client._drive(_claims.renew(held))
        except Exception as error:
            if _lost_by(error, of()):
                return
            await asyncio.sleep(held.lease / 10)


def _until_renewal(held: Held) -> float:
    # A third of the lease after the last one. At once after a claim that waited: its lease began later.
    return max(held.until - time.monotonic() - held.lease * 2 / 3, 0.0)


def _lost_by(error: Exception, attempt: _Attempt | None) -> bool:
    if not isinstance(error, Stale):
        log.info("a lease could not be renewed: %s", error)
        return False
    # Not where it ended meanwhile, by this attempt itself.
    if attempt is not None and not attempt._ended:
        attempt._lost = True
        log.warning("attempt %s lost its claim: %s", attempt.id, error)
    return True


def _url(url: str) -> str:
    parsed = httpx.URL(url)
    if parsed.scheme not in ("http", "https") or parsed.userinfo:
        raise ValueError("url: it has to be http:// or https:// without user and password; there is `token`")
    return url.rstrip("/")


def _headers(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    # A file with a token ends with a newline.
    token = token.strip()
    if not token or any(not "!" <= char <= "~" for char in token):
        raise ValueError("token: only visible ASCII characters are allowed")
    return {"authorization": f"Bearer {token}"}


def _request(url: str, headers: dict[str, str], send: Send) -> dict[str, Any]:
    return {"url": url + send.path, "json": send.body, "headers": headers, "timeout": send.timeout}


def _claim(operation: str, key: str, payload: Any, options: Options) -> Claim:
    of_claim = {name: value for name, value in options.items() if name != "on_error"}
    return Claim(operation, key, payload, **of_claim)  # type: ignore[arg-type] # the same names


@overload
def once(
    client: AsyncClient,
    *,
    operation: str,
    key: Callable[..., str],
    payload: Callable[..., Any] | None = None,
    **options: Unpack[Options],
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]: ...


@overload
def once(
    client: Client,
    *,
    operation: str,
    key: Callable[..., str],
    payload: Callable[..., Any] | None = None,
    **options: Unpack[Options],
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def once(
    client: Client | AsyncClient,
    *,
    operation: str,
    key: Callable[..., str],
    payload: Callable[..., Any] | None = None,
    **options: Unpack[Options],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the function runs once per key, and every call gets its result.

    `key` and `payload` are functions of the arguments. Unless there is a `payload`, it is the arguments.
    """

    def decorate(work: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(work)

        def run(*args: Any, **kwargs: Any) -> Any:
            if payload:
                asked = payload(*args, **kwargs)
            else:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                asked = bound.arguments
            # For `AsyncClient` both are coroutines.
            return client.run(
                operation, key(*args, **kwargs), lambda _: work(*args, **kwargs), payload=asked, **options
            )

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            return await run(*args, **kwargs)

        return functools.wraps(work)(run_async if isinstance(client, AsyncClient) else run)

    return decorate
