"""The leak check: whatever is wrong with the books is found when idle, logged, counted and healed; the engine goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from quire.engine import audit
from quire.engine.core import EngineCore
from quire.engine.scheduler import Scheduler
from quire.kvcache.pool import BlockPool
from quire.request import AddRequest, SamplingParams
from quire_testing.cores import generate, make_core
from quire_testing.fake_runner import FakeRunner, answer
from quire_testing.scheduling import drain, faults, make_scheduler, request
from quire_testing.tiny_llama import make_model, save_folder

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def leak(pool: BlockPool) -> None:
    pool.take()


def lose(pool: BlockPool) -> None:
    """A block falls out of the free list."""
    block = pool._sentinel.next
    assert block is not None
    pool._unlink(block)


def miscount(pool: BlockPool) -> None:
    pool.num_free -= 3


def tear(pool: BlockPool) -> None:
    """The free list ends in the middle."""
    block = pool.blocks[5]
    block.next = None


def loop(pool: BlockPool) -> None:
    """The free list bites its tail."""
    first = pool._sentinel.next
    assert first is not None
    assert first.next is not None
    first.next.next = first


def share(pool: BlockPool) -> None:
    """A free block is marked as held."""
    pool.blocks[7].references = 2


def misname(pool: BlockPool) -> None:
    """A name leads to a block that is called otherwise."""
    key, block = next(iter(pool._by_key.items()))
    block.key = bytes(reversed(key))


DAMAGE: list[Callable[[BlockPool], None]] = [leak, lose, miscount, tear, loop, share, misname]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_healed(damage: Callable[[BlockPool], None]) -> None:
    scheduler, runner = make_scheduler(num_blocks=16, num_swap_blocks=4), FakeRunner(16, 4, 4)
    scheduler.add(request("a", list(range(20)), max_tokens=4), seed=0)
    assert drain(scheduler, runner) == {"a": answer(list(range(20)), 4)}
    damage(scheduler.kv.pool)
    assert faults(scheduler) != []
    audit.heal(scheduler)
    assert faults(scheduler) == []
    assert scheduler.kv.pool.num_free == 16
    still_good(scheduler, runner)


def still_good(scheduler: Scheduler, runner: FakeRunner) -> None:
    """The whole pool serves again, and what it finds is right."""
    for prompt in (list(range(20)), [1] * 60, list(range(20))):
        scheduler.add(request("again", prompt, max_tokens=4), seed=0)
        assert drain(scheduler, runner) == {"again": answer(prompt, 4)}


def test_names_survive_where_they_are_right() -> None:
    scheduler, runner = make_scheduler(num_blocks=16), FakeRunner(16, 4)
    scheduler.add(request("a", list(range(20)), max_tokens=4), seed=0)
    drain(scheduler, runner)
    leak(scheduler.kv.pool)
    audit.heal(scheduler)
    scheduler.add(request("b", list(range(20)), max_tokens=1), seed=0)
    drain(scheduler, runner)
    assert scheduler.counters.prefix_hits == 16


def test_the_host_pool_is_checked_too() -> None:
    scheduler = make_scheduler(num_swap_blocks=4)
    assert scheduler.swap is not None
    leak(scheduler.swap.pool)
    assert [fault for fault in faults(scheduler) if "host pool" in fault]
    audit.heal(scheduler)
    assert faults(scheduler) == []


def test_healing_with_live_sequences_keeps_what_they_hold() -> None:
    scheduler, runner = make_scheduler(num_blocks=16), FakeRunner(16, 4)
    for name in "ab":
        scheduler.add(request(name, [*range(8), ord(name) % 40], max_tokens=9), seed=0)
    plan = scheduler.schedule(0.0)
    first = {d.request_id: d.token_ids for d in scheduler.update(plan, runner.run(plan))}
    leak(scheduler.kv.pool)
    scheduler.kv.pool.blocks[scheduler.running[0].table.block_ids[0]].references = 9
    audit.heal(scheduler)
    assert faults(scheduler) == []
    got = drain(scheduler, runner)
    assert {name: first[name] + got[name] for name in got} == {
        name: answer([*range(8), ord(name) % 40], 9) for name in "ab"
    }


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> EngineCore:
    return make_core(save_folder(make_model(), tmp_path_factory.mktemp("tiny")), num_blocks=64)


def test_the_engine_checks_once_after_work_and_goes_on(core: EngineCore, caplog: pytest.LogCaptureFixture) -> None:
    expected = generate(core, [[5, 6, 7]], GREEDY)
    core.check()
    assert core.stats().kv_faults == 0
    leak(core.scheduler.kv.pool)
    core.check()
    assert core.stats().kv_faults == 0, "nothing has happened since the last check"
    core.add(AddRequest(request_id="x", prompt_token_ids=[1], params=GREEDY, arrival_s=0.0))
    core.check()
    assert core.stats().kv_faults == 0, "there is work"
    core.abort(["x"])
    with caplog.at_level(logging.ERROR):
        core.check()
    assert core.stats().kv_faults == 1
    (record,) = caplog.records
    assert record.message.startswith("the KV cache's books do not balance (1 faults, healed): block ")
    assert core.stats().num_blocks_used == 0
    assert generate(core, [[5, 6, 7]], GREEDY) == expected
    core.check()
    assert core.stats().kv_faults == 1
