"""What the tests of both clients share: a gateway, services, a network that fails."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme

PATIENCE = 60.0
# The programs of `programs/`: those for Node in the folder where `clients/test` has built the package.
PROGRAMS: dict[str, Callable[[str], list[str]]] = {
    "python": lambda name: [sys.executable, str(Path(__file__).parent / f"programs/{name}.py")],
    "node": lambda name: ["node", f"{os.environ['SEMEL_TYPESCRIPT']}/programs/{name}.mjs"],
}


def eventually(what: str, holds: Callable[[], bool], within: float = PATIENCE) -> None:
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, f"not within {within} s: {what}"
        time.sleep(0.02)


class Gateway:
    """`semel serve` as a process, on free ports, with a data folder of its own."""

    def __init__(self, upstream: str, *flags: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="semel-clients-")
        self.log_path = Path(self.folder.name) / "log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")}
        environment |= {
            "SEMEL_LISTEN": "127.0.0.1:0",
            "SEMEL_ADMIN": "127.0.0.1:0",
            "SEMEL_LOG_FORMAT": "json",
        }
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [os.environ["SEMEL_BIN"], "serve", "--upstream", upstream, *flags],
                env=environment,
                cwd=self.folder.name,
                stderr=log,
            )
        serving: list[dict[str, Any]] = []

        def started() -> bool:
            assert self.process.poll() is None, f"the gateway ended: {self.log()}"
            serving.extend(line for line in self.lines() if line.get("message") == "serving")
            return bool(serving)

        try:
            eventually("the gateway serves", started)
        except BaseException:
            self.stop()
            raise
        self.url = f"http://{serving[0]['listen']}"
        self.admin = f"http://{serving[0]['admin']}"

    def log(self) -> str:
        return self.log_path.read_text()

    def lines(self) -> list[dict[str, Any]]:
        # The last line may still be on its way.
        whole = self.log().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            self.folder.cleanup()

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@dataclass
class Request:
    method: str
    path: str
    headers: Any
    body: bytes


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    # The service did it, and its connection breaks before it says so.
    cut: bool = False
    # It does not say how long the body is; and the body has no end.
    chunked: bool = False
    endless: bool = False


def json_answer(value: object, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"content-type": "application/json"})


@contextlib.contextmanager
def service(answer: Callable[[Request], Answer], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """An HTTP service on a free port; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Header and body go out in one piece: no waiting for an acknowledgement in between.
        wbufsize = -1

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            answered = answer(Request(self.command, self.path, self.headers, body))
            if answered.cut:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(answered.status)
            for name, value in answered.headers.items():
                self.send_header(name, value)
            if answered.chunked or answered.endless:
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                chunk = b"%x\r\n%b\r\n" % (len(answered.body), answered.body)
                self.wfile.write(chunk)
                while answered.endless:
                    self.wfile.write(chunk)
                self.wfile.write(b"0\r\n\r\n")
                return
            self.send_header("content-length", str(len(answered.body)))
            self.end_headers()
            self.wfile.write(answered.body)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            # A client that was killed.
            pass

    server = Server(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Certificates:
    """Those of three services: one that is trusted, with the authority at `path`, and two that are not."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.path = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.path))
        self.handshakes = 0
        self.trusted = self._of(authority.issue_cert("127.0.0.1"))
        self.untrusted = {
            "another authority": self._of(trustme.CA().issue_cert("127.0.0.1")),
            "another name": self._of(authority.issue_cert("other.example")),
        }

    def _of(self, certificate: trustme.LeafCert) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate.configure_cert(context)
        context.sni_callback = self._count
        return context

    def _count(self, *_: object) -> None:
        self.handshakes += 1


class Network:
    """A proxy of TCP that delays what passes, and cuts connections: before a request or before its answer."""

    def __init__(self, target: str, seed: int, cut: float = 0.1, delay: float = 0.1) -> None:
        host, port = target.removeprefix("http://").split(":")
        self.target = (host, int(port))
        self.cut, self.delay = cut, delay
        self.random = random.Random(seed)
        self.cuts = {"request": 0, "answer": 0}
        self.delays = 0
        # So many answers are lost for certain, before chance decides.
        self.lose_answers = 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self.target) as server:
            while True:
                for side in select.select([client, server], [], [])[0]:
                    piece = side.recv(65536)
                    if not piece:
                        return
                    what = "request" if side is client else "answer"
                    lost = what == "answer" and self.lose_answers > 0
                    if lost or self.random.random() < self.cut:
                        self.lose_answers -= lost
                        self.cuts[what] += 1
                        return
                    if self.random.random() < self.delay:
                        self.delays += 1
                        time.sleep(self.random.uniform(0, 0.2))
                    (server if side is client else client).sendall(piece)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
