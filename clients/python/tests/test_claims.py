"""Claims through a real gateway."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import pickle
import ssl
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import semel
from harness import Answer, Certificates, Gateway, Network, Request, eventually, json_answer, service
from semel import _claims, _flow

UPSTREAM = "http://127.0.0.1:9"
OMITTED = json_answer({"state": "completed", "omitted": True})
CLAIMED = {
    "id": "7" * 64,
    "token": "t",
    "fence": 1,
    "attempt": 1,
    "since": 1,
    "lease_ms": 60_000,
    "steps": [],
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway(UPSTREAM) as gateway:
        yield gateway


@pytest.fixture
def client(gateway: Gateway) -> Iterator[semel.Client]:
    with semel.Client(gateway.admin, patience=10) as client:
        yield client


@pytest.fixture
def network(gateway: Gateway) -> Iterator[Network]:
    with Network(gateway.admin, seed=1, cut=0, delay=0) as network:
        yield network


@pytest.fixture
def key() -> str:
    return str(uuid.uuid4())


def test_a_function_runs_once_per_key_and_everybody_gets_its_result(
    gateway: Gateway, client: semel.Client, key: str
) -> None:
    charged = []

    @semel.once(client, operation="charge", key=lambda order: order["id"])
    def charge(order: dict[str, Any]) -> dict[str, Any]:
        attempt = semel.current()
        assert attempt.still_held()
        charged.append((order["cents"], attempt.attempt))
        return {"charge": attempt.id, "of": (1, 2)}

    order = {"id": key, "cents": 300}
    first = charge(order)
    assert first["of"] == [1, 2]
    assert charge(order) == charge(order=order) == first
    with (
        semel.Client(gateway.admin) as other,
        other.claim("charge", key, payload={"order": order}) as attempt,
    ):
        assert attempt.result() == first
        assert attempt.id == first["charge"]
        with pytest.raises(RuntimeError, match="done before"):
            _ = attempt.fence
    assert charged == [(300, 1)]

    with pytest.raises(semel.Mismatch) as mismatch:
        charge({"id": key, "cents": 301})
    assert (mismatch.value.status, mismatch.value.code, mismatch.value.id) == (
        422,
        "mismatch",
        first["charge"],
    )


def test_with_asyncio(gateway: Gateway, key: str) -> None:
    async def run() -> None:
        async with semel.AsyncClient(gateway.admin) as client:
            charged = []

            @semel.once(client, operation="charge", key=lambda _cents: key, wait=30)
            async def charge(cents: int) -> int:
                charged.append(semel.current().fence)
                await asyncio.sleep(0.05)
                return cents

            assert await asyncio.gather(*(charge(300) for _ in range(5))) == [300] * 5
            assert len(charged) == 1
            with pytest.raises(semel.Mismatch):
                await charge(301)

    asyncio.run(run())


@pytest.mark.parametrize("result", [None, "text", 0, [], {"é": [None, True, 1.5]}, b"\x00\xff", b"text", b""])
def test_results_come_back_as_they_were(client: semel.Client, key: str, result: Any) -> None:
    assert client.run("echo", key, lambda _: result) == result
    assert client.run("echo", key, lambda _: "another") == result


def test_what_is_no_json_is_refused(client: semel.Client, key: str) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        client.run("echo", key, lambda _: object())
    with pytest.raises(semel.OutcomeUnknown):
        client.run("echo", key, lambda _: 1)


def test_who_comes_meanwhile_is_refused_or_waits(client: semel.Client, key: str) -> None:
    with client.claim("wait", key) as attempt:
        with pytest.raises(semel.InFlight) as refused:
            client.claim("wait", key)
        assert refused.value.retry_after > 0
        waited = []
        waiting = threading.Thread(target=lambda: waited.append(client.claim("wait", key, wait=60)))
        waiting.start()
        attempt.complete("done")
    waiting.join()
    assert waited[0].result() == "done"


def test_an_error_leaves_the_outcome_unknown(client: semel.Client, key: str) -> None:
    with pytest.raises(ZeroDivisionError):
        client.run("divide", key, lambda _: 1 / 0)
    with pytest.raises(semel.OutcomeUnknown) as unknown:
        client.run("divide", key, lambda _: 1)
    assert unknown.value.id is not None
    with client.claim("divide", key, on_lost="retry") as attempt:
        assert (attempt.id, attempt.attempt) == (unknown.value.id, 2)
        assert unknown.value.fence is not None
        assert attempt.fence > unknown.value.fence
        attempt.complete(1)


def test_so_does_a_block_that_does_not_say_how_it_ended(client: semel.Client, key: str) -> None:
    with client.claim("divide", key):
        pass
    with pytest.raises(semel.OutcomeUnknown):
        client.claim("divide", key)


def test_an_error_before_the_effect_lets_the_next_call_run(client: semel.Client, key: str) -> None:
    def before_anything(error: BaseException) -> semel.OnError:
        return "abandon" if isinstance(error, ZeroDivisionError) else "unknown"

    for on_error in ("abandon", before_anything):
        with pytest.raises(ZeroDivisionError):
            client.run("divide", key, lambda _: 1 / 0, on_error=on_error)
    assert client.run("divide", key, lambda attempt: attempt.attempt) == 3


@pytest.mark.parametrize("result", [object(), float("nan"), {1: object()}, "\ud800"])
def test_a_result_that_cannot_be_told_is_no_error_before_the_effect(
    client: semel.Client, key: str, result: Any
) -> None:
    with pytest.raises((TypeError, ValueError)):
        client.run("charge", key, lambda _: result, on_error="abandon")
    with pytest.raises(semel.OutcomeUnknown):
        client.claim("charge", key)


def test_neither_is_an_interruption(gateway: Gateway, client: semel.Client, key: str) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.run("charge", key, interrupted, on_error="abandon")

    async def cancelled() -> None:
        begun = asyncio.Event()

        async def work(_: object) -> None:
            begun.set()
            await asyncio.sleep(3600)

        async with semel.AsyncClient(gateway.admin) as other:
            running = asyncio.create_task(other.run("charge", key + "2", work, on_error="abandon"))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(cancelled())
    for kept in (key, key + "2"):
        with pytest.raises(semel.OutcomeUnknown):
            client.claim("charge", kept)
    with pytest.raises(KeyboardInterrupt):
        client.run("charge", key + "3", interrupted, in_steps=True)
    assert client.run("charge", key + "3", lambda attempt: attempt.attempt, in_steps=True) == 2


def test_claims_that_wait_leave_room_for_renewals(gateway: Gateway, key: str) -> None:
    async def run() -> None:
        async with semel.AsyncClient(gateway.admin) as client, await client.claim("busy", key) as attempt:
            sent = asyncio.Semaphore(0)

            async def count(_: object) -> None:
                sent.release()

            client._http.event_hooks = {"request": [count]}
            waiting = [asyncio.create_task(client.claim("busy", key, wait=60)) for _ in range(110)]
            for _ in waiting:
                await sent.acquire()
            await asyncio.wait_for(attempt.complete(), 30)
            for other in await asyncio.gather(*waiting):
                assert other.outcome is not None

    asyncio.run(run())


def test_an_end_that_cannot_be_told_leaves_it_unknown(client: semel.Client, key: str) -> None:
    def fail(_: object) -> None:
        raise semel.Failed(object())

    def on_error(_: BaseException) -> semel.OnError:
        raise LookupError

    with pytest.raises(TypeError):
        client.run("charge", key, fail)
    with pytest.raises(LookupError):
        client.run("charge", key + "2", lambda _: 1 / 0, on_error=on_error)
    for kept in (key, key + "2"):
        with pytest.raises(semel.OutcomeUnknown):
            client.claim("charge", kept)


def test_a_client_that_closes_renews_no_more(gateway: Gateway, key: str) -> None:
    async def run() -> None:
        async with semel.AsyncClient(gateway.admin) as client:
            attempt = await client.claim("left", key)
            assert attempt.still_held()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_result_that_is_too_large_is_omitted_for_everybody(client: semel.Client, key: str) -> None:
    ran = []

    def export(attempt: semel.Attempt) -> bytes:
        ran.append(attempt.attempt)
        return bytes(2 << 20)

    for _ in range(2):
        with pytest.raises(semel.ResultOmitted):
            client.run("export", key, export, on_lost="retry")
    assert ran == [1]


# A proxy in front of the gateway, which takes less; and a store.
@pytest.mark.parametrize("taken", [Answer(413, b"<html>"), OMITTED])
def test_so_is_one_that_others_do_not_take(key: str, taken: Answer) -> None:
    def answer(request: Request) -> Answer:
        if request.path == "/v1/claims":
            return json_answer(CLAIMED, 201)
        return OMITTED if json.loads(request.body)["outcome"]["kind"] == "omitted" else taken

    with service(answer) as url, semel.Client(url) as client, pytest.raises(semel.ResultOmitted):
        client.run("export", key, lambda _: 1)


def test_a_completion_that_is_refused_leaves_it_unknown(client: semel.Client, key: str) -> None:
    with client.claim("charge", key) as attempt:
        with pytest.raises(semel.NotRecorded, match="the work ran") as lost:
            attempt.complete(ttl="soon")
        assert isinstance(lost.value.__cause__, semel.Refused)
        with pytest.raises(semel.OutcomeUnknown):
            client.claim("charge", key)
        # Whoever can mend it still can record it.
        attempt.complete("in the end")
    assert client.claim("charge", key).result() == "in the end"


def test_steps_run_one_after_the_other(gateway: Gateway, client: semel.Client, key: str) -> None:
    with client.claim("settle", key, in_steps=True) as attempt:
        with pytest.raises(RuntimeError, match="'b' has to wait"):
            attempt.step("a", lambda _: attempt.step("b", lambda _: 1))
        assert attempt.step("a", lambda _: 1) == 1


def test_a_claim_is_found_again_by_its_nonce(client: semel.Client, network: Network, key: str) -> None:
    network.cut = 1.0
    with semel.Client(network.url, patience=0) as cut_off, pytest.raises(semel.Unsettled) as unsettled:
        cut_off.claim("lost", key)
    nonce = unsettled.value.nonce
    assert nonce is not None
    first = client.claim("lost", key, nonce=nonce)
    with client.claim("lost", key, nonce=nonce) as again:
        assert again.fence == first.fence
        again.complete()


def test_patience_begins_when_the_wait_is_over(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    flow = _claims.claim(_claims.Claim("wait", key, wait=30), patience=1)
    assert isinstance(next(flow), _claims.Send)
    now = 20.0
    assert isinstance(flow.throw(httpx.ReadError("broken")), _flow.Pause)


def test_a_claim_that_is_sent_again_waits_for_what_is_left(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    flow = _claims.claim(_claims.Claim("wait", key, wait=600), patience=60)
    first = next(flow)
    assert (json.loads(first.body)["wait"], first.timeout) == ("600000ms", 610)
    now = 590.0
    assert isinstance(flow.throw(httpx.ReadError("broken")), _flow.Pause)
    again = next(flow)
    assert (json.loads(again.body)["wait"], again.timeout) == ("10000ms", 20)


def test_a_call_goes_on_after_a_fault_of_the_connection(key: str) -> None:
    flow = _claims.claim(_claims.Claim("charge", key), patience=60)
    assert isinstance(next(flow), _claims.Send)
    # Over HTTP/2 it may have come of the answer.
    assert isinstance(flow.throw(httpx.LocalProtocolError("no")), _flow.Pause)


def test_what_is_sent_is_what_was_measured(key: str) -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={"id": "7", "outcome": {"kind": "success"}})

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        client = semel.Client("http://gateway", http=http)
        client.claim("charge", key, payload="é")
        with pytest.raises(semel.Refused, match="at most"):
            client.claim("charge", key, payload="x" * (2 << 20))
    (request,) = sent
    assert '"payload":"é"'.encode() in request.content
    assert request.headers["content-type"] == "application/json"


@pytest.mark.parametrize(("result", "sent"), [("x" * 70_000, 2), (bytes(2 << 20), 1)])
def test_a_step_that_is_too_large_hands_its_result_on(key: str, result: Any, sent: int) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path.rpartition("/")[2])
        if asked == ["claims"]:
            return httpx.Response(201, json=CLAIMED)
        is_too_large = len(request.content) > 64 << 10
        return httpx.Response(413 if is_too_large else 200, json={"code": "too-large"})

    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as http,
        semel.Client("http://gateway", http=http).claim("export", key, in_steps=True) as attempt,
    ):
        with pytest.raises(semel.StepTooLarge) as ran:
            attempt.step("export", lambda _: result)
        assert ran.value.result is result
        assert attempt.step("export", lambda _: "an id") == "an id"
    assert asked == ["claims", *["steps"] * sent, "unknown"]


def test_a_claim_that_cannot_be_renewed_is_given_back(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path.rpartition("/")[2])
        return httpx.Response(201, json=CLAIMED)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", start)
    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as http,
        pytest.raises(RuntimeError, match="new thread"),
    ):
        semel.Client("http://gateway", http=http).claim("charge", key)
    assert asked == ["claims", "claims", "abandon"]


def test_who_closes_renews_until_what_is_known_is_told(key: str) -> None:
    async def run() -> None:
        telling, renewed = asyncio.Event(), asyncio.Event()
        is_closing = False

        async def answer(request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/renew") and is_closing:
                renewed.set()
            if request.url.path.endswith("/complete"):
                telling.set()
                await renewed.wait()
            return httpx.Response(201, json=CLAIMED | {"lease_ms": 30})

        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            client = semel.AsyncClient("http://gateway", http=http)
            completing = asyncio.create_task((await client.claim("charge", key)).complete())
            await telling.wait()
            completing.cancel()
            is_closing = True
            await client.aclose()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_what_is_secret_is_not_printed() -> None:
    what = _claims.Claim("charge", "s3cr3t", payload="s3cr3t", nonce="s3cr3t")
    held = _claims.Held("7", "s3cr3t", 1, 1, 1, 1.0, 1.0)
    send = next(_claims.call("/v1/claims", what.to_wire(), patience=1))
    assert b"s3cr3t" in send.body
    assert "s3cr3t" not in f"{what!r} {held!r} {send!r}"


def test_errors_can_be_pickled() -> None:
    mismatch = pickle.loads(pickle.dumps(semel.Mismatch(422, "mismatch", "why", {"id": "7"})))
    assert (type(mismatch), mismatch.status, mismatch.detail, mismatch.id) == (
        semel.Mismatch,
        422,
        "why",
        "7",
    )
    assert pickle.loads(pickle.dumps(semel.Unsettled("no answer", "mine"))).key == "mine"
    assert pickle.loads(pickle.dumps(semel.StepTooLarge("export", 7))).result == 7


def test_tokens_and_urls_are_looked_at() -> None:
    assert semel.Client("http://gateway", token="s3cr3t\n")._headers == {"authorization": "Bearer s3cr3t"}
    with pytest.raises(ValueError, match="visible ASCII") as refused:
        semel.Client("http://gateway", token="s3\ncr3t")
    assert "cr3t" not in str(refused.value)
    for url in ("http://me:s3cr3t@gateway", "gateway:80"):
        with pytest.raises(ValueError, match="https://") as refused:
            semel.Client(url)
        assert "cr3t" not in str(refused.value)


def test_defaults_are_arguments(client: semel.Client, key: str) -> None:
    @semel.once(client, operation="charge", key=lambda *_: key)
    def charge(cents: int, currency: str = "eur") -> str:
        return f"{cents} {currency}"

    assert charge(300) == charge(300, "eur") == "300 eur"
    once = semel.once(semel.AsyncClient("http://gateway"), operation="sleep", key=str)
    assert inspect.iscoroutinefunction(once(asyncio.sleep))


def test_who_brings_a_client_of_httpx_closes_it() -> None:
    with httpx.Client() as http:
        semel.Client("http://gateway", http=http).close()
        assert not http.is_closed


def test_a_lasting_failure_is_replayed(client: semel.Client, key: str) -> None:
    def decline(_: semel.Attempt) -> None:
        raise semel.Failed({"code": "declined"})

    for work in (decline, lambda _: None):
        with pytest.raises(semel.Failed) as failed:
            client.run("charge", key, work)
        assert failed.value.result == {"code": "declined"}


def test_what_is_no_longer_kept_is_expired(client: semel.Client, key: str) -> None:
    client.run("old", key, lambda _: 1, ttl=0.1, lease=0.1, tombstone=3600)

    def has_expired() -> bool:
        try:
            return client.run("old", key, lambda _: 2, wait=1) != 1
        except semel.Expired:
            return True

    eventually("the result expires", has_expired)
    with pytest.raises(semel.Expired):
        client.claim("old", key)


def test_steps_go_on_where_the_last_attempt_ended(client: semel.Client, key: str) -> None:
    ran: list[tuple[str, str]] = []

    def step(name: str, result: Any) -> Any:
        def work(step_key: str) -> Any:
            ran.append((name, step_key))
            if isinstance(result, Exception):
                raise result
            return result

        return work

    def settle(attempt: semel.Attempt, ship: Any) -> Any:
        charge = attempt.step("charge", step("charge", {"id": 7}))
        return [charge, attempt.step("ship", step("ship", ship))]

    with pytest.raises(OSError, match="no parcel"):
        client.run("settle", key, lambda a: settle(a, OSError("no parcel")), in_steps=True)
    with pytest.raises(semel.StepsChanged, match="'charge' in an earlier attempt, and is 'ship' now"):
        client.run("settle", key, lambda a: a.step("ship", step("ship", 1)), in_steps=True)
    assert client.run("settle", key, lambda a: settle(a, "sent"), in_steps=True) == [{"id": 7}, "sent"]
    names, keys = zip(*ran, strict=True)
    assert names == ("charge", "ship", "ship")
    assert keys[0] != keys[1] == keys[2]
    assert len(keys[0]) == 64


def test_steps_want_to_be_declared(client: semel.Client, key: str) -> None:
    with client.claim("settle", key) as attempt, pytest.raises(RuntimeError, match="in_steps=True"):
        attempt.step("charge", lambda _: 1)


def test_a_lease_is_renewed_while_the_work_runs(client: semel.Client, key: str) -> None:
    with client.claim("long", key, lease=0.3) as attempt:
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            with pytest.raises(semel.InFlight):
                client.claim("long", key, on_lost="retry")
        assert attempt.still_held()
        attempt.complete()


def test_an_attempt_that_nobody_can_end_any_more_is_not_renewed(client: semel.Client, key: str) -> None:
    attempt = client.claim("forgotten", key, lease=0.2)
    del attempt
    gc.collect()
    with client.claim("forgotten", key, on_lost="retry", wait=60) as attempt:
        assert attempt.attempt == 2
        attempt.abandon()


def test_an_attempt_that_was_overtaken_records_nothing(
    gateway: Gateway, client: semel.Client, network: Network, key: str
) -> None:
    with semel.Client(network.url, patience=10) as cut_off:
        attempt = cut_off.claim("slow", key, lease=0.3)
        network.cut = 1.0
        with client.claim("slow", key, on_lost="retry", wait=60) as other:
            assert not attempt.still_held()
            network.cut = 0
            with pytest.raises(semel.Stale) as stale:
                attempt.complete("late")
            assert stale.value.reason == "superseded"
            other.complete("in time")
        assert client.claim("slow", key).result() == "in time"


def test_answers_that_are_lost_are_asked_for_again(client: semel.Client, network: Network, key: str) -> None:
    with semel.Client(network.url, patience=30) as cut_off:
        network.lose_answers = 1
        with cut_off.claim("lost", key, lease=60) as attempt:
            assert attempt.attempt == 1
            network.lose_answers = 2
            attempt.complete("once")
        assert network.cuts["answer"] == 3
    assert client.claim("lost", key).result() == "once"


def test_on_a_bad_network_everything_runs_once(gateway: Gateway, key: str) -> None:
    async def run() -> None:
        ran: list[int] = []

        async def work(number: int) -> int:
            ran.append(number)
            return number

        with Network(gateway.admin, seed=2, cut=0.15, delay=0) as network:
            async with semel.AsyncClient(network.url, patience=60) as client:
                runs = [
                    client.run("many", f"{key}-{number}", lambda _, n=number: work(n), lease=60)  # type: ignore[misc]
                    for number in range(40)
                ]
                assert await asyncio.gather(*runs) == list(range(40))
        assert sorted(ran) == list(range(40))
        assert min(network.cuts.values()) > 0

    asyncio.run(run())


def test_a_completion_is_pursued_though_its_caller_was_cancelled(
    gateway: Gateway, client: semel.Client, key: str
) -> None:
    async def run() -> None:
        with Network(gateway.admin, seed=1, cut=0, delay=0) as network:
            async with semel.AsyncClient(network.url, patience=60) as cut_off:
                attempt = await cut_off.claim("cancelled", key, lease=60)
                network.cut = 1.0
                completing = asyncio.create_task(attempt.complete("known"))
                await asyncio.to_thread(eventually, "a request is cut", lambda: network.cuts["request"] > 0)
                completing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await completing
                network.cut = 0

    asyncio.run(run())
    assert client.claim("cancelled", key).result() == "known"


def cancel_while_the_answer_is_lost(gateway: Gateway, key: str, **options: Any) -> None:
    async def run() -> None:
        with Network(gateway.admin, seed=1, cut=0, delay=0) as network:
            network.lose_answers = 1 << 30
            async with semel.AsyncClient(network.url) as client:
                claiming = asyncio.create_task(client.claim("cancelled", key, lease=3600, **options))
                await asyncio.to_thread(eventually, "an answer is lost", lambda: network.cuts["answer"] > 0)
                claiming.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await claiming
                network.lose_answers = 0

    asyncio.run(run())


def test_a_claim_that_was_cancelled_is_given_back(gateway: Gateway, client: semel.Client, key: str) -> None:
    cancel_while_the_answer_is_lost(gateway, key)
    assert client.run("cancelled", key, lambda attempt: attempt.attempt) == 2
    cancel_while_the_answer_is_lost(gateway, key)
    with client.claim("cancelled", key) as attempt:
        assert attempt.result() == 2


def test_but_not_what_may_have_been_begun(gateway: Gateway, client: semel.Client, key: str) -> None:
    nonce = uuid.uuid4().hex
    with client.claim("cancelled", key, nonce=nonce, lease=3600) as attempt:
        cancel_while_the_answer_is_lost(gateway, key, nonce=nonce)
        with pytest.raises(semel.InFlight):
            client.claim("cancelled", key)
        attempt.mark_unknown()
    # A lost attempt that was taken over is left to its lease.
    cancel_while_the_answer_is_lost(gateway, key, on_lost="retry")
    with pytest.raises(semel.InFlight):
        client.claim("cancelled", key)


def interrupt(gateway: Gateway, key: str, times: int, **options: Any) -> int:
    """A claim whose answers, so many of them, end in a Ctrl-C. Says how many calls were made."""
    calls = []

    def interrupted(response: httpx.Response) -> None:
        calls.append(response.url)
        if len(calls) <= times:
            raise KeyboardInterrupt

    with httpx.Client(event_hooks={"response": [interrupted]}) as http, pytest.raises(KeyboardInterrupt):
        semel.Client(gateway.admin, http=http).claim("interrupted", key, lease=3600, **options)
    return len(calls)


def test_a_claim_that_was_interrupted_is_given_back(gateway: Gateway, client: semel.Client, key: str) -> None:
    assert interrupt(gateway, key, 1) == 3
    assert client.run("interrupted", key, lambda attempt: attempt.attempt) == 2
    # Not after a second Ctrl-C; and not what may have been begun.
    assert interrupt(gateway, key + "2", 2) == 2
    assert interrupt(gateway, key + "3", 1, nonce=uuid.uuid4().hex) == 1
    for kept in (key + "2", key + "3"):
        with pytest.raises(semel.InFlight):
            client.claim("interrupted", kept)


def test_steps_are_given_back_with_their_keys(gateway: Gateway, client: semel.Client, key: str) -> None:
    def fails(attempt: semel.Attempt) -> None:
        assert attempt.step("charge", lambda _: 7) == 7
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011 # it says nothing
        client.run("cancelled", key, fails, in_steps=True)
    cancel_while_the_answer_is_lost(gateway, key, in_steps=True)
    ran = client.run("cancelled", key, lambda a: [a.attempt, a.step("charge", lambda _: 8)], in_steps=True)
    assert ran == [3, 7]


@pytest.mark.parametrize("whose", ["another authority", "another name"])
def test_a_gateway_whose_certificate_is_not_trusted(
    whose: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = Certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.path))
    asked: list[Request] = []

    def answer(request: Request) -> Answer:
        asked.append(request)
        return json_answer({"id": "7", "outcome": {"kind": "success"}})

    with service(answer, certificates.trusted) as url, semel.Client(url) as client:
        assert client.claim("charge", key).id == "7"
    with (
        service(answer, certificates.untrusted[whose]) as url,
        semel.Client(url) as client,
        pytest.raises(semel.Untrusted, match="certificate verify failed"),
    ):
        client.claim("charge", key)
    assert len(asked) == 1


def test_a_certificate_after_a_lost_try_leaves_it_unsettled(key: str) -> None:
    flow = _claims.claim(_claims.Claim("charge", key), patience=60)
    assert isinstance(next(flow), _claims.Send)
    assert isinstance(flow.throw(httpx.ReadError("broken")), _flow.Pause)
    assert isinstance(next(flow), _claims.Send)
    untrusted = httpx.ConnectError("no")
    untrusted.__cause__ = ssl.SSLCertVerificationError()
    with pytest.raises(semel.Unsettled) as unsettled:
        flow.throw(untrusted)
    assert unsettled.value.nonce is not None


def test_an_answer_without_an_end_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_claims, "LONGEST_ANSWER", 1 << 20)
    with service(lambda _: Answer(200, b" " * 65536, endless=True)) as url:
        with semel.Client(url) as client, pytest.raises(semel.Unsettled, match="more than 1 MiB"):
            client.claim("charge", key)

        async def run() -> None:
            async with semel.AsyncClient(url) as client:
                await client.claim("charge", key)

        with pytest.raises(semel.Unsettled, match="more than 1 MiB"):
            asyncio.run(run())


def test_a_redirect_is_no_answer_to_a_claim(key: str) -> None:
    def answer(request: Request) -> Answer:
        done = json_answer({"id": "7", "outcome": {"kind": "success"}})
        return done if request.method == "GET" else Answer(302, headers={"location": "/"})

    with service(answer) as url, httpx.Client(follow_redirects=True) as http:
        with pytest.raises(semel.Refused) as refused:
            semel.Client(url, http=http).claim("charge", key)
        assert refused.value.status == 302


def test_a_gateway_that_does_not_come_back_leaves_it_unsettled(
    client: semel.Client, network: Network, key: str
) -> None:
    with semel.Client(network.url, patience=0.3) as cut_off:
        attempt = cut_off.claim("away", key)
        network.cut = 1.0
        with pytest.raises(semel.Unsettled):
            attempt.complete("nobody knows")
        with pytest.raises(semel.Unsettled):
            cut_off.claim("away", "other")


def test_who_has_no_right_is_refused(key: str, tmp_path: Any) -> None:
    digest = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"  # of "secret"
    settings = tmp_path / "semel.toml"
    settings.write_text(f'[[tokens]]\nname = "books"\nsha256 = "{digest}"\nclaims = ["default/close-*"]\n')
    with Gateway(UPSTREAM, "--config", str(settings)) as gateway:
        with semel.Client(gateway.admin) as client, pytest.raises(semel.Refused) as refused:
            client.claim("close-day", key)
        assert (refused.value.status, refused.value.code) == (401, "unauthorized")
        with semel.Client(gateway.admin, token="secret") as client:
            assert client.run("close-day", key, lambda _: 1) == 1
            with pytest.raises(semel.Refused) as refused:
                client.claim("charge", key)
            assert (refused.value.status, refused.value.code) == (403, "forbidden")
            attempt = client.claim("close-day", key + "2")
            client._headers = {}
            with pytest.raises(semel.NotRecorded, match="unauthorized"):
                attempt.complete()
