"""The clients' side of a request: reading its body, and passing an answer on piece by piece.

Called by `proxy`. Nothing is gathered: each piece goes to the client before the next is read from the pod, so a slow client
slows the pod and nothing else. After the first byte nothing is retried; what cannot be completed is ended so that the client sees it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Literal

import aiohttp
from aiohttp import http_exceptions, web

from quire_router import headers
from quire_router.errors import BadRequestError, SlowBodyError, TooLargeError
from quire_router.sse import EventCutter, error_event
from quire_router.upstream import AttemptError

log = logging.getLogger(__name__)

REQUEST_ID = web.RequestKey("request_id", str)
BODY_SILENCE_S = 60.0
"""A client that sends nothing of its body for this long gets 408."""
CLIENT_STALL_S = 300.0
"""A client that takes nothing of its answer for this long counts as gone."""

LOOK_S = 5.0
"""How often a silent pod's connection is looked at: aiohttp does not tell the reader of a body it cannot parse any further."""


class ClientLeftError(Exception):
    """The client closed its connection, or stopped reading, while the answer was being written."""


async def read_body(request: web.Request, *, limit: int) -> bytes:
    """The whole body; raise TooLargeError as soon as it is known to exceed `limit` bytes."""
    too_large = TooLargeError(
        f"the request body is larger than {limit} bytes, the limit of this router (QUIRE_ROUTER_MAX_BODY_BYTES)",
        code="body_too_large",
    )
    if (request.content_length or 0) > limit:
        raise too_large
    pieces, size = [], 0
    try:
        async with asyncio.timeout(BODY_SILENCE_S) as deadline:
            while piece := await request.content.readany():
                size += len(piece)
                if size > limit:
                    raise too_large
                pieces.append(piece)
                deadline.reschedule(asyncio.get_running_loop().time() + BODY_SILENCE_S)
    except TimeoutError:
        raise SlowBodyError(f"nothing of the request body came for {BODY_SILENCE_S:g} s", code="body_timeout") from None
    except (aiohttp.ClientError, web.RequestPayloadError, http_exceptions.BadHttpMessage) as error:
        raise BadRequestError(f"the request body cannot be read: {error}", code="bad_body") from None
    return b"".join(pieces)


class Relay:
    """One answer on its way from a pod to a client. `outcome` says how it went once `run` has returned."""

    def __init__(self, request: web.Request, upstream: aiohttp.ClientResponse) -> None:
        self.outcome: Literal["whole", "broken", "cut"] = "whole"
        self._request = request
        self._upstream = upstream
        plain_events = upstream.content_type == "text/event-stream" and "Content-Encoding" not in upstream.headers
        self._cutter = EventCutter() if plain_events else None
        self._response = web.StreamResponse(
            status=upstream.status, reason=upstream.reason, headers=headers.to_client(upstream.headers)
        )

    @property
    def begun(self) -> bool:
        """Whether the client has got anything."""
        return self._response.prepared

    async def run(self) -> web.StreamResponse:
        """Pass everything on; raise AttemptError when the pod breaks off before the first byte, ClientLeftError when the client does."""
        while True:
            try:
                piece = await self._piece()
            except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
                if not self.begun:
                    raise AttemptError("reset", str(error) or "closed before its first byte") from error
                request_id = self._request[REQUEST_ID]
                log.warning(
                    "the answer to request %s broke off: %s", request_id, str(error) or "its body makes no sense"
                )
                self.outcome = "broken"
                message = f"the replica that answered broke off; request id {request_id}"
                return await self.end(message, code="upstream_broke_off")
            ended = not piece
            if self._cutter is not None:
                piece = self._cutter.rest() if ended else self._cutter.push(piece)
            if not self.begun and (piece or ended):
                await _to_client(self._response.prepare(self._request))
            if piece:
                await _to_client(self._response.write(piece))
            if ended:
                await _to_client(self._response.write_eof())
                return self._response

    async def _piece(self) -> bytes:
        """The next bytes of the pod; b"" at the end."""
        while True:
            try:
                async with asyncio.timeout(LOOK_S) as look:
                    return await self._upstream.content.readany()
            except TimeoutError:
                connection = self._upstream.connection
                if not look.expired() or connection is None or connection.transport is None:
                    raise

    async def cut(self) -> web.StreamResponse:
        """End an answer that has begun because this router ends."""
        self.outcome = "cut"
        return await self.end("this router is shutting down", code="router_shutdown")

    async def end(self, message: str, *, code: str) -> web.StreamResponse:
        """End what cannot be completed: events end with an error, anything else is visibly incomplete."""
        self._response.force_close()
        if self._cutter is not None:
            await _to_client(self._response.write(error_event(message, code=code)))
            await _to_client(self._response.write_eof())
        elif self._request.transport is not None:
            self._request.transport.abort()
        return self._response


async def _to_client(operation: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(CLIENT_STALL_S):
            await operation
    except (ConnectionError, TimeoutError) as error:
        raise ClientLeftError from error
