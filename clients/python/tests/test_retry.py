"""The transports of httpx and the adapter of requests, before a service that fails as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import pickle
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import requests

import semel
from harness import Answer, Certificates, Request, json_answer, service
from semel._decide import Failure
from semel._pursuit import Pursuit
from semel.retry import AsyncRetryTransport, Budget, RetryTransport, Rules, came
from semel.retry_requests import RetryAdapter

Send = Callable[..., Any]


def quick(**others: Any) -> Rules:
    return Rules(**({"patience": 20, "first_pause": 0.001} | others))


def by_httpx(rules: Rules) -> Send:
    def send(method: str, url: str, **what: Any) -> httpx.Response:
        with httpx.Client(transport=RetryTransport(rules=rules), follow_redirects=True) as http:
            return http.request(method, url, **what)

    return send


def by_async_httpx(rules: Rules) -> Send:
    def send(method: str, url: str, **what: Any) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = AsyncRetryTransport(rules=rules)
            async with httpx.AsyncClient(transport=transport, follow_redirects=True) as http:
                return await http.request(method, url, **what)

        return asyncio.run(run())

    return send


def by_requests(rules: Rules) -> Send:
    def send(method: str, url: str, content: Any = None, **what: Any) -> requests.Response:
        with requests.Session() as session:
            for scheme in ("http://", "https://"):
                session.mount(scheme, RetryAdapter(rules))
            return session.request(method, url, data=content, **what)

    return send


@pytest.fixture(params=[by_httpx, by_async_httpx, by_requests])
def by(request: pytest.FixtureRequest) -> Callable[[Rules], Send]:
    chosen: Callable[[Rules], Send] = request.param
    return chosen


class Script:
    """Answers one after the other; the last one from then on."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[Request] = []

    def answer(self, request: Request) -> Answer:
        self.asked.append(request)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def keys(self) -> set[str | None]:
        return {request.headers.get("idempotency-key") for request in self.asked}


def problem(status: int, code: str, **headers: str) -> Answer:
    body = json.dumps({"code": code, "detail": "why"}).encode()
    return Answer(status, body, {"content-type": "application/problem+json", **headers})


CREATED = json_answer({"id": 7}, 201)


def test_one_key_for_all_tries_and_the_same_body(by: Callable[[Rules], Send]) -> None:
    script = Script(Answer(cut=True), problem(409, "in-flight"), Answer(503), CREATED)
    with service(script.answer) as url:
        answer = by(quick())("POST", url, content=b"an order")
    assert (answer.status_code, answer.json()) == (201, {"id": 7})
    assert answer.elapsed.total_seconds() > 0
    assert [request.body for request in script.asked] == [b"an order"] * 4
    (key,) = script.keys()
    assert key is not None
    assert len(key) == 36


def test_a_body_that_can_be_read_once_is_sent_twice(by: Callable[[Rules], Send]) -> None:
    script = Script(Answer(503), CREATED)
    body = io.BytesIO(b"a file") if by is by_requests else b"a file"
    with service(script.answer) as url:
        by(quick())("POST", url, content=body, headers={"idempotency-key": "my-own"})
    assert [request.body for request in script.asked] == [b"a file"] * 2
    assert script.keys() == {"my-own"}


def test_a_get_needs_no_key(by: Callable[[Rules], Send]) -> None:
    script = Script(Answer(cut=True), json_answer([]))
    with service(script.answer) as url:
        assert by(quick())("GET", url).json() == []
    assert script.keys() == {None}


def test_a_mismatch_is_never_sent_again(by: Callable[[Rules], Send]) -> None:
    script = Script(problem(422, "mismatch", **{"retry-after": "0"}))
    with service(script.answer) as url, pytest.raises(semel.Mismatch) as mismatch:
        by(quick())("POST", url)
    assert (mismatch.value.status, mismatch.value.detail) == (422, "why")
    assert mismatch.value.response.json()["code"] == "mismatch"
    assert len(script.asked) == 1


def test_a_compressed_mismatch_is_one(by: Callable[[Rules], Send]) -> None:
    plain = problem(422, "mismatch")
    packed = {**plain.headers, "content-encoding": "gzip", "retry-after": "0"}
    script = Script(Answer(422, gzip.compress(plain.body), packed))
    with service(script.answer) as url, pytest.raises(semel.Mismatch) as mismatch:
        by(quick())("POST", url)
    assert mismatch.value.response.json()["code"] == "mismatch"
    assert len(script.asked) == 1


