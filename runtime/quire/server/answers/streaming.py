"""Answers that take a while: server-sent events, and giving up when the client has left.

A stream's headers are held back until its first event, so that a refusal is still a proper HTTP status; after
`HEADERS_AFTER_S` without one they go out, followed by comments that keep proxies awake. After that a failure is an
`error` event. Every wait here ends at once when the client disconnects (`ClientGoneError`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.server.errors import ClientGoneError, describe

HEADERS_AFTER_S = 10.0
KEEPALIVE_S = 15.0

DONE = b"data: [DONE]\n\n"
_KEEPALIVE = b": waiting\n\n"

T = TypeVar("T")

Describe = Callable[[BaseException, str], Mapping[str, Any]]
"""The data of the event that tells of an exception; the second argument is the request id."""


def event(content: Mapping[str, Any], name: str | None = None) -> bytes:
    """One server-sent event."""
    prefix = f"event: {name}\n".encode() if name else b""
    return prefix + b"data: " + msgspec.json.encode(content) + b"\n\n"


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects (then ClientGoneError)."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        watch.result()
        raise ClientGoneError
    finally:
        for unfinished in (task, watch):
            unfinished.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def answer(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """`unless_gone` for a route whose body has been read."""
    return await unless_gone(request.receive, work)


def openai_error(exc: BaseException, request_id: str) -> Mapping[str, Any]:
    """As the OpenAI API tells of an exception."""
    return describe(exc, request_id)[1]


class EventStream(Response):
    """Sends encoded events as they come. The iterator is closed in every case, which frees what it holds."""

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        request_id: str,
        headers: Mapping[str, str],
        describe: Describe = openai_error,
    ) -> None:
        self._events = events
        self._describe = describe
        self._request_id = request_id
        self._lock = asyncio.Lock()
        self._started = False
        self._sent_s = time.monotonic()
        self.status_code = 200
        self.background = None
        self.init_headers({"content-type": "text/event-stream; charset=utf-8", **_STREAM_HEADERS, **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(receive, self._produce(send))

    async def _produce(self, send: Send) -> None:
        keepalive = asyncio.ensure_future(self._keep_alive(send))
        try:
            async with aclosing(self._events) as events:
                async for data in events:
                    await self._emit(send, data)
        except Exception as exc:
            if not self._started:
                raise
            await self._emit(send, event(self._describe(exc, self._request_id), "error"))
        finally:
            keepalive.cancel()
            with suppress(asyncio.CancelledError):
                await keepalive
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _emit(self, send: Send, data: bytes) -> None:
        async with self._lock:
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._sent_s = time.monotonic()

    async def _keep_alive(self, send: Send) -> None:
        await asyncio.sleep(HEADERS_AFTER_S)
        if not self._started:
            await self._emit(send, _KEEPALIVE)
        while True:
            silence_s = time.monotonic() - self._sent_s
            if silence_s >= KEEPALIVE_S:
                await self._emit(send, _KEEPALIVE)
            else:
                await asyncio.sleep(KEEPALIVE_S - silence_s)


_STREAM_HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
