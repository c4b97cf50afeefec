"""Streams through a real router: no gathering, back-pressure, breaks, clients that leave, many at once, the official client."""

from __future__ import annotations

import asyncio
import gzip
import json
import time

import aiohttp
import openai
import pytest
from aiohttp import web

from router_kit import FakePod, Kit, Script, eventually, running

SSE = {"Content-Type": "text/event-stream"}


def event(text: str) -> bytes:
    chunk = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def streaming(*pieces: bytes, then: str = "end", gate: asyncio.Event | None = None) -> Script:
    """Sends the pieces, waiting for `gate` after the first; then ends, resets, or waits for ever."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=SSE)
        await response.prepare(request)
        for number, piece in enumerate(pieces):
            if number == 1 and gate is not None:
                await gate.wait()
            await response.write(piece)
        if then == "reset":
            assert request.transport is not None
            request.transport.abort()
        elif then == "wait":
            await asyncio.Event().wait()
        return response

    return script


async def open_stream(kit: Kit) -> aiohttp.ClientResponse:
    return await kit.client.post(f"{kit.url}/v1/chat/completions", json={"model": "m", "stream": True})


async def test_each_event_arrives_before_the_next_is_made() -> None:
    gate = asyncio.Event()
    async with running() as kit:
        pod = await kit.pod("a", streaming(event("one"), event("two"), DONE, gate=gate))
        await kit.deploy("m", pod)
        async with await open_stream(kit) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            assert await response.content.readuntil(b"\n\n") == event("one")
            gate.set()
            assert await response.content.read() == event("two") + DONE


async def test_the_official_client_streams_and_reads_errors() -> None:
    async with running() as kit:
        pod = await kit.pod("a", streaming(event("Hel"), event("lo"), DONE))
        await kit.deploy("m", pod)
        async with openai.AsyncOpenAI(base_url=f"{kit.url}/v1", api_key="k", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Hello"
            assert [model.id async for model in client.models.list()] == ["m"]
            with pytest.raises(openai.NotFoundError, match="'x' does not exist"):
                await client.completions.create(model="x", prompt="")
            pod.script = streaming(event("Hel"), b'data: {"half', then="reset")
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            seen = []
            with pytest.raises(openai.APIError, match="broke off") as caught:
                async for chunk in stream:
                    seen.append(chunk.choices[0].delta.content)
            assert seen == ["Hel"]
            assert caught.value.code == "upstream_broke_off"


async def test_a_stream_that_breaks_ends_with_an_error_event_and_closes() -> None:
    async with running() as kit:
        pod = await kit.pod("a", streaming(event("one"), b"data: {", then="reset"))
        await kit.deploy("m", pod)
        async with await open_stream(kit) as response:
            text = await response.content.read()
        assert text.startswith(event("one") + b"event: error\ndata: ")
        assert text.endswith(b"\n\n")
        assert json.loads(text.split(b"data: ")[-1])["error"]["code"] == "upstream_broke_off"
        assert await kit.metric("quire_router_broken_streams_total", model="m") == 1


@pytest.mark.parametrize("length", [{"Content-Length": "100"}, {}], ids=["with a length", "chunked"])
async def test_an_answer_without_events_that_breaks_is_visibly_incomplete(length: dict[str, str]) -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=length)
        await response.prepare(request)
        await response.write(b"x" * 50)
        assert request.transport is not None
        request.transport.abort()
        return response

    async with running() as kit:
        await kit.deploy("m", await kit.pod("a", script))
        async with await open_stream(kit) as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()


async def test_a_body_that_makes_no_sense_is_cut_rather_than_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_router.relay.LOOK_S", 0.02)
    begun = asyncio.Event()

    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"x" * 50)
        await begun.wait()
        assert request.transport is not None
        request.transport.write(b"no length of a chunk\r\n")
        await asyncio.Event().wait()
        return response

    async with running() as kit, asyncio.timeout(10):
        await kit.deploy("m", await kit.pod("a", script))
        async with await open_stream(kit) as response:
            assert await response.content.readexactly(50) == b"x" * 50
            begun.set()
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()


async def test_a_break_after_the_headers_but_before_the_first_byte_is_retried() -> None:
    async with running() as kit:
        bad = await kit.pod("bad", streaming(then="reset"))
        good = await kit.pod("good", streaming(event("ok"), DONE))
        await kit.deploy("m", bad, good)
        while not bad.bodies:
            async with await open_stream(kit) as response:
                assert await response.content.read() == event("ok") + DONE
        assert await kit.metric("quire_router_retries_total", model="m", reason="reset") == 1


@pytest.mark.parametrize("pieces", [(), (event("one"),)], ids=["before the first byte", "after it"])
async def test_a_client_that_leaves_ends_the_work_of_the_pod_at_once(pieces: tuple[bytes, ...]) -> None:
    async with running() as kit:
        pod = await kit.pod("a", streaming(*pieces, then="wait"))
        await kit.deploy("m", pod)
        request = asyncio.create_task(open_stream(kit))
        await eventually("the pod works", lambda: pod.active == 1)
        if pieces:
            response = await request
            await response.content.readuntil(b"\n\n")
            response.close()
        else:
            request.cancel()
        await eventually("the pod was told", lambda: pod.left == 1)
        await eventually("nothing in flight", lambda: not kit.router.drain._tasks)
        assert await kit.metric("quire_router_requests_total", model="m", code="499") == 1
        assert await kit.metric("quire_router_requests_in_flight", model="m") == 0


async def test_a_client_that_takes_nothing_for_long_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_router.relay.CLIENT_STALL_S", 0.2)

    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=SSE)
        await response.prepare(request)
        while True:
            await response.write(b"data: " + b"x" * 65530 + b"\n\n")

    async with running() as kit:
        pod = await kit.pod("a", flood)
        await kit.deploy("m", pod)
        async with await open_stream(kit):
            await eventually("the pod was told", lambda: pod.left == 1)
        assert await kit.metric("quire_router_requests_total", model="m", code="499") == 1


async def test_a_body_that_stops_arriving_gets_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_router.relay.BODY_SILENCE_S", 0.1)
    async with running() as kit:
        host, port = kit.router.addresses[0]
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        async with asyncio.timeout(10):
            answer = await reader.readuntil(b"\r\n")
        writer.close()
        await writer.wait_closed()
        assert b" 408 " in answer


async def test_compressed_events_pass_untouched() -> None:
    packed = gzip.compress(event("one") + DONE)

    async def script(_: web.Request) -> web.StreamResponse:
        return web.Response(body=packed, headers={**SSE, "Content-Encoding": "gzip"})

    async with running() as kit:
        await kit.deploy("m", await kit.pod("a", script))
        async with await open_stream(kit) as response:
            assert await response.read() == event("one") + DONE


async def test_a_slow_client_slows_the_pod_and_the_router_holds_little() -> None:
    sent = [0]

    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=SSE)
        await response.prepare(request)
        piece = b"data: " + b"x" * 65530 + b"\n\n"
        for _ in range(3200):  # 200 MiB
            await response.write(piece)
            sent[0] += len(piece)
        return response

    async with running() as kit:
        pod = await kit.pod("a", flood)
        await kit.deploy("m", pod)
        async with await open_stream(kit) as response:
            await response.content.readuntil(b"\n\n")
            stalled = 0
            while stalled < 50:  # nothing moves for 50 rounds of the loop
                before = sent[0]
                await asyncio.sleep(0.002)
                stalled = stalled + 1 if sent[0] == before else 0
            # Socket buffers on loopback take a few MB; the rest must wait in the pod.
            assert sent[0] < 32 * 1024 * 1024
            assert pod.active == 1


async def test_two_hundred_streams_at_once_arrive_whole() -> None:
    pieces = [event(f"token {number}") for number in range(20)]

    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=SSE)
        await response.prepare(request)
        for piece in [*pieces, DONE]:
            await response.write(piece)
            await asyncio.sleep(0)
        return response

    async with running() as kit:
        pods = [await kit.pod(name, script) for name in "abcd"]
        await kit.deploy("m", *pods)

        async def one() -> bytes:
            async with await open_stream(kit) as response:
                return await response.content.read()

        async with asyncio.timeout(60):
            answers = await asyncio.gather(*(one() for _ in range(200)))
        assert set(answers) == {b"".join(pieces) + DONE}
        # Equal load: no pod has far more than its share.
        assert max(len(pod.bodies) for pod in pods) < 100


async def test_the_end_of_a_router_refuses_nobody_and_finishes_streams() -> None:
    gate = asyncio.Event()
    async with running(pre_drain_s=0.3, drain_timeout_s=10.0) as kit:
        pod = await kit.pod("a", streaming(event("one"), event("two"), DONE, gate=gate))
        await kit.deploy("m", pod)
        async with await open_stream(kit) as response:
            await response.content.readuntil(b"\n\n")
            kit.stop.set()
            await eventually("draining", lambda: kit.router.drain.draining)
            async with kit.client.get(f"{kit.url}/health/ready") as health:
                assert (health.status, (await health.json())["status"]) == (503, "draining")
            async with kit.client.get(f"{kit.url}/health/live") as health:
                assert health.status == 200
            # A connection that still arrives in the pre-drain is served, and told to come back elsewhere.
            async with aiohttp.ClientSession() as late, late.get(f"{kit.url}/v1/models") as models:
                assert models.status == 200
                assert models.headers["Connection"] == "close"
            assert not kit.task.done()
            gate.set()
            assert await response.content.read() == event("two") + DONE
        async with asyncio.timeout(10):
            await kit.task


async def test_a_stream_that_outlasts_the_drain_is_told_so() -> None:
    async with running(drain_timeout_s=0.1) as kit:
        pod = await kit.pod("a", streaming(event("one"), then="wait"))
        await kit.deploy("m", pod)
        async with await open_stream(kit) as response:
            await response.content.readuntil(b"\n\n")
            kit.stop.set()
            text = await response.content.read()
        assert text.startswith(b"event: error\n")
        assert b"router_shutdown" in text


async def test_a_request_that_outlasts_the_drain_gets_503() -> None:
    async with running(drain_timeout_s=0.1) as kit:
        pod = await kit.pod("a", streaming(then="wait"))
        await kit.deploy("m", pod)
        request = asyncio.create_task(kit.chat())
        await eventually("the pod works", lambda: pod.active == 1)
        kit.stop.set()
        status, body, _ = await request
        assert (status, body["error"]["code"]) == (503, "router_shutdown")


@pytest.mark.timing
async def test_the_router_adds_less_than_two_milliseconds() -> None:
    async def quick(_: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "chat.completion"})

    async with running() as kit:
        pod: FakePod = await kit.pod("a", quick)
        await kit.deploy("m", pod)
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 2000}]}).encode()

        async def cpu_s(url: str) -> float:
            """Processor time of one request; client, router and pod share this process, and others do not count."""
            began = time.process_time()
            for _ in range(200):
                async with kit.client.post(f"{url}/v1/chat/completions", data=body) as response:
                    await response.read()
            return (time.process_time() - began) / 200

        added_s = [await cpu_s(kit.url) - await cpu_s(f"http://127.0.0.1:{pod.port}") for _ in range(3)]
        print(f"added by the router: {[f'{value * 1000:.2f} ms' for value in added_s]}")
        assert min(added_s) < 0.002
