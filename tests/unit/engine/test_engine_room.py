"""Who may run beside whom: nobody is preempted in vain, promised blocks stay promised, and large families do not empty the batch."""

from __future__ import annotations

import pytest

from quire.engine.policy import POLICIES
from quire.engine.scheduler import Scheduler
from quire_testing.fake_runner import FakeRunner, answer
from quire_testing.scheduling import add, drain, faults, make_scheduler, request, siblings, step


def running(scheduler: Scheduler) -> list[str]:
    return [sequence.request_id for sequence in scheduler.running]


def test_nobody_is_preempted_for_one_that_lacks_blocks_all_the_same() -> None:
    """An urgent one holds half of the pool; another needs more than the lesser ones could give."""
    scheduler, runner = make_scheduler(num_blocks=20, budget=64, policy="priority"), FakeRunner(20, 4)
    scheduler.add(request("urgent", [1] * 35, max_tokens=5), seed=0)
    for name in ("low", "lower"):
        scheduler.add(request(name, [ord(name[-1]) % 30] * 14, max_tokens=6, priority=9), seed=0)
    step(scheduler, runner)
    scheduler.add(request("large", [2] * 50, max_tokens=4), seed=0)
    step(scheduler, runner)
    assert running(scheduler) == ["urgent", "low", "lower"]
    assert scheduler.counters.preemptions == 0
    got = drain(scheduler, runner)
    assert got["large"] == answer([2] * 50, 4)


def test_only_as_many_are_preempted_as_give_the_blocks() -> None:
    scheduler, runner = make_scheduler(num_blocks=20, budget=64, policy="priority"), FakeRunner(20, 4)
    for index in range(3):
        scheduler.add(request(f"low{index}", [index] * 18, max_tokens=8, priority=index + 1), seed=0)
    step(scheduler, runner)
    scheduler.add(request("urgent", [9] * 22, max_tokens=4), seed=0)
    step(scheduler, runner)
    assert running(scheduler) == ["urgent", "low0", "low1"]
    assert scheduler.counters.preemptions == 1


def test_blocks_that_a_lesser_one_shares_with_an_urgent_one_are_not_counted_as_freed() -> None:
    scheduler, runner = make_scheduler(num_blocks=16, budget=64, policy="priority"), FakeRunner(16, 4)
    prompt = [5] * 25
    scheduler.add(request("first", prompt, max_tokens=6), seed=0)
    scheduler.add(request("same", prompt, max_tokens=6, priority=9), seed=0)
    step(scheduler, runner)
    assert scheduler.kv.pool.num_used < 14
    scheduler.add(request("large", [2] * 40, max_tokens=4, priority=1), seed=0)
    step(scheduler, runner)
    assert scheduler.counters.preemptions == 0
    assert running(scheduler) == ["first", "same"]


def test_a_prompt_in_chunks_keeps_the_blocks_it_was_admitted_for() -> None:
    """Eight prompts of which two fit: the others wait instead of starting and being thrown out again."""
    scheduler = make_scheduler(num_blocks=36, budget=16, long_prefill_token_threshold=4, max_model_len=128)
    runner = FakeRunner(36, 4)
    scheduler.add(request("decoding", [1], max_tokens=30), seed=0)
    step(scheduler, runner)
    prompts = {str(index): [index, *(i % 20 for i in range(49))] for index in range(8)}
    for name, prompt in prompts.items():
        scheduler.add(request(name, prompt, max_tokens=1), seed=0)
    got = drain(scheduler, runner)
    assert {name: got[name] for name in prompts} == {name: answer(prompt, 1) for name, prompt in prompts.items()}
    assert scheduler.counters.preemptions == 0


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_family_as_large_as_the_batch_does_not_wait_for_an_empty_one(policy: str, prefix_caching: bool) -> None:
    scheduler = make_scheduler(max_num_seqs=4, budget=64, policy=policy, prefix_caching=prefix_caching)
    runner = FakeRunner(64, 4)
    scheduler.add(request("long", [1] * 5, max_tokens=60), seed=0)
    scheduler.add(request("brief", [2] * 5, max_tokens=2), seed=0)
    step(scheduler, runner)
    prompt = list(range(10))
    assert add(scheduler, request("a", prompt, 4, siblings=siblings("a", 3))) is None
    step(scheduler, runner)
    assert {"long", "brief", "a", "a.1"} <= {*running(scheduler), "brief"}
    got: dict[str, list[int]] = {}
    while any(name.startswith("a") for name in (s.request_id for s in scheduler.sequences())):
        for delta in step(scheduler, runner):
            got.setdefault(delta.request_id, []).extend(delta.token_ids)
        assert faults(scheduler) == []
        assert len(scheduler.running) <= 4
    assert "long" in running(scheduler), "it never had to end first"
    assert scheduler.counters.preemptions == 0
    drain(scheduler, runner)


