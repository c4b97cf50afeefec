"""A kubelet as far as the API server asks one for logs, and for a forwarded port that nothing comes through: HTTPS on loopback, and a Node that leads there."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from certificates import self_signed
from real_api import RealApi


class Kubelet(ThreadingHTTPServer):
    """`logs` is what there is to read, by `NAMESPACE/POD/CONTAINER`; `asked` every question so far, with its parameters."""

    daemon_threads = True
    logs: dict[str, list[str]]
    asked: list[tuple[str, dict[str, str]]]

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader that went away is no fault."""


class _Answer(BaseHTTPRequestHandler):
    server: Kubelet
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """The port is open until the other side closes it."""
        self.server.asked.append((urlsplit(self.path).path, {}))
        self.send_response(101)
        for name, value in (("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")):
            self.send_header(name, value)
        self.send_header("X-Stream-Protocol-Version", "portforward.k8s.io")
        self.end_headers()
        while self.rfile.read(1):
            pass
        self.close_connection = True

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        what = "/".join(parts.path.split("/")[2:])
        query = dict(parse_qsl(parts.query))
        self.server.asked.append((what, query))
        lines = self.server.logs.get(what)
        self.send_response(200 if lines is not None else 404)
        self.send_header("Connection", "close")
        self.end_headers()
        lines = lines or []
        for line in lines[-int(query["tailLines"]) :] if "tailLines" in query else lines:
            self.wfile.write(f"{line}\n".encode())

    def log_message(self, *_: object) -> None:
        """Not to the tests' output."""


@contextmanager
def played_kubelet(api: RealApi, folder: Path, node: str) -> Iterator[Kubelet]:
    """Serves for the block."""
    key, certificate = self_signed(folder, node)
    server = Kubelet(("127.0.0.1", 0), _Answer)
    server.logs, server.asked = {}, []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    answer = api.create("/api/v1/nodes", {"metadata": {"name": node}}, dry_run=False)
    assert answer.status_code == 201, answer.text
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": server.server_address[1]}},
    }
    api.patch(f"/api/v1/nodes/{node}/status", {"status": status})
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