@pytest.mark.parametrize("answer", [CREATED, Answer(302, headers={"location": "/"})])
def test_a_request_that_is_sent_once_more_is_another_intent(answer: Answer) -> None:
    script = Script(answer)
    with service(script.answer) as url:
        with httpx.Client(transport=RetryTransport()) as http:
            request = http.build_request("POST", url, content=b"an order")
            for _ in range(2):
                assert http.send(request).status_code == answer.status
        with requests.Session() as session:
            session.mount("http://", RetryAdapter())
            prepared = session.prepare_request(requests.Request("POST", url, data=b"an order"))
            for _ in range(2):
                assert session.send(prepared, allow_redirects=False).status_code == answer.status
    assert len(script.keys()) == 4
    assert {request.body for request in script.asked} == {b"an order"}


def test_a_redirected_request_that_is_sent_once_more_is_another_intent() -> None:
    there = Answer(308, headers={"location": "/there"})
    script = Script(*[there, CREATED] * 5)
    with service(script.answer) as url:
        with httpx.Client(transport=RetryTransport(), follow_redirects=True) as http:
            answer = http.post(url, content=b"an order")
            first = answer.history[0].request
            copy = httpx.Request("POST", url, content=b"an order", extensions=first.extensions)
            for request in (first, copy):
                assert http.send(request).status_code == 201
        with requests.Session() as session:
            session.mount("http://", RetryAdapter())
            prepared = session.prepare_request(requests.Request("POST", url, data=b"an order"))
            for again in (prepared, prepared.copy()):
                assert session.send(again).status_code == 201
    assert [request.path for request in script.asked] == ["/", "/there"] * 5
    assert len(script.keys()) == 5


def test_unknown_and_expired_are_reported_as_such(by: Callable[[Rules], Send]) -> None:
    for code, error in [("outcome-unknown", semel.OutcomeUnknown), ("expired", semel.Expired)]:
        script = Script(Answer(cut=True), problem(409, code))
        with service(script.answer) as url, pytest.raises(error):
            by(quick())("POST", url)
        assert len(script.asked) == 2


def test_answers_of_the_service_are_answers(by: Callable[[Rules], Send]) -> None:
    for status in (302, 400, 401, 402, 404, 409, 422):
        script = Script(Answer(status, b"why", {"content-type": "text/plain"}))
        with service(script.answer) as url:
            answer = by(quick())("POST", url)
        assert (answer.status_code, answer.content, len(script.asked)) == (status, b"why", 1)


def test_no_answer_in_time_is_unsettled(by: Callable[[Rules], Send]) -> None:
    script = Script(Answer(cut=True))
    with service(script.answer) as url, pytest.raises(semel.Unsettled) as unsettled:
        by(quick(patience=0.3))("POST", url, headers={"idempotency-key": "mine"})
    assert unsettled.value.key == "mine"
    assert len(script.asked) > 1


def test_so_is_a_refusal_that_cannot_be_read(by: Callable[[Rules], Send]) -> None:
    script = Script(Answer(504, b"no gzip", {"content-encoding": "gzip"}))
    with service(script.answer) as url, pytest.raises(semel.Unsettled) as unsettled:
        by(quick(patience=0.3))("POST", url, headers={"idempotency-key": "mine"})
    assert unsettled.value.key == "mine"


def test_a_refusal_after_a_lost_try_is_unsettled(by: Callable[[Rules], Send]) -> None:
    script = Script(Answer(cut=True), Answer(401))
    with service(script.answer) as url, pytest.raises(semel.Unsettled) as unsettled:
        by(quick())("POST", url)
    assert unsettled.value.response.status_code == 401


def test_what_was_never_sent_is_the_error_that_it_is(by: Callable[[Rules], Send]) -> None:
    with service(Script(CREATED).answer) as url:
        pass
    with pytest.raises((httpx.ConnectError, requests.ConnectionError)):
        by(quick(patience=0.2))("POST", url)


