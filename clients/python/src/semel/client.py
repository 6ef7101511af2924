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
from ._claims import Answer, Claim, Duration, Held, OnLost, Outcome, Send
from ._flow import Flow, Pause, Pieces, drive, drive_async
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

    def __init__(
        self, client: Client | AsyncClient, got: Held | tuple[str, Outcome], options: Options
    ) -> None:
        self._client: Client | AsyncClient = client
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

    def _complete(self, result: Any, failed: bool, code: int, ttl: Duration | None) -> Flow[None]:
        self._worked = True
        kept = _claims.as_kept(Outcome("failure" if failed else "success", result, code))
        how = {} if ttl is None else {"ttl": _claims.duration(ttl)}
        told = _claims.complete(self._mine(), kept, how, self._client.patience)
        self.outcome = yield from self._end(told)

    def _abandon(self) -> Flow[None]:
        yield from self._settle("abandon", _claims.release(self._options.get("in_steps", False)))

    def _settle(self, verb: str, body: dict[str, Any], patience: float | None = None) -> Flow[None]:
        patience = self._client.patience if patience is None else patience
        yield from self._end(_claims.settle(self._mine(), verb, body, patience))

    def _end(self, flow: Flow[T]) -> Flow[T]:
        self._ended = True
        try:
            return (yield from self._watched(flow))
        finally:
            self._stop.set()

    def _leave(self, error: BaseException | None) -> Flow[None]:
        """After work that ended with `error`, or did not say how it ended."""
        if self._ended:
            return
        try:
            if isinstance(error, Failed):
                yield from self._complete(error.result, True, 0, None)
            elif self._verdict(error) == "abandon":
                yield from self._abandon()
            else:
                # Once: that nobody renews the lease any more says the same.
                yield from self._settle("unknown", {}, patience=0)
        except SemelError as unsaid:
            if isinstance(error, Failed):
                raise
            log.warning("the end of attempt %s could not be recorded: %s", self.id, unsaid)
        finally:
            # A result that is not JSON, or an `on_error` that raises.
            if not self._ended:
                with contextlib.suppress(SemelError):
                    yield from self._settle("unknown", {}, patience=0)

    def _ensure_held(self) -> Flow[None]:
        if not self.still_held():
            yield from self._watched(_claims.renew(self._mine(), self._client.patience))

    def _keep_step(self, name: str, value: Any) -> Flow[Outcome]:
        kept = _claims.keep_step(self._mine(), name, value, self._client.patience)
        return (yield from self._watched(kept))

    def _watched(self, flow: Flow[T]) -> Flow[T]:
        try:
            return (yield from flow)
        except Stale:
            self._ended = self._lost = True
            self._stop.set()
            raise


class Attempt(_Attempt):
    """A claim. `outcome` is what an earlier attempt recorded; while it is `None` the claim is ours."""

    _client: Client

    def __init__(self, client: Client, got: Held | tuple[str, Outcome], options: Options) -> None:
        super().__init__(client, got, options)
        if self._held is not None:
            renewals = _renewals(self._held, self._stop, weakref.ref(self))
            thread = threading.Thread(target=client._drive, args=(renewals,), name="semel-renew", daemon=True)
            thread.start()

    def step(self, name: str, work: Callable[[str], R]) -> R:
        """Runs `work` with the step's key, unless an earlier attempt has finished it. Gives its result."""
        with self._next_step(name) as known:
            step = known
            if isinstance(step, str):
                self._client._drive(self._ensure_held())
                step = self._client._drive(self._keep_step(name, work(step)))
        value: R = step.result()
        return value

    def complete(
        self, result: Any = None, *, failed: bool = False, code: int = 0, ttl: Duration | None = None
    ) -> None:
        """Records the result, for everybody. With `failed` it is a lasting failure."""
        self._client._drive(self._complete(result, failed, code, ttl))

    def abandon(self) -> None:
        """Gives the key back: nothing happened, beyond the finished steps."""
        self._client._drive(self._abandon())

    def mark_unknown(self) -> None:
        """Says that it may have happened, and that nobody will record it."""
        self._client._drive(self._settle("unknown", {}))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._client._drive(self._leave(error))


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
        try:
            return Attempt(self, self._drive(_claims.claim(what, self.patience)), options)
        except SemelError:
            raise
        except BaseException:
            # Interrupted, as where a task is cancelled, below; or there is no thread for renewals. A second
            # interruption ends this.
            if "nonce" not in options:
                with contextlib.suppress(Exception):
                    self._drive(_claims.give_back(what))
            raise

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
        return drive(flow, self._do)

    def _do(self, todo: Send | Pause) -> Answer | None:
        if isinstance(todo, Pause):
            (todo.until.wait if todo.until else time.sleep)(todo.seconds)
            return None
        body = Pieces(_claims.LONGEST_ANSWER, time.monotonic() + todo.timeout)
        with self._http.stream(**_request(self.url, self._headers, todo)) as response:
            is_whole = all(body.add(piece) for piece in response.iter_bytes())
            return _answer(response, body, is_whole)


