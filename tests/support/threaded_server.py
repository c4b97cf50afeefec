"""A small HTTP server on loopback for the length of a block: one thread that accepts, and one for each connection."""

from __future__ import annotations

import http.server
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True  # connections that are still open hold nothing up

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away, or does not like the certificate, is no fault of the server."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def served(
    handler: type[http.server.BaseHTTPRequestHandler],
    *,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> Iterator[str]:
    """The server's address, without a path. tls: with its certificate."""
    web = _Server((host, port), handler)
    if tls is not None:
        web.socket = tls.wrap_socket(web.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://{host}:{web.server_address[1]}"
    finally:
        web.shutdown()
        thread.join()
        web.server_close()