def test_a_redirect_to_nowhere_does_not_mean_that_nothing_was_sent(by: Callable[[Rules], Send]) -> None:
    with service(Script(CREATED).answer) as gone:
        pass
    script = Script(Answer(303, headers={"location": gone}))
    with service(script.answer) as url, pytest.raises(semel.Unsettled) as unsettled:
        by(quick(patience=0.3))("POST", url)
    assert script.keys() == {unsettled.value.key}


def test_what_a_redirect_leads_to_has_the_same_key(by: Callable[[Rules], Send]) -> None:
    script = Script(Answer(307, headers={"location": "/there"}), Answer(503), CREATED)
    with service(script.answer) as url:
        assert by(quick())("POST", url, content=b"an order").status_code == 201
    assert [request.path for request in script.asked] == ["/", "/there", "/there"]
    (key,) = script.keys()
    assert key is not None


def test_a_redirect_to_itself_has_the_same_key_too(by: Callable[[Rules], Send]) -> None:
    for place, location in [("/", "/"), ("/#part", "/"), ("/a%20b", "/a b")]:
        script = Script(Answer(cut=True), Answer(307, headers={"location": location}), CREATED)
        with service(script.answer) as url:
            assert by(quick())("POST", url + place, content=b"an order").status_code == 201
        assert len(script.asked) == 3
        (key,) = script.keys()
        assert key is not None


def test_a_redirect_to_nowhere_is_an_answer() -> None:
    script = Script(Answer(307, headers={"location": "http://[nowhere"}))
    with service(script.answer) as url, httpx.Client(transport=RetryTransport()) as http:
        assert http.post(url).status_code == 307


def test_what_was_redirected_can_be_kept() -> None:
    script = Script(Answer(307, headers={"location": "/there"}), CREATED)
    with service(script.answer) as url:
        answer = by_requests(quick())("POST", url, content=b"an order")
    assert pickle.loads(pickle.dumps(answer)).status_code == 201


def test_what_a_redirect_leads_a_get_to_may_be_a_stream() -> None:
    pursuit = Pursuit(quick(), "GET", {}, redirected="key")
    assert not pursuit.is_read(200, {})
    assert pursuit.within(None) is None


def test_who_is_asked_to_wait_too_long_gets_the_refusal(by: Callable[[Rules], Send]) -> None:
    script = Script(problem(429, "limit", **{"retry-after": "3600"}))
    with service(script.answer) as url:
        assert by(quick())("POST", url).status_code == 429
    assert len(script.asked) == 1