class AsyncAttempt(_Attempt):
    """As `Attempt`, for asyncio."""

    _client: AsyncClient

    def __init__(self, client: AsyncClient, got: Held | tuple[str, Outcome], options: Options) -> None:
        super().__init__(client, got, options)
        if self._held is not None:
            renewals = client._drive(_renewals(self._held, self._stop, weakref.ref(self)))
            self._renewing = client._start(renewals, client._renewals)

    async def step(self, name: str, work: Callable[[str], Awaitable[R]]) -> R:
        """Runs `work` with the step's key, unless an earlier attempt has finished it. Gives its result."""
        with self._next_step(name) as known:
            step = known
            if isinstance(step, str):
                await self._client._drive(self._ensure_held())
                step = await self._client._drive(self._keep_step(name, await work(step)))
        value: R = step.result()
        return value

    async def complete(
        self, result: Any = None, *, failed: bool = False, code: int = 0, ttl: Duration | None = None
    ) -> None:
        """Records the result, for everybody. With `failed` it is a lasting failure."""
        await self._pursue(self._complete(result, failed, code, ttl))

    async def abandon(self) -> None:
        """Gives the key back: nothing happened, beyond the finished steps."""
        await self._pursue(self._abandon())

    async def mark_unknown(self) -> None:
        """Says that it may have happened, and that nobody will record it."""
        await self._pursue(self._settle("unknown", {}))

    async def _pursue(self, flow: Flow[None]) -> None:
        async def pursue() -> None:
            try:
                await self._client._drive(flow)
            finally:
                if self._stop.is_set():
                    self._renewing.cancel()

        # Goes on if the caller is cancelled: what is known is not thrown away.
        await asyncio.shield(self._client._start(pursue(), self._client._tasks))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if not self._ended:
            await self._pursue(self._leave(error))


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
        # What has to be told; and renewals, which have no end of their own.
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewals: set[asyncio.Task[None]] = set()

    async def claim(
        self, operation: str, key: str, *, payload: Any = None, **options: Unpack[Options]
    ) -> AsyncAttempt:
        """Claims a key, or raises a `Problem` that says why not, or `Unsettled`."""
        what = _claim(operation, key, payload, options)
        try:
            got = await self._drive(_claims.claim(what, self.patience))
        except asyncio.CancelledError:
            # Its answer may have been on its way. Under a nonce of the caller's, work may have begun before.
            if "nonce" not in options:
                self._start(self._give_back(what), self._tasks)
            raise
        return AsyncAttempt(self, got, options)

    async def _give_back(self, what: Claim) -> None:
        try:
            await self._drive(_claims.give_back(what))
        except Exception as error:
            log.info("a cancelled claim was not given back: %s", error)

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
        """Waits for what is still being told, as completions, then closes the connections."""
        try:
            if self._tasks:
                # Not `gather`, which would cancel them along with the caller.
                await asyncio.wait(self._tasks)
        finally:
            # What is told needs its lease until then.
            for renewing in self._renewals:
                renewing.cancel()
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
        return await drive_async(flow, self._do)

    async def _do(self, todo: Send | Pause) -> Answer | None:
        if isinstance(todo, Pause):
            await asyncio.sleep(todo.seconds)
            return None
        body = Pieces(_claims.LONGEST_ANSWER, time.monotonic() + todo.timeout)
        async with self._http.stream(**_request(self.url, self._headers, todo)) as response:
            is_whole = True
            async for piece in response.aiter_bytes():
                if not body.add(piece):
                    is_whole = False
                    break
            return _answer(response, body, is_whole)


def _renewals(held: Held, stop: threading.Event, of: weakref.ref[_Attempt]) -> Flow[None]:
    while not stop.is_set():
        yield Pause(_until_renewal(held), stop)
        try:
            if not stop.is_set():
                yield from _claims.renew(held)
        except Stale as error:
            attempt = of()
            # Not where it ended meanwhile, by this attempt itself.
            if attempt is not None and not attempt._ended:
                attempt._lost = True
                log.warning("attempt %s lost its claim: %s", attempt.id, error)
            return
        except Exception as error:
            log.info("a lease could not be renewed: %s", error)
            yield Pause(held.lease / 10, stop)


def _until_renewal(held: Held) -> float:
    # A third of the lease after the last one. At once after a claim that waited: its lease began later.
    return max(held.until - time.monotonic() - held.lease * 2 / 3, 0.0)


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
    return {
        "method": "POST",
        "url": url + send.path,
        # As it was measured: how `json` is written differs between versions of httpx.
        "content": send.body,
        "headers": {"content-type": "application/json", **headers},
        "timeout": send.timeout,
        # What answers there is not the claim API.
        "follow_redirects": False,
    }


def _answer(response: httpx.Response, body: Pieces, is_whole: bool) -> Answer:
    return Answer(response.status_code, response.headers, body.joined() if is_whole else None)


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
