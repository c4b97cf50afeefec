"""Load and faults: full queues, clients that leave, an engine that fails, hangs or dies, drain, health, metrics."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from live_server import Live, events_of, ids_of, live_server
from quire.errors import OverloadedError
from quire.request import AddRequest
from quire.server.answers import streaming
from quire.server.flight.frontend import State
from scripted_engine import ScriptedEngine


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_server(
        tmp_path, ScriptedEngine(lambda _: ids_of("abcdef")), max_num_seqs=1, max_queue_size=1
    ) as server:
        yield server


async def started(live: Live, count: int = 1, **fields: Any) -> list[asyncio.Task[httpx.Response]]:
    """Requests that the engine has received."""
    before = len(live.engine.requests)
    tasks = [asyncio.create_task(live.chat(**fields)) for _ in range(count)]
    await live.engine.until(lambda: len(live.engine.requests) == before + count)
    return tasks


async def test_beyond_the_queue_503_with_retry_after(live: Live) -> None:
    live.engine.hold()
    tasks = await started(live, 2)
    refused = await live.chat()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
    assert int(refused.headers["retry-after"]) >= 1
    assert "--max-queue-size is 1" in refused.json()["error"]["message"]
    assert await live.metric('quire_dropped_requests_total{reason="queue_full"}') == 1
    for path in ("/health/live", "/health/ready"):
        assert (await live.http.get(path)).status_code == 200
    live.engine.release()
    assert [(await task).status_code for task in tasks] == [200, 200]
    assert (await live.chat()).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unforeseen_failure_is_a_500_in_the_usual_form(live: Live, stream: bool) -> None:
    async def add(request: AddRequest, /) -> None:
        raise ValueError("a bug")

    live.engine.add = add  # type: ignore[method-assign]
    response = await live.chat(stream=stream)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (500, "internal_error")
    assert error["request_id"] == response.headers["x-request-id"]
    assert "a bug" not in error["message"]


async def test_waiting_too_long_is_503_and_aborts(tmp_path: Path) -> None:
    async with live_server(tmp_path, ScriptedEngine(lambda _: ids_of("abc")), queue_timeout=0.05) as live:
        live.engine.hold()
        for stream in (False, True):
            response = await live.chat(stream=stream)
            assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_timeout")
            assert "retry-after" in response.headers
        assert live.engine.aborted == [request.request_id for request in live.engine.requests]
        assert await live.metric('quire_dropped_requests_total{reason="queue_timeout"}') == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after_first_token", [False, True])
async def test_a_client_that_leaves_is_aborted_at_once(live: Live, stream: bool, after_first_token: bool) -> None:
    live.engine.hold()
    (task,) = await started(live, stream=stream)
    if after_first_token:
        live.engine.step()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await live.engine.until(lambda: live.engine.aborted)
    assert live.engine.aborted == [live.engine.requests[0].request_id]
    assert live.frontend.num_in_flight == 0
    assert await live.metric('quire_requests_finished_total{finish_reason="abort"}') == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_its_prompt_is_made_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    """That is done in a thread, which nobody can end."""
    caplog.set_level(logging.INFO, logger="quire.access")
    async with live_server(tmp_path, ScriptedEngine(lambda _: ids_of("abc"), max_model_len=1000)) as live:
        live.engine.hold()
        tokenizer, began, goes_on = live.frontend.tokenizer, threading.Event(), threading.Event()
        encode = tokenizer.encode

        def slow(*args: Any, **options: Any) -> Any:
            began.set()
            assert goes_on.wait(30)
            return encode(*args, **options)

        monkeypatch.setattr(tokenizer, "encode", slow)
        task = asyncio.create_task(live.complete(["hello world " * 14] * 128, stream=stream))
        assert await asyncio.to_thread(began.wait, 30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        goes_on.set()
        monkeypatch.undo()
        async with asyncio.timeout(30):
            while "POST /v1/completions 499" not in caplog.text:
                await live.http.get("/version")
        assert live.engine.aborted == [request.request_id for request in live.engine.requests]
        assert live.frontend.num_in_flight == 0


async def test_a_fault_of_one_request_is_its_own(live: Live) -> None:
    live.engine.hold()
    bad, good = await started(live, 2)
    bad_id = next(r.request_id for r in live.engine.requests)
    live.engine.fail(bad_id, "bad grammar")
    live.engine.release()
    statuses = sorted([(await bad).status_code, (await good).status_code])
    assert statuses == [200, 500]
    failed = next(r for r in (bad.result(), good.result()) if r.status_code == 500)
    error = failed.json()["error"]
    assert "bad grammar" in error["message"]
    assert error["request_id"] == failed.headers["x-request-id"]


async def test_after_the_first_byte_a_fault_is_an_error_event(live: Live) -> None:
    live.engine.hold()
    (task,) = await started(live, stream=True)
    live.engine.step()
    live.engine.fail(live.engine.requests[0].request_id, "boom")
    response = await task
    assert response.status_code == 200
    *_, last = events_of(response.text)
    assert last.startswith("error!")
    assert "boom" in json.loads(last.removeprefix("error!"))["error"]["message"]
    assert "[DONE]" not in response.text


async def test_the_death_of_the_engine_reaches_everyone(live: Live) -> None:
    live.engine.hold()
    (streamed,) = await started(live, stream=True)
    live.engine.step()
    (whole,) = await started(live)
    live.engine.die("killed by SIGKILL")
    *_, last = events_of((await streamed).text)
    assert json.loads(last.removeprefix("error!"))["error"]["code"] == "engine_dead"
    failed = await whole
    assert failed.status_code == 500
    assert failed.json()["error"]["request_id"] == failed.headers["x-request-id"]
    for path in ("/health/ready", "/health/live", "/health"):
        response = await live.http.get(path)
        assert (response.status_code, response.json()["state"]) == (503, "dead")
        assert "SIGKILL" in response.json()["message"]
    assert (await live.chat()).status_code == 500
    assert await live.metric('quire_requests_finished_total{finish_reason="error"}') == 2


async def test_while_loading_it_lives_but_is_not_ready(tmp_path: Path) -> None:
    async with live_server(tmp_path, ScriptedEngine(lambda _: []), attach=False) as live:
        live.frontend.stage = "starting the engine"
        assert (await live.http.get("/health/live")).status_code == 200
        ready = await live.http.get("/health/ready")
        assert (ready.status_code, ready.json()["stage"]) == (503, "starting the engine")
        assert "retry-after" in ready.headers
        for response in (
            await live.chat(),
            await live.complete(),
            await live.http.post("/tokenize", json={"prompt": "x"}),
        ):
            assert (response.status_code, response.json()["error"]["code"]) == (503, "loading")
        assert (await live.http.get("/v1/models")).json()["data"][0]["max_model_len"] is None
        page = (await live.http.get("/metrics")).text
        assert "quire_scheduler_queue_size{" not in page  # not known yet: absent, not zero


async def test_draining_refuses_new_and_lets_running_ones_finish(live: Live) -> None:
    live.engine.hold()
    (task,) = await started(live)
    live.frontend.drain()
    assert live.frontend.state is State.DRAINING
    ready = await live.http.get("/health/ready")
    assert (ready.status_code, ready.json()["state"]) == (503, "draining")
    assert (await live.http.get("/health/live")).status_code == 200
    refused = await live.chat()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    live.engine.release()
    assert (await task).status_code == 200
    async with asyncio.timeout(5):
        await live.frontend.drained()


async def test_cutting_ends_what_is_left(live: Live) -> None:
    live.engine.hold()
    (task,) = await started(live)
    live.frontend.cut(OverloadedError("the server was shut down", reason="draining"))
    assert (await task).status_code == 503
    async with asyncio.timeout(5):
        await live.frontend.drained()


async def test_liveness_fails_only_for_silence_with_work(tmp_path: Path) -> None:
    now = [0.0]
    async with live_server(tmp_path, ScriptedEngine(lambda _: ids_of("abc")), clock=lambda: now[0]) as live:

        async def status() -> int:
            return (await live.http.get("/health/live")).status_code

        now[0] += 1000
        assert await status() == 200  # idle
        live.engine.hold()
        (task,) = await started(live)
        now[0] += 29
        assert await status() == 200
        live.engine.step()  # a sign of life
        async with live.http.stream("GET", "/health/live"):  # the report is read before the next request is answered
            pass
        now[0] += 29
        assert await status() == 200
        now[0] += 2
        hung = await live.http.get("/health/live")
        assert (hung.status_code, (await live.http.get("/health/ready")).status_code) == (503, 503)
        assert "no sign of life for 30 s" in hung.json()["message"]
        live.engine.release()
        await task
        assert await status() == 200


async def test_long_waits_get_headers_and_comments(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "HEADERS_AFTER_S", 0.01)
    monkeypatch.setattr(streaming, "KEEPALIVE_S", 0.01)
    live.engine.hold()
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with live.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        lines = response.aiter_lines()
        assert await anext(lines) == ": waiting"
        live.engine.release()
        assert any([line == "data: [DONE]" async for line in lines])


async def test_the_metrics_of_the_contract(live: Live) -> None:
    await live.chat()
    page = (await live.http.get("/metrics")).text
    for name in (
        "scheduler_queue_size", "num_requests_executing", "num_requests_swapped", "gpu_cache_usage", "batch_size_bucket",
        "batch_inference_latency_ms_count", "avg_prompt_throughput", "avg_generation_throughput",
        "request_duration_seconds_count", "request_queue_time_seconds_count", "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count", "request_prompt_tokens_count", "request_generation_tokens_count",
        "prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
        "preemptions_total", "requests_finished_total", "dropped_requests_total", "startup_seconds",
        "last_step_timestamp_seconds", "engine_info",
    ):  # fmt: skip
        rows = [row for row in page.splitlines() if row.startswith(f"quire_{name}{{")]
        assert rows, name
        assert all('model_name="tiny"' in row for row in rows)
    for absent in ("gpu_utilization", "gpu_mem_util", "cpu_cache_usage", "_created"):
        assert absent not in page
    assert await live.metric("quire_generation_tokens_total") == 7
    assert await live.metric("quire_time_to_first_token_seconds_count") == 1
    assert await live.metric("quire_inter_token_latency_seconds_count") == 6
    assert await live.metric('quire_requests_finished_total{finish_reason="stop"}') == 1


async def test_metrics_that_fail_reach_no_request(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B049: whatever a metrics library says of a number, of steps, tokens and ends."""

    def fail(*_: object, **__: object) -> None:
        raise ValueError("Counters can only be incremented by non-negative amounts.")

    monkeypatch.setattr(live.frontend.metrics, "_bound", fail)
    for stream in (False, True):
        assert (await live.chat(stream=stream)).status_code == 200
    assert (await live.chat(temperature=-1)).status_code == 400
    assert live.frontend.num_in_flight == 0
    assert "a metric could not be recorded" in caplog.text


async def test_load_tells_what_a_balancer_wants(live: Live) -> None:
    live.engine.hold()
    (task,) = await started(live)
    load = (await live.http.get("/load")).json()
    assert (load["server_load"], load["waiting"], load["state"]) == (1, 1, "ready")
    live.engine.release()
    await task
