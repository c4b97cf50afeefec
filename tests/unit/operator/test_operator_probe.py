"""The scraper and the completion against real HTTP servers on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from operator_kit import KEY, pod
from quire_operator import labels
from quire_operator.observation import pod_views
from quire_operator.probe import Samples, Scraper, Verifier
from quire_operator.probe.samples import TOLD_AFTER, Target
from quire_operator.spec import Key

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PAGE = 'quire_scheduler_queue_size{model_name="m"} 3\nquire_gpu_cache_usage{model_name="m"} 0.25\n'


@asynccontextmanager
async def serving(method: str, path: str, handler: Handler, host: str = "127.0.0.1") -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route(method, path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def table(*addresses: str) -> Samples:
    samples = Samples(10)
    pods = [pod(f"p{number}", "r", status={"podIP": address}) for number, address in enumerate(addresses)]
    samples.set_pods(KEY, pod_views(pods))
    return samples


async def scrape_once(samples: Samples, shown: list[Key]) -> Scraper:
    scraper = Scraper(samples, interval_s=2, timeout_s=3, show=shown.append)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=3)) as session:
        await scraper.round(session)
    return scraper


async def test_a_round_reads_what_answers_and_a_silent_pod_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def metrics(request: web.Request) -> web.Response:
        if request.host.startswith("127.0.0.2"):
            await asyncio.Event().wait()
        return web.Response(text=PAGE)

    async with serving("GET", "/metrics", metrics, host="0.0.0.0") as port:
        monkeypatch.setattr(labels, "ENGINE_PORT", port)
        samples = table("127.0.0.1", "127.0.0.2")
        shown: list[Key] = []
        started = asyncio.get_running_loop().time()
        await scrape_once(samples, shown)
        assert asyncio.get_running_loop().time() - started < 6
        for _ in range(TOLD_AFTER - 1):
            samples.record(Target(KEY, "p1", "127.0.0.2"), None, at=0, wall=0)
        queue, cache = samples.readings(KEY, at=asyncio.get_running_loop().time())
    assert (queue.value, queue.silent, cache.value) == (3.0, ("p1",), 0.25)
    assert shown == [KEY], "the status learns of it"


async def test_a_page_without_the_metric_and_a_refused_connection_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text="other 1\n")

    async with serving("GET", "/metrics", metrics) as port:
        monkeypatch.setattr(labels, "ENGINE_PORT", port)
        samples = table("127.0.0.1", "127.0.0.9")
        for _ in range(TOLD_AFTER):
            await scrape_once(samples, [])
    queue, _ = samples.readings(KEY, at=asyncio.get_running_loop().time())
    assert (queue.value, queue.state, queue.tried) == (None, "Missing", True)


async def ask_until(verifier: Verifier, changed: asyncio.Event, state: str) -> str:
    async with asyncio.timeout(10):
        while True:
            answer = verifier.ask(KEY, uid="u", generation=1, revision="r", model="demo/smol")
            if answer.state == state:
                return answer.reason
            await changed.wait()
            changed.clear()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_operator.probe.completion.PAUSES_S", (0.001,))


@pytest.mark.usefixtures("quick")
async def test_a_completion_is_the_proof_and_is_asked_for_once() -> None:
    bodies = []

    async def completions(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        if len(bodies) < 3:
            return web.json_response({"error": {"message": "no endpoint yet"}}, status=503)
        return web.json_response({"choices": [{"text": " a"}]})

    changed = asyncio.Event()
    async with serving("POST", "/v1/completions", completions) as port:
        verifier = Verifier(f"http://127.0.0.1:{port}", changed=lambda _: changed.set())
        await ask_until(verifier, changed, "Passed")
        assert verifier.ask(KEY, uid="u", generation=1, revision="r", model="demo/smol").state == "Passed"
        await verifier.close()
    assert len(bodies) == 3 and bodies[0]["model"] == "demo/smol" and bodies[0]["max_tokens"] == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        ({"error": {"message": "model not found"}}, 404, "CompletionFailed"),
        ({"choices": []}, 200, "CompletionFailed"),
        ({"hello": "world"}, 200, "CompletionFailed"),
    ],
)
async def test_refusals_are_told(answer: dict[str, object], status: int, reason: str) -> None:
    async def completions(_: web.Request) -> web.Response:
        return web.Response(text=json.dumps(answer), status=status, content_type="application/json")

    changed = asyncio.Event()
    async with serving("POST", "/v1/completions", completions) as port:
        verifier = Verifier(f"http://127.0.0.1:{port}", changed=lambda _: changed.set())
        assert await ask_until(verifier, changed, "Failed") == reason
        await verifier.close()


@pytest.mark.usefixtures("quick")
async def test_an_answer_that_is_no_text_is_told_too() -> None:
    async def completions(_: web.Request) -> web.Response:
        return web.Response(body=b"\xff\xfe", status=200, headers={"Content-Type": "text/plain; charset=no-such"})

    changed = asyncio.Event()
    async with serving("POST", "/v1/completions", completions) as port:
        verifier = Verifier(f"http://127.0.0.1:{port}", changed=lambda _: changed.set())
        assert await ask_until(verifier, changed, "Failed") == "CompletionFailed"
        await verifier.close()


@pytest.mark.usefixtures("quick")
async def test_a_fault_in_the_proof_itself_does_not_leave_it_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(Verifier, "_try", broken)
    changed = asyncio.Event()
    verifier = Verifier("http://127.0.0.1:9", changed=lambda _: changed.set())
    assert await ask_until(verifier, changed, "Failed") == "CompletionFailed"
    await verifier.close()


@pytest.mark.usefixtures("quick")
async def test_an_unreachable_router_is_named() -> None:
    changed = asyncio.Event()
    verifier = Verifier("http://127.0.0.1:9", changed=lambda _: changed.set())
    assert await ask_until(verifier, changed, "Failed") == "RouterUnreachable"
    await verifier.close()
