"""The seam to the engine fails in every way: calls that raise, hang or come late, reports that are none. Whose fault it is answers, no one else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from live_server import Live, events_of, ids_of, live_server
from quire.errors import EngineDeadError
from quire.request import AddRequest, FinishReason, StepOutputs, TokenDelta, TokenLogprobs
from scripted_engine import ScriptedEngine


class Faulty(ScriptedEngine):
    """fails: what `add` (its n-th call) and `abort` do instead, "hang" or an exception."""

    def __init__(self) -> None:
        super().__init__(lambda _: ids_of("abcdef"))
        self.add_fails: dict[int, Any] = {}
        self.abort_fails: Any = None
        self.num_added = 0
        self.num_aborts = 0

    async def add(self, request: AddRequest, /) -> None:
        self.num_added += 1
        await happen(self.add_fails.get(self.num_added))
        await super().add(request)

    async def abort(self, request_ids: Sequence[str], /) -> None:
        self.num_aborts += 1
        self._noticed.set()
        await happen(self.abort_fails)
        await super().abort(request_ids)

    def report(self, *deltas: TokenDelta) -> None:
        """Whatever is said here."""
        self._events.put_nowait(StepOutputs(deltas=list(deltas), stats=self.stats(deltas)))
        self._changed.set()


async def happen(fault: Any) -> None:
    if fault == "hang":
        await asyncio.Event().wait()
    if fault is not None:
        raise fault


@pytest.fixture
async def engine() -> Faulty:
    return Faulty()


@pytest.fixture
async def live(tmp_path: Path, engine: Faulty) -> AsyncIterator[Live]:
    async with live_server(tmp_path, engine) as server:
        yield server


async def clean(live: Live) -> None:
    """Nothing is left of what failed, and the next request is answered."""
    assert live.frontend.num_in_flight == 0
    response = await live.chat()
    assert (response.status_code, response.json()["choices"][0]["message"]["content"]) == (200, "abcdef")
    assert live.frontend.num_in_flight == 0


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error, of the status or of the last event."""
    if response.status_code != 200:
        found: dict[str, Any] = response.json()["error"]
        return found
    *_, last = events_of(response.text)
    assert last.startswith("error!"), response.text
    found = json.loads(last.removeprefix("error!"))["error"]
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (ValueError("a bug"), 500, "internal_error"),
        (OSError("a socket"), 500, "internal_error"),
        (EngineDeadError("gone"), 500, "engine_dead"),
        ("hang", 503, "queue_timeout"),
    ],
)
async def test_a_request_that_is_not_taken(
    tmp_path: Path, engine: Faulty, fault: Any, status: int, code: str, call: int, stream: bool
) -> None:
    """The first prompt, or the second one with the first already running: what was taken is aborted."""
    async with live_server(tmp_path, engine, queue_timeout=0.2 if fault == "hang" else 300) as live:
        await not_taken(live, engine, fault, status, code, call, stream)


async def not_taken(live: Live, engine: Faulty, fault: Any, status: int, code: str, call: int, stream: bool) -> None:
    engine.add_fails = {call: fault}
    engine.hold()
    response = await live.complete(["a", "b"], stream=stream)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert "a bug" not in response.text and "a socket" not in response.text
    if status == 503:
        assert int(response.headers["retry-after"]) >= 1
    if call == 2:
        await engine.until(lambda: engine.requests[0].request_id in engine.aborted)
    engine.release()
    assert live.frontend.num_in_flight == 0
    if fault != "hang":  # the time that a request may wait is too short there
        await clean(live)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", [ValueError("a bug"), EngineDeadError("gone"), "hang"])
async def test_an_abort_that_fails_holds_no_answer_back(live: Live, engine: Faulty, fault: Any, stream: bool) -> None:
    engine.abort_fails = fault
    async with asyncio.timeout(10):
        response = await live.chat(stop=["c"], stream=stream)
    assert response.status_code == 200 and "error" not in response.text
    assert engine.num_aborts == 1
    assert ('"ab"' in response.text) if not stream else ('"b"' in response.text)
    await clean(live)


