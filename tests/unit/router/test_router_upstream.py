"""The router's connections to pods."""

from __future__ import annotations

import asyncio
import socket

from aiohttp import web

from quire_router.settings import Settings
from quire_router.upstream import DEAD_S, open_session
from router_kit import running


async def begun(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


async def test_a_dead_host_is_noticed_by_its_silence() -> None:
    async with running() as kit, open_session(Settings()) as session:
        pod = await kit.pod("a", begun)
        async with session.get(f"http://127.0.0.1:{pod.port}/v1/models") as response:
            assert response.connection is not None and response.connection.transport is not None
            sock = response.connection.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            read = {
                name: sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
                for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
            }
        assert read["TCP_USER_TIMEOUT"] == DEAD_S * 1000
        assert read["TCP_KEEPIDLE"] + read["TCP_KEEPINTVL"] * read["TCP_KEEPCNT"] <= DEAD_S
