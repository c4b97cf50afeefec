"""Swapping: what a preempted sequence has computed waits in the host pool, and comes back as it was."""

from __future__ import annotations

import pytest
import torch

from quire.engine.block_ops import measure_swap, move_blocks
from quire.engine.costs import PreemptionCosts
from quire.engine.plan import StepPlan
from quire.engine.scheduler import Scheduler
from quire.engine.sequence import State
from quire.engine.swapping import Swapper
from quire.models.executor import KVPool
from quire_testing.fake_runner import FakeRunner, answer
from quire_testing.scheduling import drain, faults, make_scheduler, request, step


def crowded(*, num_swap_blocks: int, prefix_caching: bool = False, **options: object) -> tuple[Scheduler, FakeRunner]:
    """Three sequences in a pool that holds two of them."""
    scheduler = make_scheduler(
        num_blocks=10, budget=32, num_swap_blocks=num_swap_blocks, prefix_caching=prefix_caching, **options
    )
    for index in range(3):
        scheduler.add(request(str(index), [index] * 7, max_tokens=15), seed=0)
    return scheduler, FakeRunner(10, 4, num_swap_blocks)


def until_swapped(scheduler: Scheduler, runner: FakeRunner) -> dict[str, list[int]]:
    """Step until a sequence is swapped out; what came until then."""
    got: dict[str, list[int]] = {}
    while not scheduler.num_swapped:
        for delta in step(scheduler, runner):
            got.setdefault(delta.request_id, []).extend(delta.token_ids)
    return got


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_swapped_sequence_computes_nothing_again(prefix_caching: bool) -> None:
    scheduler, runner = crowded(num_swap_blocks=20, prefix_caching=prefix_caching)
    got = drain(scheduler, runner)
    assert got == {str(index): answer([index] * 7, 15) for index in range(3)}
    assert scheduler.counters.preemptions_swap > 0
    assert scheduler.counters.preemptions_recompute == 0
    computed: dict[str, int] = {}
    for batch in runner.batches:
        for name, _, count in batch:
            computed[name] = computed.get(name, 0) + count
    assert computed == dict.fromkeys("012", 7 + 14)
    assert scheduler.swap is not None
    assert scheduler.swap.pool.num_used == 0


def test_the_swapped_hold_host_blocks_for_what_they_had_computed() -> None:
    scheduler, runner = crowded(num_swap_blocks=20)
    until_swapped(scheduler, runner)
    (swapped,) = (sequence for sequence in scheduler.sequences() if sequence.state is State.SWAPPED)
    assert scheduler.swap is not None
    assert scheduler.swap.pool.num_used == len(swapped.host_blocks) == scheduler.kv.blocks_for(swapped.num_computed)
    assert not swapped.table.blocks
    assert swapped.num_computed == len(swapped.tokens) - 1
    assert (scheduler.num_swapped, scheduler.num_waiting) == (1, 0)
    assert faults(scheduler) == []


def test_abort_while_swapped_frees_the_host_blocks_at_once() -> None:
    scheduler, runner = crowded(num_swap_blocks=20)
    got = until_swapped(scheduler, runner)
    (swapped,) = (sequence.request_id for sequence in scheduler.sequences() if sequence.state is State.SWAPPED)
    assert scheduler.abort(swapped)
    assert scheduler.swap is not None
    assert (scheduler.num_swapped, scheduler.swap.pool.num_used) == (0, 0)
    assert faults(scheduler) == []
    rest = drain(scheduler, runner)
    for name, tokens in rest.items():
        got[name] += tokens
    got.pop(swapped)
    assert got == {str(index): answer([index] * 7, 15) for index in range(3) if str(index) != swapped}


def test_a_full_host_pool_means_recompute() -> None:
    scheduler, runner = crowded(num_swap_blocks=1)
    got = drain(scheduler, runner)
    assert got == {str(index): answer([index] * 7, 15) for index in range(3)}
    assert (scheduler.counters.preemptions_swap, scheduler.counters.preemptions_recompute > 0) == (0, True)


def test_the_cheaper_way_is_taken() -> None:
    scheduler, runner = crowded(num_swap_blocks=20, costs=PreemptionCosts(10.0, 1.0))
    drain(scheduler, runner)
    assert (scheduler.counters.preemptions_swap, scheduler.counters.preemptions_recompute > 0) == (0, True)


