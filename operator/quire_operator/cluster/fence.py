"""The last thing before a write leaves this process: is it still allowed to?

A process can stand still for minutes between a decision and its request (a stopped container, a starved node, a frozen machine). So the
question is asked where nothing can come in between: when the connection is there, right before the head of the request and again
before its body, without which the API server does nothing.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

READS = ("GET", "HEAD", "OPTIONS")
BEFORE = (".send_request_headers.started", ".send_request_body.started")


class FencedTransport(httpx2.AsyncHTTPTransport):
    """`require` raises when this process must not write."""

    def __init__(self, require: Callable[[], None], *, verify: ssl.SSLContext) -> None:
        super().__init__(verify=verify, trust_env=False)
        self._require = require

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method not in READS:
            request.extensions = {**request.extensions, "trace": self._before}
        return await super().handle_async_request(request)

    async def _before(self, name: str, info: Mapping[str, Any]) -> None:
        if name.endswith(BEFORE):
            self._require()
