"""Requests for a model at zero: they wait for its first pod, as many as there is room for, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from quire_router.hold import COST_BYTES, NoPlaceError, WaitingRoom
from router_kit import Kit, answer, endpointslice, eventually, llmdeployment, pod, running

KEY = ("demo", "m")
LONG_S = 300.0


def held(kit: Kit, name: str = "m") -> int:
    return kit.router.room.count(("demo", name))


@asynccontextmanager
async def asking(
    kit: Kit, num: int, *, waiting: int | None = None, **fields: Any
) -> AsyncIterator[list[asyncio.Task[tuple[int, Any, dict[str, str]]]]]:
    """Requests for `m`, of which that many wait (None: all)."""
    tasks = [asyncio.create_task(kit.chat("m", **fields)) for _ in range(num)]
    try:
        expected = num if waiting is None else waiting
        await eventually(f"{expected} requests wait", lambda: held(kit) == expected)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_requests_at_zero_wait_and_are_all_answered_by_the_first_pod() -> None:
    async with running() as kit:
        await kit.deploy("m", least=0)
        only = await kit.pod("a")
        async with asking(kit, 5) as tasks:
            assert await kit.metric("quire_router_requests_held", namespace="demo", deployment="m") == 5
            await kit.condition("m", only, ready=False)
            await eventually("the pod is known", lambda: bool(kit.states("demo/m")))
            assert held(kit) == 5, "a pod that starts answers nobody"
            await kit.condition("m", only)
            answers = await asyncio.gather(*tasks)
        assert [status for status, _, _ in answers] == [200] * 5 and len(only.bodies) == 5
        assert held(kit) == 0
        assert await kit.metric("quire_router_requests_held", namespace="demo", deployment="m") == 0
        assert await kit.metric("quire_router_requests_came_total", namespace="demo", deployment="m") == 5


async def test_a_stream_waits_too_and_nothing_is_sent_before_the_pod_does() -> None:
    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: {}\n\ndata: [DONE]\n\n")
        return response

    async with running() as kit:
        await kit.deploy("m", least=0)
        only = await kit.pod("a", events)

        async def ask() -> tuple[int, bytes]:
            async with kit.client.post(f"{kit.url}/v1/completions", json={"model": "m", "stream": True}) as response:
                return response.status, await response.read()

        task = asyncio.create_task(ask())
        await eventually("it waits", lambda: held(kit) == 1)
        await kit.condition("m", only)
        assert await task == (200, b"data: {}\n\ndata: [DONE]\n\n")


async def test_first_pods_share_what_waited() -> None:
    gate = asyncio.Event()

    async def slow(_: web.Request) -> web.StreamResponse:
        await gate.wait()
        return web.json_response({})

    async with running() as kit:
        await kit.deploy("m", least=0)
        a, b = await kit.pod("a", slow), await kit.pod("b", slow)
        async with asking(kit, 6) as tasks:
            # One list with both: what waits sees them at the same moment.
            kit.router.registry.replace_slices("", [_slice("a", a.port), _slice("b", b.port)])
            await eventually("all are there", lambda: len(a.bodies) + len(b.bodies) == 6)
            gate.set()
            assert [status for status, _, _ in await asyncio.gather(*tasks)] == [200] * 6
        assert (len(a.bodies), len(b.bodies)) == (3, 3)


def _slice(name: str, port: int) -> dict[str, Any]:
    return endpointslice("m", pod("127.0.0.1", name), name=f"m-{name}", port=port)


@pytest.mark.parametrize("least", [None, 1])
async def test_who_does_not_rest_at_zero_is_refused_at_once(least: int | None) -> None:
    async with running() as kit:
        await kit.deploy("m", least=least)
        status, body, headers = await kit.chat("m")
        assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "no_ready_endpoint", "5")


async def test_an_unknown_model_is_unknown_and_no_count_is_made_of_it() -> None:
    async with running() as kit:
        await kit.deploy("m", least=0)
        assert (await kit.chat("other"))[0] == 404
        assert await kit.metric("quire_router_requests_came_total", namespace="demo", deployment="m") == 0


async def test_beyond_the_cap_it_is_503_with_retry_after() -> None:
    async with running(max_held=2) as kit:
        await kit.deploy("m", least=0)
        await kit.deploy("other", least=0)
        async with asking(kit, 2) as tasks:
            status, body, headers = await kit.chat("m")
            assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "no_ready_endpoint", "5")
            assert "2 requests wait for it already" in body["error"]["message"]
            assert await kit.metric("quire_router_requests_not_held_total", deployment="m", reason="full") == 1
            assert await kit.metric("quire_router_requests_came_total", deployment="m") == 3, "who is refused asks too"
            another = asyncio.create_task(kit.chat("other"))
            await eventually("another model has places of its own", lambda: held(kit, "other") == 1)
            only = await kit.pod("a")
            await kit.condition("m", only)
            await kit.condition("other", only)
            assert [status for status, _, _ in await asyncio.gather(*tasks, another)] == [200] * 3


async def test_bytes_that_wait_are_bounded() -> None:
    async with running(max_held_bytes=3 * COST_BYTES) as kit:
        await kit.deploy("m", least=0)
        async with asking(kit, 1, padding="x" * COST_BYTES):
            status, body, _ = await kit.chat("m", padding="x" * COST_BYTES)
            assert status == 503 and "bytes already" in body["error"]["message"]


async def test_who_waits_too_long_gets_503_with_retry_after() -> None:
    async with running(hold_timeout_s=0.05) as kit:
        await kit.deploy("m", least=0)
        status, body, headers = await kit.chat("m")
        assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "no_ready_endpoint", "5")
        assert "0.05 s after this request came" in body["error"]["message"]
        assert held(kit) == 0
        assert await kit.metric("quire_router_requests_not_held_total", deployment="m", reason="late") == 1


async def test_a_client_that_leaves_gives_its_place_back() -> None:
    async with running(max_held=1) as kit:
        await kit.deploy("m", least=0)
        async with asking(kit, 1) as tasks:
            tasks[0].cancel()
            await eventually("the place is free", lambda: held(kit) == 0)
        only = await kit.pod("a")
        async with asking(kit, 1) as tasks:
            await kit.condition("m", only)
            assert (await tasks[0])[0] == 200
        assert len(only.bodies) == 1


async def test_a_model_that_is_deleted_lets_go_of_who_waits() -> None:
    async with running() as kit:
        await kit.deploy("m", least=0)
        async with asking(kit, 1) as tasks:
            await kit.kube.delete("llmdeployments", "demo", "m")
            status, body, _ = await tasks[0]
        assert (status, body["error"]["code"]) == (404, "model_not_found")


async def test_an_edit_of_what_it_waits_for_loses_nobody() -> None:
    async with running() as kit:
        await kit.deploy("m", least=0)
        async with asking(kit, 1) as tasks:
            await kit.kube.put("llmdeployments", llmdeployment("m", least=1, servedName="m"))
            await eventually("the edit is known", lambda: not _from_zero(kit))
            await kit.condition("m", await kit.pod("a"))
            assert (await tasks[0])[0] == 200


def _from_zero(kit: Kit) -> bool:
    route = kit.router.registry.resolve("demo/m")
    return route is not None and route.deployment.from_zero


async def test_a_pod_that_refused_and_comes_back_is_asked_again() -> None:
    async with running() as kit:
        only = await kit.pod("a")
        await kit.deploy("m", only, least=0)

        async def starts_again(_: web.Request) -> web.StreamResponse:
            await kit.condition("m", only, terminating=True)
            await eventually("it is known to be going", lambda: not kit.ready("demo/m"))
            only.script = answer
            return web.json_response({"error": {"code": "draining", "message": "x"}}, status=503)

        only.script = starts_again
        async with asking(kit, 1) as tasks:
            await kit.condition("m", only)
            assert (await tasks[0])[0] == 200


async def test_a_pod_that_went_meanwhile_is_waited_for_again() -> None:
    """The router still believes in the last pod when the request comes; by the time it is refused the pod is known to be gone."""
    async with running() as kit:
        old, new = await kit.pod("old"), await kit.pod("new")
        await kit.deploy("m", old, least=0)

        async def last_words(request: web.Request) -> web.StreamResponse:
            await kit.condition("m", old, terminating=True)
            await eventually("it is known to be going", lambda: not kit.ready("demo/m"))
            return web.json_response({"error": {"code": "draining", "message": "x"}}, status=503)

        old.script = last_words
        async with asking(kit, 1) as tasks:
            await kit.condition("m", new)
            assert (await tasks[0])[0] == 200
        assert len(new.bodies) == 1


async def test_a_router_that_ends_waits_for_them_and_then_says_so() -> None:
    async with running(drain_timeout_s=0.1) as kit:
        await kit.deploy("m", least=0)
        async with asking(kit, 1) as tasks:
            kit.stop.set()
            status, body, headers = await tasks[0]
        assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "router_shutdown", "1")


async def test_while_a_router_drains_they_are_still_answered() -> None:
    async with running(drain_timeout_s=LONG_S) as kit:
        await kit.deploy("m", least=0)
        async with asking(kit, 1) as tasks:
            kit.stop.set()
            await eventually("it drains", lambda: kit.router.drain.draining)
            await kit.condition("m", await kit.pod("a"))
            assert (await tasks[0])[0] == 200


def test_a_place_is_given_back_whatever_happens() -> None:
    room = WaitingRoom(most=1, most_bytes=10 * COST_BYTES)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), room.place(KEY, 10):
            assert room.count(KEY) == 1
            raise ZeroDivisionError
    assert room.count(KEY) == 0
    with room.place(KEY, 9 * COST_BYTES), pytest.raises(NoPlaceError), room.place(("demo", "x"), 0):
        pass
    with room.place(KEY, 9 * COST_BYTES):
        pass


async def test_a_change_is_heard_by_whoever_waits() -> None:
    room = WaitingRoom(most=2, most_bytes=10 * COST_BYTES)
    with room.place(KEY, 0) as one, room.place(KEY, 0) as other:
        room.look_again()
        assert one.is_set() and other.is_set()
        one.clear()
        room.look_again()
        assert one.is_set()
