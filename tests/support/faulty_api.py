"""Between a client and a real API server: everything is passed on, but for what a test wants to go wrong.

It speaks TLS with the API server's own certificate, so clients trust it. A watch is passed on as it comes.
"""

from __future__ import annotations

import http.client
import http.server
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from real_api import RealApi
from threaded_server import served

WRITES = ("POST", "PUT", "PATCH", "DELETE")
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Fault:
    """What becomes of one request. status: this answer instead of the server's. lost: the server does it, and the connection breaks before it says so.

    plain: the answer is text, as at a path that nobody serves.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    lost: bool = False
    plain: bool = False


@dataclass(frozen=True)
class Asked:
    """One request; `watch` is the plural that is watched."""

    method: str
    path: str
    watch: str | None = None

    @property
    def writes(self) -> bool:
        return self.method in WRITES


@dataclass
class FaultyApi:
    """`choose` is asked for each request. down: nobody is let in. delay_s: before each answer."""

    url: str = ""
    choose: Callable[[Asked], Fault | None] = lambda asked: None
    down: bool = False
    delay_s: float = 0.0
    deaf: bool = False
    """Watches that are open bring nothing more, and are not closed."""
    met: list[tuple[Asked, Fault]] = field(default_factory=list)
    _open: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cut(self) -> int:
        """Break every connection; how many there were."""
        with self._lock:
            cut = list(self._open)
        for each in cut:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        return len(cut)


@contextmanager
def faulty_api(api: RealApi) -> Iterator[FaultyApi]:
    """In front of `api` until the block ends."""
    made = FaultyApi()
    folder: Path = api.certificates
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "apiserver.crt", folder / "apiserver.key")
    with served(_handler(made, api), tls=context) as made.url:
        try:
            yield made
        finally:
            made.cut()  # watches last


def _handler(made: FaultyApi, api: RealApi) -> type[http.server.BaseHTTPRequestHandler]:
    where = urlsplit(api.url)
    trust = ssl.create_default_context(cafile=str(api.certificates / "apiserver.crt"))

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            with made._lock:
                made._open.add(self.connection)

        def finish(self) -> None:
            with made._lock:
                made._open.discard(self.connection)
            with suppress(OSError):
                super().finish()

        def handle(self) -> None:
            with suppress(OSError, http.client.HTTPException):  # either side went away
                super().handle()

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            target = urlsplit(self.path)
            watches = parse_qs(target.query).get("watch", ["0"])[0] in ("1", "true")
            asked = Asked(self.command, target.path, target.path.rsplit("/", 1)[1] if watches else None)
            if made.down:
                self.close_connection = True
                return
            fault = made.choose(asked)
            if fault is not None:
                made.met.append((asked, fault))
                if fault.status is not None:
                    self.refuse(fault)
                    return
            far = http.client.HTTPSConnection(where.hostname or "", where.port, context=trust, timeout=300)
            try:
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
                far.request(self.command, self.path, body or None, headers)
                answer = far.getresponse()
                time.sleep(made.delay_s)
                if fault is not None and fault.lost:
                    answer.read()
                    self.close_connection = True
                    return
                self.relay(answer, watches)
            finally:
                far.close()

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on

        def refuse(self, fault: Fault) -> None:
            assert fault.status is not None
            reason = {409: "Conflict", 429: "TooManyRequests"}.get(fault.status, "InternalError")
            content = json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "a fault of the test",
                                  "reason": reason, "code": fault.status}).encode()  # fmt: skip
            if fault.plain:
                content = b"404 page not found\n"
            self.send_response(fault.status)
            for name, value in {
                "Content-Type": "text/plain; charset=utf-8" if fault.plain else "application/json",
                "Content-Length": str(len(content)),
                **fault.headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def relay(self, answer: http.client.HTTPResponse, watches: bool) -> None:
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            if not watches:
                content = answer.read()
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while chunk := answer.read1(65536):
                while made.deaf:
                    time.sleep(0.05)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    return Handler
