"""Places orders over HTTP, each once: web.py CLIENT URL ORDERS. Prints a line of JSON for each."""

import asyncio
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import requests

import semel
from semel.retry import AsyncRetryTransport, RetryTransport, Rules
from semel.retry_requests import RetryAdapter

AT_ONCE = 8
RULES = Rules(first_pause=0.05, longest_pause=1.0)


def told(order: int, status: int, body: Any) -> str:
    return json.dumps({"order": order, "status": status, "body": body})


def failed(order: int, error: Exception) -> str:
    return json.dumps({"order": order, "error": type(error).__name__})


def with_httpx(url: str, orders: range) -> Iterator[str]:
    with httpx.Client(transport=RetryTransport(rules=RULES)) as http, ThreadPoolExecutor(AT_ONCE) as threads:

        def place(order: int) -> str:
            try:
                answer = http.post(url, json={"order": order})
                return told(order, answer.status_code, answer.json())
            except semel.SemelError as error:
                return failed(order, error)

        yield from threads.map(place, orders)


def with_async_httpx(url: str, orders: range) -> Iterator[str]:
    async def all_of_them() -> list[str]:
        turn = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(transport=AsyncRetryTransport(rules=RULES)) as http:

            async def place(order: int) -> str:
                try:
                    async with turn:
                        answer = await http.post(url, json={"order": order})
                    return told(order, answer.status_code, answer.json())
                except semel.SemelError as error:
                    return failed(order, error)

            return await asyncio.gather(*map(place, orders))

    yield from asyncio.run(all_of_them())


def with_requests(url: str, orders: range) -> Iterator[str]:
    session = requests.Session()
    session.mount("http://", RetryAdapter(RULES, pool_maxsize=AT_ONCE))
    with session, ThreadPoolExecutor(AT_ONCE) as threads:

        def place(order: int) -> str:
            try:
                answer = session.post(url, json={"order": order})
                return told(order, answer.status_code, answer.json())
            except semel.SemelError as error:
                return failed(order, error)

        yield from threads.map(place, orders)


CLIENTS = {"httpx": with_httpx, "async-httpx": with_async_httpx, "requests": with_requests}

for line in CLIENTS[sys.argv[1]](sys.argv[2], range(int(sys.argv[3]))):
    print(line)
