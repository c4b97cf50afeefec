"""Memory for bodies: all together have a bound, whatever phase their requests are in; short ones pass, and what is over is given back."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from live_server import Live, ids_of, live_server
from quire.errors import OverloadedError
from quire.server.bodies.reading import _READER
from quire.server.edge.layer import Edge
from quire.server.flight.room import BODIES, FREE_BYTES, Room
from scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
LARGEST = 100_000
FULL = 'quire_dropped_requests_total{reason="bodies_full"}'


def body(num_bytes: int, **fields: object) -> bytes:
    """Of about so many bytes."""
    return json.dumps({"prompt": "hi", "user": "x" * num_bytes, **fields}).encode()


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Live]:
    engine = ScriptedEngine(lambda _: ids_of("answer"))
    async with live_server(folder, engine, max_body_size=str(LARGEST)) as live:
        yield live


async def complete(live: Live, data: bytes) -> int:
    """The status."""
    answer = await live.http.post("/v1/completions", content=data)
    if answer.status_code == 503:
        assert (answer.json()["error"]["code"], answer.headers["retry-after"]) == ("bodies_full", "1")
        assert f"all together may take {BODIES * LARGEST}" in answer.json()["error"]["message"]
    return answer.status_code


async def begun(live: Live, number: int) -> None:
    await live.engine.until(lambda: len(live.engine.requests) == number)


def test_room_is_for_all_together() -> None:
    refused: list[str] = []
    room = Room(1_000_000, dropped=refused.append)
    one, other = room.hold(), room.hold()
    one.take(2_000_000)  # alone
    with pytest.raises(
        OverloadedError, match="of other requests take 2000000 bytes, and all together may take 1000000"
    ):
        other.take(FREE_BYTES + 1)
    other = room.hold()
    other.take(FREE_BYTES)
    assert (room.held_bytes, refused) == (2_000_000, ["bodies_full"])
    one.take(900_000)
    other.expect(100_000)
    other.take(100_000)
    assert room.held_bytes == 1_000_000
    with pytest.raises(OverloadedError):
        other.expect(100_001)
    assert room.held_bytes == 900_000, "who is refused holds nothing while he is told"
    one.end()
    one.take(900_000)  # by the thread that was not waited for
    assert room.held_bytes == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_what_waits_for_its_answer_holds_room(tmp_path: Path, stream: bool) -> None:
    async with serving(tmp_path) as live:
        live.engine.hold()
        many = [asyncio.ensure_future(complete(live, body(90_000, stream=stream))) for _ in range(BODIES)]
        await begun(live, BODIES)
        assert await complete(live, body(90_000)) == 503
        assert await live.metric(FULL) == 1
        short = asyncio.ensure_future(complete(live, body(30_000)))
        await begun(live, BODIES + 1)
        live.engine.release()
        assert await asyncio.gather(*many, short) == [200] * (BODIES + 1)
        assert await complete(live, body(90_000)) == 200
        assert await live.metric(FULL) == 1


async def sent(live: Live, stack: AsyncExitStack, data: bytes) -> asyncio.StreamReader:
    """To the server, on a connection that stays open as long as the stack."""
    reader, writer = await asyncio.open_connection("127.0.0.1", live.frontend.config.port)
    stack.callback(writer.close)
    writer.write(data)
    await writer.drain()
    return reader


def head(length: int | None) -> bytes:
    how = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{how}\r\n\r\n".encode()


async def until(what: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(30):
        while not await what():
            pass


@pytest.mark.parametrize("chunked", [False, True])
async def test_what_has_come_of_a_body_holds_room(tmp_path: Path, chunked: bool) -> None:
    part = body(95_000)[:-1]
    async with serving(tmp_path) as live, AsyncExitStack() as gone:
        start = head(None) + b"%x\r\n" % len(part) + part + b"\r\n" if chunked else head(len(part) + 1) + part
        for _ in range(BODIES):
            await sent(live, gone, start)

        async def is_full() -> bool:
            return await complete(live, body(95_000)) == 503

        await until(is_full)
        assert await complete(live, body(1)) == 200
        reader = await sent(live, gone, head(LARGEST))  # told before it is sent
        async with asyncio.timeout(30):
            assert b" 503 " in await reader.readline()
        reader = await sent(live, gone, head(LARGEST + 1))
        async with asyncio.timeout(30):
            assert b" 413 " in await reader.readline()
        await gone.aclose()

        async def has_room() -> bool:
            return await complete(live, body(95_000)) == 200

        await until(has_room)


async def test_a_refused_body_leaves_its_connection_usable(tmp_path: Path) -> None:
    """The rest of it is read and thrown away."""
    async with serving(tmp_path) as live, AsyncExitStack() as gone:
        live.engine.hold()
        many = [asyncio.ensure_future(complete(live, body(90_000))) for _ in range(BODIES)]
        await begun(live, BODIES)
        reader = await sent(live, gone, head(90_000) + b"x" * 90_000 + b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(30):
            assert b" 503 " in await reader.readline()
            await reader.readuntil(b"HTTP/1.1 200 OK")
        live.engine.release()
        await asyncio.gather(*many)


async def test_of_many_at_once_some_are_read(tmp_path: Path) -> None:
    """Those that are refused, and still write, take nothing from the others."""
    data = body(90_000)
    start = head(len(data)).replace(b"host: x", b"host: x\r\nconnection: close")

    async def post(live: Live) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.frontend.config.port)
        writer.write(start + data[:60_000])
        await writer.drain()
        await live.http.get("/version")
        writer.write(data[60_000:])
        line = await reader.readline()
        writer.close()
        return line.split()[1]

    async with serving(tmp_path) as live, asyncio.timeout(60):
        statuses = await asyncio.gather(*(post(live) for _ in range(4 * BODIES)))
        assert set(statuses) <= {b"200", b"503"} and statuses.count(b"200") >= BODIES // 2, statuses


def room_of(live: Live) -> Room:
    layer: Any = live.server.config.app.middleware_stack  # type: ignore[union-attr]
    while not isinstance(layer, Edge):
        layer = layer.app
    return layer._room


async def test_of_many_that_become_large_as_many_are_read_as_there_is_room_for(tmp_path: Path) -> None:
    """They are looked at one behind the other, faster than the event loop can tell anybody that he is refused."""
    wide = json.dumps({"prompt": "hi", "user": "x" * 90_000 + "\U0001f600"}, ensure_ascii=False).encode()
    goes_on = threading.Event()
    async with serving(tmp_path) as live:
        await live.http.get("/version")
        _READER.submit(goes_on.wait, 60)
        try:
            many = [asyncio.ensure_future(complete(live, wide)) for _ in range(BODIES)]

            async def all_came() -> bool:
                await live.http.get("/version")
                return room_of(live).held_bytes >= BODIES * len(wide)

            await until(all_came)
        finally:
            goes_on.set()
        statuses = await asyncio.gather(*many)
        assert statuses.count(200) + statuses.count(503) == BODIES and statuses.count(200) >= 3, statuses

        async def is_empty() -> bool:
            await live.http.get("/version")
            return room_of(live).held_bytes == 0

        await until(is_empty)


async def test_what_a_body_becomes_counts(tmp_path: Path) -> None:
    """Lists take many times the bytes that they are written in."""
    lists = b'{"prompt": "hi", "user": [' + b"[]," * 20_000 + b"[]]}"
    assert len(lists) < LARGEST
    async with serving(tmp_path) as live:
        live.engine.hold()
        first = asyncio.ensure_future(complete(live, lists))
        await begun(live, 1)
        assert await complete(live, lists) == 503
        live.engine.release()
        assert await first == 200
