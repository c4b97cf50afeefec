"""A router with requests of all kinds, beside a test that waits otherwise: what it does is seen on its metrics only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from aiohttp import web

from router_kit import Kit, running


async def busy(_: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "draining", "code": "draining"}}, status=503)


async def breaks(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"data: {}\n\n")
    assert request.transport is not None
    request.transport.abort()
    return response


async def ask_all(kit: Kit) -> None:
    """Answers, requests that are sent again, a stream that breaks, a model that is not there; a watch that fails and lists again."""
    for model in ("m", "nobody"):
        await kit.chat(model)
    try:
        async with kit.client.post(f"{kit.url}/v1/chat/completions", json={"model": "broken"}) as response:
            await response.read()
    except aiohttp.ClientError:
        pass
    kit.kube.answers["endpointslices"] = [410]
    await kit.kube.cut_watches()
    await asyncio.sleep(0.05)


@contextmanager
def routed() -> Iterator[str]:
    """Host and port of its metrics."""
    told = threading.Event()
    done = threading.Event()
    address = ""

    async def drive() -> None:
        nonlocal address
        async with running() as kit:
            await kit.deploy("m", await kit.pod("good"), await kit.pod("busy", busy))
            await kit.deploy("broken", await kit.pod("breaks", breaks))
            address = kit.metrics_url.removeprefix("http://").removesuffix("/metrics")
            told.set()
            while not done.is_set():
                await ask_all(kit)

    thread = threading.Thread(target=asyncio.run, args=(drive(),))
    thread.start()
    try:
        assert told.wait(30), "the router never came up"
        yield address
    finally:
        done.set()
        thread.join()
