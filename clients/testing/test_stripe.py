"""Stripe's own libraries, unchanged, through `--preset stripe-v1` in front of a fake of Stripe."""

from __future__ import annotations

import json
import subprocess
import threading
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

import pytest

from harness import PATIENCE, PROGRAMS, Answer, Gateway, Network, Request, json_answer, service

# The language, and what its library calls Stripe's idempotency error.
LIBRARIES = {"python": "IdempotencyError", "node": "StripeIdempotencyError"}


class FakeStripe:
    """Takes every payment that it is asked for, and looks at no key."""

    def __init__(self) -> None:
        self.payments: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.cut_next = False

    def answer(self, request: Request) -> Answer:
        assert (request.method, request.path) == ("POST", "/v1/payment_intents"), request
        asked = parse_qs(request.body.decode())
        with self.lock:
            payment = {
                "id": f"pi_{len(self.payments) + 1}",
                "object": "payment_intent",
                "amount": int(asked["amount"][0]),
                "currency": asked["currency"][0],
                "status": "succeeded",
            }
            self.payments.append(payment)
            cut, self.cut_next = self.cut_next, False
        return Answer(cut=True) if cut else json_answer(payment)


class Shop:
    def __init__(self, stripe: FakeStripe, network: Network, library: str) -> None:
        self.stripe, self.network = stripe, network
        self.command, self.mismatch = PROGRAMS[library]("pay"), LIBRARIES[library]
        self.key = str(uuid.uuid4())

    def pay(self, cents: int) -> dict[str, Any]:
        done = subprocess.run(
            [*self.command, self.network.url, self.key, str(cents)],
            stdout=subprocess.PIPE,
            timeout=PATIENCE,
            check=True,
        )
        told: dict[str, Any] = json.loads(done.stdout)
        return told


@pytest.fixture(params=LIBRARIES)
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    stripe = FakeStripe()
    with (
        service(stripe.answer) as upstream,
        Gateway(upstream, "--preset", "stripe-v1") as gateway,
        Network(gateway.url, seed=1, cut=0, delay=0) as network,
    ):
        yield Shop(stripe, network, request.param)


def test_a_retry_is_answered_with_the_first_payment(shop: Shop) -> None:
    shop.network.lose_answers = 1
    told = shop.pay(300)
    assert told == {"id": "pi_1", "amount": 300, "replayed": "true"}
    assert shop.network.cuts["answer"] == 1
    assert shop.pay(300) == told
    assert len(shop.stripe.payments) == 1


def test_another_payment_under_the_key_is_an_idempotency_error(shop: Shop) -> None:
    assert shop.pay(300) == {"id": "pi_1", "amount": 300, "replayed": None}
    told = shop.pay(301)
    assert told == {"error": shop.mismatch, "status": 400, "code": "idempotency_key_reused"}
    assert len(shop.stripe.payments) == 1


def test_a_payment_whose_answer_stripe_never_sent_is_not_made_again(shop: Shop) -> None:
    shop.stripe.cut_next = True
    told = shop.pay(300)
    assert told["code"] == "outcome_unknown", told
    assert shop.pay(300) == told
    assert len(shop.stripe.payments) == 1