def test_a_budget_slows_retries_down(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    budget = Budget(ratio=0.5, per_second=2.0, reserve=3.0)
    assert [budget.spend(60) for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    for _ in range(4):
        budget.earn()
    assert [budget.spend(60) for _ in range(2)] == [0.5, 1.0]
    now = 60.0
    assert [budget.spend(60) for _ in range(4)] == [0, 0, 0, 0.5]


def test_a_retry_that_is_not_made_costs_nothing() -> None:
    budget = Budget(per_second=0.001, reserve=1.0)
    assert [budget.spend(1) for _ in range(100)] == [0] + [None] * 99
    for _ in range(6):
        budget.earn()
    assert budget.spend(1) == 0
    none = Budget(per_second=0, reserve=1.0)
    assert [none.spend(60) for _ in range(2)] == [0, None]


def test_a_try_ends_with_the_patience(by: Callable[[Rules], Send]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(semel.Unsettled):
        by(quick(patience=0.5))("POST", f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=600)


def test_streams_and_long_answers_are_not_read() -> None:
    pursuit = Pursuit(Rules(), "POST", {})
    assert pursuit.is_read(200, {"content-length": str(1 << 20)})
    assert not pursuit.is_read(200, {"content-length": str(1 + (1 << 20))})
    assert not pursuit.is_read(200, {"content-type": "text/event-stream; charset=utf-8"})


@pytest.mark.parametrize("whose", ["another authority", "another name"])
def test_a_certificate_that_is_not_trusted_ends_it(
    by: Callable[[Rules], Send], whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = Certificates(tmp_path)
    for trusted in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.setenv(trusted, str(certificates.path))
    script = Script(CREATED)
    with service(script.answer, certificates.trusted) as url:
        assert by(quick())("POST", url).status_code == 201
    certificates.handshakes = 0
    with (
        service(script.answer, certificates.untrusted[whose]) as url,
        pytest.raises((httpx.ConnectError, requests.exceptions.SSLError), match="certificate verify failed"),
    ):
        by(quick())("POST", url)
    assert (certificates.handshakes, len(script.asked)) == (1, 1)


def test_what_was_raised_in_the_course_of_such_an_error_is_another() -> None:
    broken = httpx.ReadError("broken")
    broken.__context__ = ssl.SSLCertVerificationError()
    assert came(None, broken, 0) == Failure("reset", sent=True)


def test_a_fault_over_http_2_may_have_come_of_the_answer() -> None:
    fault = httpx.LocalProtocolError("no")
    assert came(None, fault, 0) == Failure("invalid-request", sent=True)
    illegal = httpx.LocalProtocolError("Illegal header value b'a\\nb'")
    assert came(None, illegal, 0) == Failure("invalid-request", sent=False)
    assert came(None, fault, 201) == Failure("broken-answer", status=201)


def test_a_problem_without_an_end_is_not_read_to_it(by: Callable[[Rules], Send]) -> None:
    script = Script(Answer(503, b"x" * 65536, endless=True), CREATED)
    with service(script.answer) as url:
        assert by(quick())("POST", url).status_code == 201
    assert len(script.asked) == 2


def test_an_answer_that_is_given_up_frees_its_connection() -> None:
    script = Script(Answer(503, b"x" * 65536, endless=True), CREATED)
    inner = httpx.HTTPTransport(limits=httpx.Limits(max_connections=1))
    once = quick(budget=Budget(per_second=0, reserve=0))
    with service(script.answer) as url, httpx.Client(transport=RetryTransport(inner, once)) as http:
        with pytest.raises(semel.Unsettled) as kept:
            http.post(url)
        assert http.post(url).status_code == 201
        assert kept.value.response.status_code == 503


def test_a_long_answer_without_a_length_comes_whole(by: Callable[[Rules], Send]) -> None:
    body = bytes(range(256)) * (8 << 10)
    script = Script(Answer(201, gzip.compress(body, 0), {"content-encoding": "gzip"}, chunked=True))
    with service(script.answer) as url:
        assert by(quick())("POST", url).content == body
    assert len(script.asked) == 1


@pytest.mark.parametrize("is_read", [True, False])
def test_what_is_handed_on_has_the_timeout_of_its_caller(
    by: Callable[[Rules], Send], is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ahead = time.monotonic, 0.0
    monkeypatch.setattr("time.monotonic", lambda: real() + ahead)
    waits: list[float | None] = []
    for where, name in [(anyio, "fail_after"), (socket.socket, "settimeout")]:
        monkeypatch.setattr(where, name, noting(waits, getattr(where, name)))
    script = Script(Answer(503), Answer(201, bytes(2 << 20), chunked=is_read))

    def answer(request: Request) -> Answer:
        nonlocal ahead
        # The first try takes most of the patience.
        ahead = 40.0
        return script.answer(request)

    with service(answer) as url:
        assert len(by(quick(patience=60))("POST", url, timeout=600).content) == 2 << 20
    assert len(script.asked) == 2
    # No longer than the patience, where it may have been one to hold.
    assert waits[-1] == (60 if is_read else 600)
    assert any(wait is not None and wait <= 20 for wait in waits)


def noting(waits: list[float | None], call: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*given: Any) -> Any:
        waits.append(given[-1])
        return call(*given)

    return noted


def test_a_long_answer_can_be_read_as_a_file() -> None:
    body = bytes(range(256)) * (8 << 10)
    with service(Script(Answer(201, body, chunked=True)).answer) as url, requests.Session() as session:
        session.mount("http://", RetryAdapter(quick()))
        with session.post(url, stream=True) as answer:
            assert answer.raw.read(5) == body[:5]
            assert answer.raw.read() == body[5:]


def test_an_answer_that_never_ends_is_unsettled(by: Callable[[Rules], Send]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as slow:
        threading.Thread(target=trickle, args=(slow,), daemon=True).start()
        with pytest.raises(semel.Unsettled):
            by(quick(patience=0.5))("POST", f"http://127.0.0.1:{slow.getsockname()[1]}")


def trickle(listener: socket.socket) -> None:
    """An answer of a byte in a moment."""
    with contextlib.suppress(OSError):
        connection, _ = listener.accept()
        connection.sendall(b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            connection.sendall(b"1\r\nx\r\n")
            time.sleep(0.02)