def test_costs_follow_what_was_measured() -> None:
    costs = PreemptionCosts(swap_s_per_block=0.01)
    assert costs.swap_is_cheaper(1, 1), "until a prompt was computed, nothing speaks against swapping"
    costs.observe(num_tokens=100, num_prompt_tokens=100, seconds=0.1)  # 1 ms a token
    assert costs.compute_s_per_token == pytest.approx(0.001)
    assert not costs.swap_is_cheaper(num_tokens=16, num_blocks=1)
    assert costs.swap_is_cheaper(num_tokens=48, num_blocks=2)
    for _ in range(50):
        costs.observe(num_tokens=100, num_prompt_tokens=90, seconds=1.0)
    assert costs.compute_s_per_token == pytest.approx(0.01, rel=0.01)
    costs.observe(num_tokens=64, num_prompt_tokens=2, seconds=60.0)  # decoding: says nothing about chunks
    assert costs.compute_s_per_token == pytest.approx(0.01, rel=0.01)


def test_a_step_has_no_more_of_prompts_than_its_time() -> None:
    """Or liveness takes a large model on a small machine for a hung one."""
    costs = PreemptionCosts(compute_s_per_token=0.5)
    scheduler = make_scheduler(num_blocks=100, budget=512, costs=costs)
    assert scheduler.add(request("a", [5] * 100, max_tokens=2), seed=0) is None
    assert scheduler.schedule(0.0).num_tokens == 30
    assert costs.tokens_of_a_step(8) == 8
    costs.compute_s_per_token = 100.0
    assert costs.tokens_of_a_step(512) == 16, "it goes on all the same"
    for known in (None, 0.0, 0.005):
        costs.compute_s_per_token = known
        assert costs.tokens_of_a_step(512) == 512


def test_what_the_prefix_cache_still_holds_is_not_moved_back() -> None:
    scheduler, runner = make_scheduler(num_blocks=10, budget=32, num_swap_blocks=8), FakeRunner(10, 4, 8)
    scheduler.add(request("a", list(range(10)), max_tokens=6), seed=0)
    first = step(scheduler, runner)
    plan = StepPlan()
    scheduler._preempt(plan)
    assert len(plan.swap_outs) == 3
    runner.run(plan)
    plan = scheduler.schedule(0.0)
    assert len(plan.swap_ins) == 1, "two full blocks are found, the half one comes from the host"
    deltas = first + scheduler.update(plan, runner.run(plan))
    got = [token for delta in deltas for token in delta.token_ids] + drain(scheduler, runner)["a"]
    assert got == answer(list(range(10)), 6)


def pool(num_blocks: int) -> KVPool:
    return KVPool(
        [torch.randn(num_blocks, 4, 2, 3) for _ in range(3)], [torch.randn(num_blocks, 4, 2, 3) for _ in range(3)]
    )


def test_blocks_move_in_all_layers_and_all_at_once() -> None:
    device, host = pool(6), pool(4)
    before = [tensor.clone() for tensor in (*device.keys, *device.values)]
    move_blocks(device, device, [(0, 1), (1, 2), (0, 5)])
    for old, new in zip(before, (*device.keys, *device.values), strict=True):
        assert torch.equal(new, old[[0, 0, 1, 3, 4, 0]])
    before = [tensor.clone() for tensor in (*device.keys, *device.values)]
    move_blocks(device, host, [(5, 0), (4, 3)])
    move_blocks(host, device, [(3, 0)])
    move_blocks(host, device, [])
    for old, new, kept in zip(before, (*device.keys, *device.values), (*host.keys, *host.values), strict=True):
        assert torch.equal(kept[[0, 3]], old[[5, 4]])
        assert torch.equal(new, old[[4, 1, 2, 3, 4, 5]])


def test_measuring_leaves_the_device_as_it_was() -> None:
    device, host = pool(3), pool(20)
    before = [tensor.clone() for tensor in (*device.keys, *device.values)]
    assert measure_swap(device, host) > 0
    assert all(torch.equal(*pair) for pair in zip(before, (*device.keys, *device.values), strict=True))


def test_nothing_comes_back_that_others_have_computed_further_meanwhile() -> None:
    scheduler = make_scheduler(num_swap_blocks=4, block_size=4)
    kv, tokens = scheduler.kv, list(range(9))
    scheduler.add(request("a", tokens), seed=0)
    [sequence] = scheduler.sequences()
    assert scheduler.swap is not None and kv.grow(sequence.table, tokens, 0, 5, [])
    sequence.num_computed = 5
    swapper = Swapper(kv, scheduler.swap, PreemptionCosts())
    assert swapper.put_out(StepPlan(), sequence)
    kv.release(sequence.table)
    other = kv.table()
    assert kv.grow(other, tokens, kv.adopt(other, kv.find_prefix(other, tokens)), 6, [])
    kv.publish_tail(other, tokens, 6)
    kv.release(other)
    plan = StepPlan()
    swapper.bring_back(plan, sequence, kv.adopt(sequence.table, kv.find_prefix(sequence.table, tokens)))
    assert (sequence.num_computed, plan.swap_ins) == (6, []), "the stored block knows less than the one found"
    assert scheduler.swap.pool.num_used == swapper.num_swapped == 0
