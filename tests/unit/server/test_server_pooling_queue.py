"""Many prompts of one request over a scripted engine: how they wait, and what becomes of them when something ends early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from live_server import Live, ids_of, live_server
from pooling_kit import FACTS, assert_vectors, embed, embedder, near, post, unit, vector_of
from quire.request import PoolRequest
from scripted_engine import ScriptedEngine


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_server(tmp_path, embedder()) as server:
        yield server


async def test_a_client_that_leaves_aborts_its_prompts(live: Live) -> None:
    live.engine.hold()
    task = asyncio.create_task(live.http.post("/v1/embeddings", json={"input": ["a", "b"]}))
    await live.engine.until(lambda: len(live.engine.requests) == 2)
    task.cancel()
    await live.engine.until(lambda: len(live.engine.aborted) == 2)
    assert live.frontend.num_in_flight == 0
    assert await live.metric('quire_requests_finished_total{finish_reason="abort"}') == 2


async def test_failures_and_full_queues(tmp_path: Path) -> None:
    engine = embedder()
    async with live_server(tmp_path, engine, max_queue_size=2, max_num_seqs=1) as live:
        engine.hold()
        waits = [asyncio.create_task(post(live, "/v1/embeddings", input=["a", "b"])) for _ in range(3)]
        await engine.until(lambda: len(engine.requests) == 6)
        response = await live.http.post("/v1/embeddings", json={"input": "d"})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_full")
        assert response.headers["retry-after"] == "1"
        engine.release()
        assert [(await wait)[0] for wait in waits] == [200] * 3
    engine = embedder()
    async with live_server(tmp_path, engine, max_num_seqs=1, queue_timeout=0.2) as live:
        engine.hold()
        waits = [asyncio.create_task(post(live, "/v1/embeddings", input=["a", "b"])) for _ in range(3)]
        for wait in waits:
            status, answer = await wait
            assert (status, answer["error"]["code"]) == (503, "queue_timeout")
        await engine.until(lambda: len(engine.aborted) == len(engine.requests))
    engine = embedder()
    async with live_server(tmp_path, engine) as live:
        engine.hold()
        waits = asyncio.create_task(post(live, "/v1/embeddings", input=["a", "b"]))
        await engine.until(lambda: len(engine.requests) == 2)
        engine.fail(engine.requests[1].request_id, "weights overflow")
        status, answer = await waits
        assert (status, answer["error"]["code"]) == (500, "engine_error")
        assert engine.aborted == [engine.requests[0].request_id]
        waits = asyncio.create_task(post(live, "/v1/embeddings", input="a"))
        await engine.until(lambda: len(engine.requests) == 3)
        engine.die("killed")
        status, answer = await waits
        assert (status, answer["error"]["code"]) == (500, "engine_dead")


MANY = [f"text {number}" for number in range(60)]


async def test_many_prompts_are_one_request_that_waits(tmp_path: Path) -> None:
    """One runs, two may wait: each with more prompts than that, of which the engine has as many as four steps can take."""
    engine = embedder()
    async with live_server(tmp_path, engine, max_queue_size=2, max_num_seqs=1) as live:
        engine.hold()
        waits = []
        for number in (1, 2, 3):
            waits.append(asyncio.create_task(embed(live, MANY)))
            await engine.until(lambda number=number: len(engine.requests) == 4 * number)
            load = (await live.http.get("/load")).json()
            assert (load["waiting"], load["server_load"]) == (number, 4 * number)
        status, answer = await post(live, "/v1/embeddings", input="a")
        assert (status, answer["error"]["code"]) == (503, "queue_full")
        engine.release()
        for wait in waits:
            assert_vectors(await wait, [ids_of(text) for text in MANY])
        assert len(engine.requests) == 3 * len(MANY) and not engine.aborted
        assert (live.frontend.num_in_flight, live.frontend.num_waiting) == (0, 0)


async def test_others_do_not_wait_for_all_prompts_of_a_request(tmp_path: Path) -> None:
    most = 0

    def pool(request: PoolRequest) -> list[float]:
        nonlocal most
        most = max(most, 1 + sum(one.request.request_id.startswith(key) for one in engine._live.values()))
        return unit(request)

    engine = ScriptedEngine(pool=pool, facts=FACTS)
    async with live_server(tmp_path, engine, max_num_seqs=2) as live:
        engine.hold()
        long = asyncio.create_task(embed(live, MANY))
        await engine.until(lambda: len(engine.requests) == 8)
        key = engine.requests[0].request_id.partition("-")[0]
        short = asyncio.create_task(embed(live, "short"))
        await engine.until(lambda: len(engine.requests) == 9)
        engine.release()
        assert near((await short)["data"][0]["embedding"], vector_of(ids_of("short")))
        assert len((await long)["data"]) == len(MANY) and most == 8
    places = {request.request_id: request.arrival_s for request in engine.requests}
    assert list(places.values()) == sorted(places.values()), "each is as old as its turn: sjf knows no other age"
    assert len(set(places.values())) > len(MANY) // 8


async def test_the_window_counts_tokens_too(tmp_path: Path) -> None:
    """40 are what four steps take: two of 15 fit, three do not; the longer one goes alone."""
    engine = embedder()
    async with live_server(tmp_path, engine, max_num_batched_tokens=10, max_num_seqs=10) as live:
        engine.hold()
        prompts = [[5] * 15, [6] * 15, [7] * 15, [8] * 100, [9] * 3]
        wait = asyncio.create_task(embed(live, prompts))
        for there in (2, 3, 4, 5):
            await engine.until(lambda there=there: len(engine.requests) == there)
            engine.step()
        assert_vectors(await wait, prompts)


async def test_what_of_many_prompts_the_engine_has_is_aborted(tmp_path: Path) -> None:
    engine = embedder()
    async with live_server(tmp_path, engine, max_num_seqs=2) as live:
        engine.hold()
        task = asyncio.create_task(live.http.post("/v1/embeddings", json={"input": MANY}))
        await engine.until(lambda: len(engine.requests) == 8)
        engine.step()
        await engine.until(lambda: len(engine.requests) == 16)
        task.cancel()
        await engine.until(lambda: len(engine.aborted) == 8)
        assert engine.aborted == [request.request_id for request in engine.requests[8:]]
        assert (live.frontend.num_in_flight, live.frontend.num_waiting) == (0, 0)
        async with asyncio.timeout(10):
            await live.frontend.drained()
        engine.release()
        assert (await post(live, "/v1/embeddings", input="a"))[0] == 200
    engine = embedder()
    async with live_server(tmp_path, engine, max_num_seqs=2) as live:
        engine.hold()
        wait = asyncio.create_task(post(live, "/v1/embeddings", input=MANY))
        await engine.until(lambda: len(engine.requests) == 8)
        engine.step()
        await engine.until(lambda: len(engine.requests) == 16)
        engine.die("killed")
        status, answer = await wait
        assert (status, answer["error"]["code"]) == (500, "engine_dead")


async def test_while_it_loads_and_drains(tmp_path: Path) -> None:
    async with live_server(tmp_path, embedder(), attach=False) as live:
        response = await live.http.post("/v1/embeddings", json={"input": "a"})
        assert response.status_code == 503 and "retry-after" in response.headers
        assert (await live.http.get("/v1/models/tiny")).json()["tasks"] is None
    engine = embedder()
    async with live_server(tmp_path, engine) as live:
        engine.hold()
        running = asyncio.create_task(post(live, "/v1/embeddings", input="a"))
        await engine.until(lambda: engine.requests)
        live.frontend.drain()
        assert (await post(live, "/v1/embeddings", input="a"))[0] == 503
        engine.release()
        assert (await running)[0] == 200
        await live.frontend.drained()
