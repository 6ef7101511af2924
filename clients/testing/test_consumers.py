"""Queue consumers that are killed at any moment, and whose messages are delivered again.

The bank charges as often as it is asked to, unless the fence is stale: nothing but the claims keeps a
message from being charged twice.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import semel
from harness import PATIENCE, PROGRAMS, Answer, Gateway, Request, eventually, json_answer, service

# Kills that a consumer does not survive with a message in its hands.
KILLS = int(os.environ.get("SEMEL_KILLS", "8"))
CONSUMERS = 4


class Bank:
    def __init__(self) -> None:
        self.charges: list[dict[str, Any]] = []
        self.lowest_fence: dict[str, int] = {}
        self.refused = 0
        self.on_the_way = 0
        self.lock = threading.Lock()

    def charge(self, asked: dict[str, Any]) -> Any:
        # Some come late: when their consumer is dead, and its lease is over.
        late = random.uniform(0.3, 1.0) if random.random() < 0.1 else random.uniform(0, 0.02)
        self.on_the_way += 1
        time.sleep(late)
        with self.lock:
            self.on_the_way -= 1
            if asked["fence"] < self.lowest_fence.get(asked["id"], 0):
                self.refused += 1
                return None
            self.charges.append(asked)
        # Time to be killed in: charged, and not known to be.
        time.sleep(random.uniform(0, 0.02))
        return asked

    def find(self, asked: dict[str, Any]) -> Any:
        """Finds the charge, or refuses lower fences from now on: in one step."""
        with self.lock:
            self.lowest_fence[asked["id"]] = asked["fence"]
            return self.charged(asked["id"])

    def charged(self, operation: str) -> Any:
        return next((charge for charge in self.charges if charge["id"] == operation), None)


class Queue:
    """Hands out each message until it is acknowledged; makes a new one where there is none."""

    def __init__(self) -> None:
        self.waiting: deque[dict[str, Any]] = deque()
        # By the consumer that has it.
        self.held: dict[str, dict[str, Any]] = {}
        self.dead: set[str] = set()
        self.messages = 0
        self.redelivered = 0
        self.acknowledged: list[str] = []
        self.how: Counter[str] = Counter()
        self.parked: dict[str, str] = {}
        self.changed = threading.Condition()

    def receive(self, consumer: str) -> Any:
        with self.changed:
            if not self.waiting and self.redelivered < KILLS:
                self.messages += 1
                self.waiting.append({"id": f"message-{self.messages}", "cents": self.messages})
            if not self.changed.wait_for(lambda: self.waiting, timeout=0.2) or consumer in self.dead:
                return None
            self.held[consumer] = self.waiting.popleft()
            self.changed.notify_all()
            return self.held[consumer]

    def acknowledge(self, consumer: str, how: str) -> None:
        with self.changed:
            message = self.held.pop(consumer, None)
            if message is not None:
                self.how[how] += 1
                self.acknowledged.append(message["id"])

    def wait_until_held_by(self, consumer: str) -> None:
        with self.changed:
            self.changed.wait_for(
                lambda: consumer in self.held or self.redelivered >= KILLS, timeout=PATIENCE
            )

    def buried(self, consumer: str) -> None:
        with self.changed:
            self.dead.add(consumer)
            message = self.held.pop(consumer, None)
            if message is not None:
                self.redelivered += 1
                self.waiting.append(message)
                self.changed.notify_all()

    def is_empty(self) -> bool:
        with self.changed:
            return not self.waiting and not self.held


class Shop:
    def __init__(self, language: str, policy: str) -> None:
        self.program = [*PROGRAMS[language]("consumer")]
        self.policy = policy
        self.bank, self.queue = Bank(), Queue()
        self.started = 0
        self.failures: list[str] = []
        self.lock = threading.Lock()

    def answer(self, request: Request) -> Answer:
        _, consumer, verb = request.path.split("/")
        asked = json.loads(request.body)
        match verb:
            case "receive":
                return json_answer(self.queue.receive(consumer))
            case "acknowledge":
                self.queue.acknowledge(consumer, asked["how"])
                return json_answer(None)
            case "park":
                self.queue.parked[asked["message"]] = asked["id"]
                return json_answer(None)
            case "find":
                return json_answer(self.bank.find(asked))
        charge = self.bank.charge(asked)
        return json_answer(charge, 409 if charge is None else 200)

    @contextmanager
    def consumer(self, url: str, gateway: Gateway) -> Iterator[str]:
        """One process, for as long as the block runs, which it must survive; gives its name."""
        with self.lock:
            self.started += 1
            name = f"c{self.started}"
        process = subprocess.Popen([*self.program, f"{url}/{name}", gateway.admin, self.policy])
        try:
            yield name
        finally:
            if process.poll() is not None:
                self.failures.append(f"{name} ended by itself: {process.returncode}")
            process.kill()
            process.wait()
            self.queue.buried(name)

    def kill_consumers(self, url: str, gateway: Gateway) -> None:
        while self.queue.redelivered < KILLS and not self.failures:
            with self.consumer(url, gateway) as name:
                self.queue.wait_until_held_by(name)
                # Many within the first moments; some after a wait for the lease of a dead one, or late.
                time.sleep(random.uniform(0, random.choice([0.06, 0.6, 2.0])))

    def drain(self, url: str, gateway: Gateway) -> None:
        with self.consumer(url, gateway), self.consumer(url, gateway):
            eventually("all messages are acknowledged", self.queue.is_empty, within=300)
            eventually("nothing is on its way to the bank", lambda: self.bank.on_the_way == 0)

    def resolve_parked(self, gateway: Gateway) -> None:
        """As an operator: looks in the bank's books, when nothing of a dead consumer can come any more."""
        with semel.Client(gateway.admin) as client:
            for name, operation in self.queue.parked.items():
                message = {"id": name, "cents": int(name.removeprefix("message-"))}
                charged = self.bank.charged(operation)
                with client.claim("charge", name, payload=message, on_lost="retry") as attempt:
                    if attempt.outcome is None:
                        assert attempt.id == operation
                        attempt.complete(charged) if charged else attempt.abandon()
                self.queue.waiting.append(message)


@pytest.mark.parametrize("policy", ["retry", "hold"])
@pytest.mark.parametrize("language", PROGRAMS)
def test_a_consumer_that_is_killed_charges_every_message_once(language: str, policy: str) -> None:
    shop = Shop(language, policy)
    with service(shop.answer) as url, Gateway("http://127.0.0.1:9") as gateway:
        slots = [threading.Thread(target=shop.kill_consumers, args=(url, gateway)) for _ in range(CONSUMERS)]
        for slot in slots:
            slot.start()
        for slot in slots:
            slot.join()
        shop.drain(url, gateway)
        charges = Counter(charge["message"] for charge in shop.bank.charges)
        assert all(times == 1 for times in charges.values()), charges
        if policy == "hold":
            shop.resolve_parked(gateway)
            shop.drain(url, gateway)

    queue, bank = shop.queue, shop.bank
    print(
        f"\n{language}, {policy}: {queue.messages} messages, {queue.redelivered} delivered again to another,"
    )
    print(f"{dict(queue.how)}, {len(queue.parked)} parked, {bank.refused} late charges refused")
    assert not shop.failures
    names = {f"message-{number}" for number in range(1, queue.messages + 1)}
    assert Counter(charge["message"] for charge in bank.charges) == Counter(names)
    assert set(queue.acknowledged) == names
    assert queue.redelivered >= KILLS
