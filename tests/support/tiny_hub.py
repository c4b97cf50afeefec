"""Just enough of a model hub on loopback: one repository with fixed files, which remembers what it was asked."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from threaded_server import served

COMMIT = "f" * 40
FILES = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}", "big.bin": b"no"}


@dataclass
class Hub:
    """A running hub. token: what requests must bring; None: nothing. stalls: a file whose content never comes."""

    url: str = ""
    token: str | None = None
    stalls: str | None = None
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and authorization of each request."""
    over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def tiny_hub(**options: str) -> Iterator[Hub]:
    """Serve `org/name` at any revision until the block ends."""
    hub = Hub(**options)  # type: ignore[arg-type]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            authorization = self.headers.get("Authorization")
            hub.requests.append((self.path, authorization))
            name = self.path.rpartition("/")[2]
            if hub.token is not None and authorization != f"Bearer {hub.token}":
                self._answer(401, b"{}", {"X-Error-Code": "GatedRepo"})
            elif self.path.startswith("/api/models/org/name/revision/"):
                listing = [{"rfilename": name} for name in FILES]
                self._answer(200, json.dumps({"id": "org/name", "sha": COMMIT, "siblings": listing}).encode())
            elif self.path.startswith("/api/models/org/name/tree/"):
                tree = [{"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in FILES.items()]
                self._answer(200, json.dumps(tree).encode())
            elif name in FILES and self.path.startswith("/org/name/resolve/"):
                self._answer(200, FILES[name])
            else:
                self._answer(404, b"{}")

        do_HEAD = do_GET

        def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                if hub.stalls is not None and self.path.endswith(hub.stalls):
                    hub.over.wait(60)
                    return
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with served(Handler) as hub.url:
        try:
            yield hub
        finally:
            hub.over.set()
