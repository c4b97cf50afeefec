"""A request comes whole or not at all: it is one that waits, however many prompts and answers it has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from live_server import Live, ids_of, live_server
from quire.config import ServeConfig
from quire.request import SamplingParams
from quire.server.flight.admission import MAX_SEQUENCES, MOST_SEQUENCES, queue_full
from scripted_engine import ScriptedEngine


@dataclass(eq=False)
class Asked:
    """What admission reads of a job."""

    num_live: int
    begun: bool = False


def refused(
    *jobs: Asked,
    num: int = 1,
    running: int = 4,
    waiting: int = 2,
    there: int | None = None,
    engine_has_queue: bool = False,
) -> bool:
    config = ServeConfig.model_validate({"model": "m", "max_num_seqs": running, "max_queue_size": waiting})
    there = sum(job.num_live for job in jobs) if there is None else there
    return queue_full(cast(Any, jobs), there, num, config, engine_has_queue=engine_has_queue) is not None


@pytest.mark.parametrize(
    ("jobs", "full"),
    [
        ([], False),
        ([Asked(4, begun=True)], False),  # it waits, as the first of two
        ([Asked(4, begun=True), Asked(1)], False),
        ([Asked(4, begun=True), Asked(1), Asked(100)], True),
        ([Asked(3, begun=True), Asked(1), Asked(1), Asked(1)], True),  # the first of them has a place, two wait
        ([Asked(3, begun=True), Asked(1), Asked(1)], False),
        ([Asked(100), Asked(1)], False),  # the first begins at once, with four of its own
        ([Asked(100), Asked(1), Asked(1)], True),
        ([Asked(100, begun=True), Asked(1), Asked(1)], True),
        ([Asked(0, begun=True)] * 9 + [Asked(3)], False),  # their readers are slow: the engine is done with them
    ],
)
def test_what_waits_are_requests_that_have_not_begun(jobs: Sequence[Asked], full: bool) -> None:
    assert refused(*jobs) is full
    assert refused(*jobs, num=1024) is full, "however many sequences it has"


def test_where_none_may_wait_a_free_place_is_enough() -> None:
    assert not refused(num=100, waiting=0)
    assert not refused(Asked(3, begun=True), num=100, waiting=0)
    assert refused(Asked(4, begun=True), waiting=0)
    assert refused(Asked(2), Asked(2), waiting=0)


def test_a_place_of_an_engine_that_lets_others_wait_is_none() -> None:
    assert refused(Asked(1, begun=True), Asked(1), Asked(1), engine_has_queue=True)
    assert not refused(Asked(1, begun=True), Asked(1), Asked(1))


def test_sequences_are_bounded_all_the_same() -> None:
    """A few words may ask for a thousand answers."""
    assert not refused(there=MOST_SEQUENCES - 8, num=8, waiting=9999)
    assert refused(there=MOST_SEQUENCES - 8, num=9, waiting=9999)
    assert not refused(there=0, num=MAX_SEQUENCES, running=1, waiting=0)
    assert not refused(there=MOST_SEQUENCES, num=1, waiting=MOST_SEQUENCES), "who lets more wait means it"


async def waits(live: Live, prompts: list[str], **fields: Any) -> asyncio.Task[Any]:
    """A request that the engine has."""
    before = len(live.engine.requests)
    task = asyncio.create_task(live.complete(prompts, **fields))
    count = len(prompts) * fields.get("n", 1)
    await live.engine.until(lambda: len(live.engine.requests) == before + count)
    return task


MANY = [f"prompt {number}" for number in range(8)]


@pytest.mark.parametrize("stream", [False, True])
async def test_many_prompts_are_served_whole_or_refused_whole(tmp_path: Path, stream: bool) -> None:
    """One sequence runs and one request waits. Each has 24 sequences."""
    engine = ScriptedEngine(lambda request: ids_of(f"{len(request.prompt_token_ids)}"))
    async with live_server(tmp_path, engine, max_num_seqs=1, max_queue_size=1) as live:
        engine.hold()
        first = await waits(live, MANY, n=3, stream=stream)
        second = await waits(live, MANY, n=3, stream=stream)
        assert (await live.http.get("/load")).json()["waiting"] == 2
        for prompts in (MANY, ["one"]):
            response = await live.complete(prompts, stream=stream)
            assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_full")
            assert response.json()["error"]["message"] == "the queue is full: 1 requests wait, --max-queue-size is 1"
        assert len(engine.requests) == 48 and not engine.aborted, "nothing of what was refused came to the engine"
        engine.release()
        for task in (first, second):
            response = await task
            assert response.status_code == 200 and "error" not in response.text
            if not stream:
                choices = response.json()["choices"]
                assert [choice["index"] for choice in choices] == list(range(24))
                assert all(choice["text"] for choice in choices)
            else:
                assert response.text.count('"finish_reason":"stop"') == 24 and response.text.endswith(
                    "data: [DONE]\n\n"
                )
        assert (live.frontend.num_in_flight, live.frontend.num_waiting) == (0, 0)
        assert await live.metric('quire_dropped_requests_total{reason="queue_full"}') == 2


async def test_what_has_begun_is_served_to_its_end(tmp_path: Path) -> None:
    """The time to wait in the queue is over when one prompt was scheduled, also for the others."""
    engine = ScriptedEngine(lambda _: ids_of("abc"))
    async with live_server(tmp_path, engine, max_num_seqs=1, queue_timeout=2.0) as live:
        engine.hold()
        task = await waits(live, MANY)
        first = engine._live.pop(engine.requests[0].request_id)
        others, engine._live = engine._live, {first.request.request_id: first}
        for _ in range(4):
            engine.step()
        done, _ = await asyncio.wait({task}, timeout=2.5)  # more than the others may wait
        assert not done
        engine._live = others
        engine.release()
        assert [choice["text"] for choice in (await task).json()["choices"]] == ["abc"] * 8


async def test_more_sequences_than_a_request_may_have(tmp_path: Path) -> None:
    async with live_server(tmp_path, ScriptedEngine(), max_num_seqs=1, max_queue_size=0) as live:
        response = await live.complete(MANY, n=128, max_tokens=1)
        assert response.status_code == 200 and len(response.json()["choices"]) == MAX_SEQUENCES
        response = await live.complete([*MANY, "one more"], n=128)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "n")
        assert error["message"] == "prompts times n (or best_of) must be at most 1024, got 1152; send several requests"
        assert len(live.engine.requests) == MAX_SEQUENCES


async def test_what_the_engine_has_ended_takes_no_place(tmp_path: Path) -> None:
    """Nobody has read a word of it yet."""
    async with live_server(tmp_path, ScriptedEngine(lambda _: ids_of("abc")), max_num_seqs=1, max_queue_size=0) as live:
        params = live.frontend.tokenizer.resolve(SamplingParams(max_tokens=8), room=8)
        async with live.frontend.job([[5]], [params]) as job, asyncio.timeout(10):
            while job.num_live:
                await live.http.get("/load")
            assert (await live.complete("next")).status_code == 200
            assert "".join([piece.text async for piece in job]) == "abc"
