"""One worker a key, many requests one run, failures alone with their back-off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from quire_operator import telemetry
from quire_operator.backoff import backoff_s
from quire_operator.workqueue import BACKOFF_MAX_S, BACKOFF_MIN_S, Outcome, WorkQueue


@asynccontextmanager
async def running(queue: WorkQueue[str], workers: int = 2) -> AsyncIterator[None]:
    task = asyncio.create_task(queue.run(workers))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_requests_during_a_run_make_exactly_one_more() -> None:
    begun, go, runs = asyncio.Event(), asyncio.Event(), []

    async def work(key: str) -> Outcome:
        runs.append(key)
        begun.set()
        await go.wait()
        return Outcome()

    queue = WorkQueue(work)
    async with running(queue), asyncio.timeout(30):
        for _ in range(5):
            queue.add("a")
        await begun.wait()
        assert runs == ["a"]
        begun.clear()
        for _ in range(5):
            queue.add("a")
        go.set()
        await begun.wait()
    assert runs == ["a", "a"]


async def test_a_key_is_never_worked_on_twice_at_once_but_keys_are_parallel() -> None:
    active: dict[str, int] = {}
    together, both = 0, asyncio.Event()

    async def work(key: str) -> Outcome:
        nonlocal together
        active[key] = active.get(key, 0) + 1
        assert active[key] == 1
        together = max(together, sum(active.values()))
        if together == 2:
            both.set()
        await both.wait()
        active[key] -= 1
        return Outcome()

    queue = WorkQueue(work)
    async with running(queue, workers=4), asyncio.timeout(30):
        for key in ("a", "b", "a", "b"):
            queue.add(key)
        await both.wait()
    assert together == 2


async def test_one_bad_key_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    good, tries = asyncio.Event(), 0

    async def work(key: str) -> Outcome:
        nonlocal tries
        if key == "bad":
            tries += 1
            raise RuntimeError("broken object")
        good.set()
        return Outcome()

    queue = WorkQueue(work)
    async with running(queue, workers=1), asyncio.timeout(30):
        queue.add("bad")
        queue.add("good")
        await good.wait()
    assert tries == 1 and "broken object" in caplog.text


async def test_failures_are_tried_again_and_success_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_operator.workqueue.BACKOFF_MIN_S", 0.001)
    done, tries = asyncio.Event(), 0

    async def work(key: str) -> Outcome:
        nonlocal tries
        tries += 1
        if tries < 3:
            return Outcome(failed=True)
        done.set()
        return Outcome()

    queue = WorkQueue(work)
    async with running(queue), asyncio.timeout(30):
        queue.add("a")
        await done.wait()
    assert tries == 3


async def test_a_run_that_hangs_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_operator.workqueue.BACKOFF_MIN_S", 0.001)
    again, tries = asyncio.Event(), 0

    async def work(key: str) -> Outcome:
        nonlocal tries
        tries += 1
        if tries == 1:
            await asyncio.Event().wait()
        again.set()
        return Outcome()

    queue = WorkQueue(work, deadline_s=0.05)
    async with running(queue), asyncio.timeout(30):
        queue.add("a")
        await again.wait()


async def test_a_timeout_inside_a_run_is_not_taken_for_its_deadline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("quire_operator.workqueue.BACKOFF_MIN_S", 0.001)
    again, tries = asyncio.Event(), 0

    async def work(key: str) -> Outcome:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise TimeoutError("a pod did not answer")
        again.set()
        return Outcome()

    queue = WorkQueue(work)
    async with running(queue), asyncio.timeout(30):
        queue.add("a")
        await again.wait()
    assert "a pod did not answer" in caplog.text and "took longer" not in caplog.text


async def test_what_is_due_is_not_put_off_by_what_failed() -> None:
    """A child that is refused for ever must not slow down the steps of a rollout."""
    enough, tries = asyncio.Event(), 0

    async def work(key: str) -> Outcome:
        nonlocal tries
        tries += 1
        if tries == 20:  # by back-off alone in a quarter of an hour
            enough.set()
        return Outcome(again_s=0.001, failed=True)

    queue = WorkQueue(work)
    async with running(queue), asyncio.timeout(60):
        queue.add("a")
        await enough.wait()


async def test_again_s_comes_back_and_the_earliest_wins() -> None:
    twice, tries = asyncio.Event(), 0

    async def work(key: str) -> Outcome:
        nonlocal tries
        tries += 1
        if tries == 2:
            twice.set()
        return Outcome(again_s=0.01)

    queue = WorkQueue(work)
    async with running(queue), asyncio.timeout(30):
        queue.add("a")
        await twice.wait()
        queue.add_after("b", 100)
        queue.add_after("b", 50)
        queue.add_after("b", 200)
        assert queue._timers["b"].when() - asyncio.get_running_loop().time() <= 50


def test_the_backoff_doubles_up_to_a_bound() -> None:
    assert [backoff_s(n, BACKOFF_MIN_S, BACKOFF_MAX_S) for n in (1, 2, 3, 7, 8, 50, 10**6)] == [
        0.5,
        1,
        2,
        32,
        60,
        60,
        60,
    ]
    assert backoff_s(0, 2.0, 300.0) == 2.0, "never less than the first wait"


async def test_the_depth_is_of_all_queues_together() -> None:
    looked: asyncio.Queue[str] = asyncio.Queue()

    async def work(key: str) -> Outcome:
        looked.put_nowait(key)
        return Outcome()

    one: WorkQueue[str] = WorkQueue(work)
    other: WorkQueue[str] = WorkQueue(work)

    def depth() -> float:
        return telemetry.REGISTRY.get_sample_value("quire_operator_queue_depth") or 0.0

    before = depth()
    for key in ("a", "b", "a"):
        one.add(key)
    other.add("c")
    assert depth() == before + 3
    async with running(other), asyncio.timeout(30):
        assert await looked.get() == "c"
    assert depth() == before + 2
    async with running(one), asyncio.timeout(30):
        assert {await looked.get(), await looked.get()} == {"a", "b"}
    assert depth() == before
