"""DynamoDB and S3 for tests: moto's implementation behind a small HTTP server.

    server.py --port N

Listens on 127.0.0.1, prints nothing but errors, ends on SIGTERM, and forgets everything then.

moto's own server takes requests on many threads and is not atomic: conditional writes of several
callers win at once. Here one thread reads requests and answers them one by one, which is atomic
and, with Python's lock, also faster than threads. Connections are kept open (HTTP/1.1).

`GET /` answers a JSON object with the number of requests so far by operation, for tests that count
round trips; it is not counted itself. What names no operation of DynamoDB and has a path is S3's, the
bucket first in the path.

Not as in DynamoDB: no throttling and no capacity limits; items are not deleted by their TTL
attribute; every read is strongly consistent, so that a forgotten `ConsistentRead` does no harm
here; signatures and permissions are not checked; a scan's pages end by `Limit` and 1 MB only;
tables are ACTIVE at once. The item size limit is checked, but at 405,000 bytes of an update.
"""

import argparse
import asyncio
import collections
import functools
import gc
import json
import signal
import sys
import traceback
import urllib.parse

import moto.core.responses
from moto.core.exceptions import HTTPException
from moto.core.request import Request
from moto.dynamodb.parsing.expressions import UpdateExpressionParser
from moto.dynamodb.responses import DynamoHandler
from moto.s3.responses import S3Response

# What moto does anew for each request and comes out the same, about a third of its time: looking
# through a class, and parsing the same expressions, twice. (Who writes in a parsed expression copies
# it first.)
moto.core.responses.method_names_from_class = functools.cache(
    moto.core.responses.method_names_from_class
)
UpdateExpressionParser.make = functools.lru_cache(256)(UpdateExpressionParser.make)

MAX_HEAD = 64 * 1024
MAX_BODY = 32 * 1024 * 1024

REASONS = {200: "OK", 400: "Bad Request", 500: "Internal Server Error"}

requests = collections.Counter()


def dispatch(target, path):
    """Who answers."""
    if target is not None:
        requests[target.rpartition(".")[2]] += 1
        return DynamoHandler.dispatch
    _, bucket, *key = path.split("/", 2)
    return S3Response.key_dispatch if key and key[0] else S3Response.bucket_dispatch


def answer(method, url, headers, body):
    """Status, headers and body of one request."""
    target = headers.get("x-amz-target")
    path, _, query = url.partition("?")
    if target is None and path == "/":
        return 200, {"content-type": "application/json"}, json.dumps(requests).encode()
    environ = {
        "REQUEST_METHOD": method,
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "PATH_INFO": urllib.parse.unquote(path, "latin-1"),
        "QUERY_STRING": query,
        "CONTENT_TYPE": headers.get("content-type", "application/x-amz-json-1.0"),
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.url_scheme": "http",
    }
    for name, value in headers.items():
        environ.setdefault("HTTP_" + name.upper().replace("-", "_"), value)
    request = Request(environ)
    # What was read is given at once: there is no stream.
    request._cached_data = body
    try:
        answered = dispatch(target, path)(request, request.url, request.headers)
        status, found, body = answered if isinstance(answered, tuple) else (200, {}, answered)
    except HTTPException as error:
        status, found, body = error.code, dict(error.get_headers()), error.get_body()
    if isinstance(body, str):
        body = body.encode()
    return int(status), found, body


class Connection(asyncio.Protocol):
    """One connection; requests may come in pieces, or several at once."""

    def __init__(self):
        self.received = bytearray()
        self.transport = None

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data
        while not self.transport.is_closing() and self.take():
            pass

    def take(self):
        """Answers the first request, if all of it is there."""
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            if len(self.received) > MAX_HEAD:
                self.transport.close()
            return False
        lines = self.received[:end].decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        if length > MAX_BODY or "transfer-encoding" in headers:
            self.transport.close()
            return False
        if headers.pop("expect", None):
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        begin, end = end + 4, end + 4 + length
        if len(self.received) < end:
            return False
        body = bytes(self.received[begin:end])
        del self.received[:end]
        method, url, _ = lines[0].split(" ", 2)
        try:
            status, found, body = answer(method, url, headers, body)
        except Exception:
            traceback.print_exc()
            status, found, body = 500, {}, b'{"__type":"InternalServerError"}'
        self.write(status, found, body)
        if headers.get("connection", "").lower() == "close":
            self.transport.close()
        return True

    def write(self, status, headers, body):
        head = [f"HTTP/1.1 {status} {REASONS.get(status, '')}"]
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "status", "server", "date"):
                head.append(f"{name}: {value}")
        head.append(f"content-length: {len(body)}\r\n\r\n")
        self.transport.write("\r\n".join(head).encode("latin-1") + body)


async def serve(port):
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, ended.set)
    server = await loop.create_server(Connection, "127.0.0.1", port, backlog=1024)
    await ended.wait()
    server.close()


def main():
    parser = argparse.ArgumentParser(description="DynamoDB for tests, on 127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    # Thousands of objects of modules: not to be looked through at each collection.
    gc.collect()
    gc.freeze()
    asyncio.run(serve(port))


if __name__ == "__main__":
    sys.exit(main())
