"""Web clients through a gateway, over a network that drops and delays."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections import Counter
from typing import Any

import pytest

from harness import PROGRAMS, Answer, Gateway, Network, Request, json_answer, service

ORDERS = int(os.environ.get("SEMEL_ORDERS", "30"))


class Orders:
    """Takes every order that it is asked for, and looks at no key."""

    def __init__(self) -> None:
        self.taken: Counter[int] = Counter()
        self.lock = threading.Lock()

    def answer(self, request: Request) -> Answer:
        order = json.loads(request.body)["order"]
        # Long enough for a retry to come meanwhile.
        time.sleep(0.01)
        with self.lock:
            self.taken[order] += 1
        return json_answer({"taken": order}, 201)


def place_orders(client: str, url: str) -> list[dict[str, Any]]:
    program = PROGRAMS["node" if client == "fetch" else "python"]("web")
    done = subprocess.run(
        [*program, client, f"{url}/orders", str(ORDERS)], stdout=subprocess.PIPE, timeout=300, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("client", ["httpx", "async-httpx", "requests", "fetch"])
def test_every_order_is_taken_once_and_answered(client: str) -> None:
    orders = Orders()
    with (
        service(orders.answer) as upstream,
        Gateway(upstream) as gateway,
        Network(gateway.url, seed=ORDERS, cut=0.1) as network,
    ):
        # Chance may spare the answers.
        network.lose_answers = 1
        told = place_orders(client, network.url)
    expected = [{"order": order, "status": 201, "body": {"taken": order}} for order in range(ORDERS)]
    assert sorted(told, key=lambda one: one["order"]) == expected
    assert orders.taken == Counter(range(ORDERS))
    assert min(network.cuts.values()) > 0, network.cuts


@pytest.mark.parametrize("client", ["httpx", "async-httpx", "requests", "fetch"])
def test_what_the_gateway_cannot_know_is_reported_as_unknown(client: str) -> None:
    orders = Orders()
    with (
        service(orders.answer) as upstream,
        Network(upstream, seed=ORDERS, cut=0.1, delay=0) as network,
        Gateway(network.url) as gateway,
    ):
        told = place_orders(client, gateway.url)
    assert sorted(one["order"] for one in told) == list(range(ORDERS))
    for one in told:
        if one.get("status") == 201:
            assert orders.taken[one["order"]] == 1, one
        else:
            assert one == {"order": one["order"], "error": "OutcomeUnknown"}
            assert orders.taken[one["order"]] <= 1, one
    assert sum(network.cuts.values()) > 0
    assert {one.get("error") for one in told} == {None, "OutcomeUnknown"}
