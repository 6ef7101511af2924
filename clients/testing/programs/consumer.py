"""Takes messages from a queue, charges each once: consumer.py QUEUE GATEWAY retry|hold. Runs until killed."""

import sys
from typing import Any

import httpx

import semel

queue_url, gateway, policy = sys.argv[1:]
queue = httpx.Client(base_url=queue_url, timeout=60)
client = semel.Client(gateway)


def ask(path: str, **body: Any) -> Any:
    return queue.post(path, json=body).raise_for_status().json()


def handle(message: dict[str, Any]) -> str:
    how = "replayed"

    def charge(attempt: semel.Attempt) -> Any:
        nonlocal how
        about = {"id": attempt.id, "fence": attempt.fence}
        # An earlier attempt may have charged: its charge is found, or refused from now on.
        found = ask("/find", **about) if policy == "retry" else None
        how = "found" if found else "ran"
        return found or ask("/charge", message=message["id"], cents=message["cents"], **about)

    options: semel.Options = {"lease": 0.3, "wait": 60, "on_lost": "retry" if policy == "retry" else "hold"}
    try:
        charged = client.run("charge", message["id"], charge, payload=message, **options)
    except semel.OutcomeUnknown as unknown:
        ask("/park", message=message["id"], id=unknown.id)
        return "parked"
    assert charged["cents"] == message["cents"], charged
    return how


while True:
    message = ask("/receive")
    if message is not None:
        ask("/acknowledge", message=message["id"], how=handle(message))
