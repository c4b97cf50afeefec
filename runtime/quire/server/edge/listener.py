"""The edge to the network: the socket, uvicorn's settings, and clients that neither send nor read.

uvicorn bounds neither the head of a request nor the trailers behind its body; here they have `MAX_HEAD_BYTES`, give or take `SLICE_BYTES`,
and beyond that 431. It stops handing data to a connection whose client does not read (64 KiB wait in this process, then its answer waits too), but
waits for ever; and a client may take for ever to send a request. Both are cut here after `client_timeout_s`, which ends their requests
as if they had left. Of requests that come before the one ahead of them is answered uvicorn makes objects as fast as they come; here no more are
read than those of one slice.
"""

from __future__ import annotations

import asyncio
import errno
import http
import json
import logging
import socket
import ssl
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quire.config import ServeConfig
from quire.errors import ConfigError
from quire.server.errors import body

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 75
BACKLOG = 2048
MAX_HEAD_BYTES = 64 << 10
SLICE_BYTES = 8 << 10
"""What is parsed at a time. A read brings up to 256 KiB, in which a head of any length could begin and end unseen."""


_ADVICE = {errno.EADDRINUSE: "choose another port", errno.EACCES: "choose a port from 1024 on"}


def listen(config: ServeConfig) -> socket.socket:
    """The socket; raises ConfigError."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=BACKLOG)
    except OSError as exc:
        cause = (exc.strerror or str(exc)).partition(" (while")[0]  # Python repeats the address there
        advice = _ADVICE.get(exc.errno or 0, "give an address of this machine")
        raise ConfigError(f"cannot listen on --host {config.host} --port {config.port}: {cause}; {advice}") from exc


def uvicorn_config(app: ASGIApp, config: ServeConfig, *, tls: ssl.SSLContext | None = None) -> uvicorn.Config:
    """How `quire serve` runs uvicorn."""
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(CLOSE_TIMEOUT_S),
        http=_protocol(config.client_timeout),
        ws="none",
    )
    settings.load()
    settings.ssl = tls
    return settings


class Flow(FlowControl):
    """held: nothing more is read, whoever would go on."""

    held: bool = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


def _protocol(client_timeout_s: float) -> type[asyncio.Protocol]:
    """A protocol that waits so long for its client."""
    return type("Protocol", (PatientProtocol,), {"client_timeout_s": client_timeout_s})


class PatientProtocol(HttpToolsProtocol):
    """One connection. At any time at most one thing is waited for: the rest of a request, or that the client reads."""

    client_timeout_s: float
    _sending: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _in_head: bool = False
    _held_bytes: int = 0
    _later: bytes = b""
    """What came behind requests that wait for the one ahead of them, not parsed yet."""
    flow: Flow

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = Flow(transport)
        # asyncio does so only where the listening socket was made with a protocol number. Without it the body behind a head, and each event of
        # a stream, waits until the client has acknowledged what came before: 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_came()
        self._client_reads()
        self._later = b""
        super().connection_lost(exc)

    # --- the client sends ---

    def data_received(self, data: bytes) -> None:
        self._later += data
        self._parse()

    def _parse(self) -> None:
        """What came, as long as no request waits."""
        data, self._later = self._later, b""
        for start in range(0, len(data), SLICE_BYTES):
            if self.pipeline:
                self._later = data[start:]
                self.flow.held = True
                self.flow.pause_reading()
                return
            part = data[start : start + SLICE_BYTES]
            self._held_bytes += len(part)  # what moves the request on puts it to 0 again
            super().data_received(part)
            if self.transport.is_closing():
                return
            if self._held_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
                return
        if self._reading is None and self.timeout_keep_alive_task is None and self.cycle.response_complete:
            self._await_request()  # line ends between requests: they ended uvicorn's wait, and begin nothing

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._later and not self.pipeline:
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._later and not self.pipeline and not self.transport.is_closing():
            self.flow.held = False
            self.flow.resume_reading()
            self._parse()

    def _refuse_head(self) -> None:
        self._refuse(431, f"head and trailers of a request may have {MAX_HEAD_BYTES} bytes", "head_too_large")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP/1.1 request", "invalid_http")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer what is no request of the application, and close; close alone where that would be taken for the answer to another request,
        or stand within one."""
        cycle = self.cycle
        if self._in_head:  # the cycle is the request before
            free = cycle is None or cycle.response_complete
        else:
            free = cycle is None or cycle.response_complete or (cycle.more_body and not cycle.response_started)
        if not free:
            self.transport.abort()
            return
        data = json.dumps(body(status, message, code=code)).encode()
        head = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(data)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + data)
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._held_bytes = True, 0
        self._await_request()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, data: bytes) -> None:
        self._held_bytes = 0
        super().on_body(data)
        self._await_request()

    def on_message_complete(self) -> None:
        self._held_bytes = 0
        self._request_came()
        super().on_message_complete()

    def _await_request(self) -> None:
        """A part of it came; so long may the next one take."""
        self._request_came()
        self._reading = self.loop.call_later(self.client_timeout_s, self._request_is_late)

    def _request_came(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _request_is_late(self) -> None:
        self._reading = None
        if self.flow.read_paused:  # it is not the client that is waited for
            self._await_request()
        else:
            self._cut("did not send the rest of its request")

    # --- the client reads ---

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._sending is None:
            self._sending = self.loop.call_later(self.client_timeout_s, self._cut, "did not read its answer")

    def resume_writing(self) -> None:
        self._client_reads()
        super().resume_writing()

    def _client_reads(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _cut(self, what: str) -> None:
        request_id = (self.scope or {}).get("state", {}).get("request_id", "-")
        _log.warning(
            "a client %s for %g s (--client-timeout) and is cut: id=%s", what, self.client_timeout_s, request_id
        )
        self.transport.abort()