def test_an_urgent_family_preempts_for_its_first_place_only() -> None:
    """Priority 0 with n = 4 of 4 places, of which one runs at priority 0: the three others give way, not in vain."""
    scheduler, runner = make_scheduler(max_num_seqs=4, budget=64, policy="priority"), FakeRunner(64, 4)
    scheduler.add(request("equal", [1], max_tokens=40), seed=0)
    for index in range(3):
        scheduler.add(request(f"low{index}", [index], max_tokens=20, priority=10), seed=0)
    step(scheduler, runner)
    assert add(scheduler, request("a", [7] * 6, 4, siblings=siblings("a", 3))) is None
    step(scheduler, runner)
    assert "a" in running(scheduler)
    got = drain(scheduler, runner)
    for seed in range(4):
        name = "a" if seed == 0 else f"a.{seed}"
        assert got[name][-3:] == answer([7] * 6, 4, seed=seed)[-3:]


def test_the_budget_bounds_the_places() -> None:
    """Every running sequence gets a token in every step, siblings that forked for nothing included."""
    scheduler, runner = make_scheduler(max_num_seqs=8, budget=3), FakeRunner(64, 4)
    assert add(scheduler, request("a", [1, 2], 6, siblings=siblings("a", 7))) is None
    while scheduler.has_work:
        before = list(scheduler.running)
        plan = scheduler.schedule(0.0)
        planned = {entry.sequence.request_id for entry in plan.scheduled}
        assert all(sequence.request_id in planned for sequence in before)
        scheduler.update(plan, runner.run(plan))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_queue_does_not_keep_what_has_left_it(policy: str) -> None:
    """Clients that give up and come again, behind one that runs for long."""
    scheduler, runner = make_scheduler(max_num_seqs=1, policy=policy), FakeRunner(64, 4)
    scheduler.add(request("first", [1], max_tokens=100), seed=0)
    step(scheduler, runner)
    for index in range(500):
        scheduler.add(request(f"r{index}", [2]), seed=0)
        scheduler.abort(f"r{index}")
    assert len(scheduler.waiting) == 0
    assert len(scheduler.waiting._heap) <= 17
    scheduler.add(request("last", [3]), seed=0)
    assert drain(scheduler, runner)["last"] == answer([3], 4)


def test_what_was_swapped_out_before_a_reset_is_not_found_after_it() -> None:
    scheduler = make_scheduler(num_blocks=10, budget=32, num_swap_blocks=20)
    runner = FakeRunner(10, 4, 20)
    for index in range(3):
        scheduler.add(request(str(index), [index] * 7, max_tokens=15), seed=0)
    while not scheduler.num_swapped:
        step(scheduler, runner)
    (swapped,) = (s for s in scheduler.sequences() if s.host_blocks)
    prompt = list(swapped.tokens)
    scheduler.kv.pool.forget_all()
    while scheduler.num_swapped:
        step(scheduler, runner)
    assert scheduler.kv.find_prefix(scheduler.kv.table(), prompt).num_tokens == 0
    drain(scheduler, runner)