@pytest.mark.parametrize("fault", [ValueError("a bug"), "hang"])
async def test_an_abort_that_fails_for_a_client_that_left(live: Live, engine: Faulty, fault: Any) -> None:
    engine.abort_fails = fault
    engine.hold()
    task = asyncio.create_task(live.chat())
    await engine.until(lambda: engine.requests)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await engine.until(lambda: engine.num_aborts)
    engine.release()  # it was never told, and goes on: its reports are nobody's
    await clean(live)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", [RuntimeError("half a frame"), msgspec.DecodeError("no frame"), None])
async def test_reports_that_end_are_the_end_of_all(live: Live, engine: Faulty, fault: Any, stream: bool) -> None:
    engine.hold()
    task = asyncio.create_task(live.chat(stream=stream))
    await engine.until(lambda: engine.requests)
    engine.step()
    if fault is None:
        await engine.close()
    else:
        engine._events.put_nowait(fault)
        engine._changed.set()
    async with asyncio.timeout(10):
        error = error_of(await task)
    assert error["code"] == "engine_dead" and "half a frame" not in error["message"]
    assert (await live.http.get("/health/ready")).status_code == 503
    assert (await live.http.get("/health/live")).status_code == 503
    assert (await live.chat()).status_code == 500
    assert live.frontend.num_in_flight == 0


async def test_reports_for_nobody_and_after_the_end_are_nobodys(live: Live, engine: Faulty) -> None:
    engine.hold()
    task = asyncio.create_task(live.chat())
    await engine.until(lambda: engine.requests)
    request_id = engine.requests[0].request_id
    engine.report(TokenDelta(request_id="nobody", token_ids=[5, 6]), TokenDelta(request_id="", token_ids=[]))
    engine.report(TokenDelta(request_id=request_id, token_ids=ids_of("ab"), finish_reason=FinishReason.LENGTH))
    engine.report(TokenDelta(request_id=request_id, token_ids=ids_of("cd")))
    engine.report(TokenDelta(request_id=request_id, token_ids=[], finish_reason=FinishReason.ERROR, error="late"))
    choice = (await task).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("ab", "length")
    engine._live.clear()
    engine.release()
    await clean(live)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "logprobs",
    [[], [TokenLogprobs([], [], 0)], [TokenLogprobs([5], [float("nan")], 0)] * 3, [TokenLogprobs([5, 6], [0.0], 0)]],
)
async def test_a_report_that_makes_no_sense_fails_its_request_alone(
    live: Live, engine: Faulty, logprobs: list[TokenLogprobs], stream: bool
) -> None:
    """Whatever becomes of it, it ends, and nobody else's answer is touched."""
    engine.hold()
    bad = asyncio.create_task(live.chat("bad", logprobs=True, top_logprobs=1, stream=stream))
    await engine.until(lambda: len(engine.requests) == 1)
    good = asyncio.create_task(live.chat("good"))
    await engine.until(lambda: len(engine.requests) == 2)
    request_id = engine.requests[0].request_id
    engine.report(TokenDelta(request_id=request_id, token_ids=[5, 6], logprobs=logprobs))
    engine.report(TokenDelta(request_id=request_id, token_ids=[10**6, 2**40], finish_reason=FinishReason.LENGTH))
    async with asyncio.timeout(10):
        response = await bad
    if response.status_code != 200 or "event: error" in response.text:
        assert error_of(response)["code"] == "internal_error"
    engine._live.pop(request_id, None)
    engine.release()
    assert (await good).json()["choices"][0]["message"]["content"] == "abcdef"
    await clean(live)


async def test_reports_of_many_tokens_of_none_and_without_stats_of_sense(live: Live, engine: Faulty) -> None:
    engine.hold()
    task = asyncio.create_task(live.chat())
    await engine.until(lambda: engine.requests)
    request_id = engine.requests[0].request_id
    stats = msgspec.structs.replace(
        engine.stats([]), num_blocks=0, num_blocks_used=-1, step_s=-5.0, prefix_cache_hits=-3
    )
    engine._events.put_nowait(StepOutputs(deltas=[TokenDelta(request_id=request_id, token_ids=[])], stats=stats))
    engine.report(TokenDelta(request_id=request_id, token_ids=ids_of("x" * 90), finish_reason=FinishReason.STOP))
    assert (await task).json()["choices"][0]["message"]["content"] == "x" * 90
    for path in ("/metrics", "/load", "/health/ready"):
        assert (await live.http.get(path)).status_code == 200
    engine._live.clear()
    engine.release()
    await clean(live)
