"""Siblings: the prompt is computed once, blocks are shared and copied before they are written, and each lives on its own."""

from __future__ import annotations

import pytest

from quire.engine.plan import StepPlan
from quire.engine.policy import POLICIES
from quire.engine.results import NO_TOKEN
from quire.engine.scheduler import Scheduler
from quire.request import FinishReason, TokenDelta
from quire_testing.fake_runner import VOCAB, FakeRunner, answer
from quire_testing.scheduling import add, drain, faults, make_scheduler, request, shape, siblings, step

PROMPT = list(range(10))  # two blocks of four and a half one


def family(name: str, count: int, prompt: list[int] = PROMPT, max_tokens: int = 8) -> dict[str, list[int]]:
    """What a request with `count - 1` siblings answers, each as if it were alone."""
    return {name if seed == 0 else f"{name}.{seed}": answer(prompt, max_tokens, seed=seed) for seed in range(count)}


def add_family(scheduler: Scheduler, name: str, count: int, prompt: list[int] = PROMPT, max_tokens: int = 8) -> None:
    assert add(scheduler, request(name, prompt, max_tokens, siblings=siblings(name, count - 1))) is None


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_the_prompt_is_computed_once_and_all_its_blocks_are_shared(prefix_caching: bool) -> None:
    scheduler, runner = make_scheduler(budget=64, prefix_caching=prefix_caching), FakeRunner(64, 4)
    add_family(scheduler, "a", 3)
    plan = scheduler.schedule(0.0)
    assert shape(plan) == [("a", 0, 10), ("a.1", 10, 0), ("a.2", 10, 0)]
    assert (plan.num_tokens, plan.num_prompt_tokens, plan.copies) == (10, 10, [])
    assert scheduler.kv.pool.num_used == 3
    assert [delta.token_ids for delta in scheduler.update(plan, runner.run(plan))] == [
        tokens[:1] for tokens in family("a", 3).values()
    ]
    half = scheduler.running[0].table.block_ids[2]
    plan = scheduler.schedule(0.0)
    assert shape(plan) == [("a", 10, 1), ("a.1", 10, 1), ("a.2", 10, 1)]
    # two get a copy of the half block, the last holder keeps it
    assert [source for source, _ in plan.copies] == [half, half]
    assert scheduler.running[2].table.block_ids[2] == half
    assert scheduler.kv.pool.num_used == 5
    scheduler.update(plan, runner.run(plan))
    got = drain(scheduler, runner)
    assert got == {name: tokens[2:] for name, tokens in family("a", 3).items()}
    assert scheduler.kv.pool.num_used == 0
    assert sum(count for batch in runner.batches for _, start, count in batch if start < 10) == 10


def test_a_prompt_that_fills_its_blocks_needs_no_copy() -> None:
    scheduler, runner = make_scheduler(budget=64), FakeRunner(64, 4)
    add_family(scheduler, "a", 3, prompt=list(range(8)))
    step(scheduler, runner)
    plan = scheduler.schedule(0.0)
    assert plan.copies == []
    assert scheduler.kv.pool.num_used == 2 + 3
    scheduler.update(plan, runner.run(plan))


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_swap_blocks", [0, 16])
def test_answers_are_those_of_separate_requests_under_preemption(
    policy: str, prefix_caching: bool, num_swap_blocks: int
) -> None:
    scheduler = make_scheduler(
        num_blocks=14, budget=7, policy=policy, prefix_caching=prefix_caching, num_swap_blocks=num_swap_blocks
    )
    runner = FakeRunner(14, 4, num_swap_blocks)
    expected: dict[str, list[int]] = {}
    for index, count in enumerate([3, 1, 4, 2]):
        prompt = [index, *PROMPT]
        add_family(scheduler, f"f{index}", count, prompt, max_tokens=20 + index)
        expected |= family(f"f{index}", count, prompt, max_tokens=20 + index)
    assert drain(scheduler, runner) == expected
    assert scheduler.counters.forks == 2 + 3 + 1
    assert scheduler.counters.preemptions > 0
    assert (scheduler.counters.preemptions_swap > 0) == (num_swap_blocks > 0)


def test_siblings_end_at_different_times_without_touching_each_other() -> None:
    expected = family("a", 3, max_tokens=12)
    stop = expected["a.1"][3]
    assert stop not in expected["a.1"][:3]
    scheduler, runner = make_scheduler(budget=64), FakeRunner(64, 4)
    add(scheduler, request("a", PROMPT, 12, siblings=siblings("a", 2), stop_token_ids=(stop,)))
    got = drain(scheduler, runner)
    assert got == {
        name: tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for name, tokens in expected.items()
    }
    assert len({len(tokens) for tokens in got.values()}) > 1


@pytest.mark.parametrize("victim", ["a", "a.1", "a.2"])
@pytest.mark.parametrize("when", ["waiting", "prefilling", "forked", "decoding", "preempted"])
def test_abort_of_any_of_them_leaves_the_others(victim: str, when: str) -> None:
    scheduler, runner = make_scheduler(budget=6, num_blocks=16), FakeRunner(16, 4)
    add_family(scheduler, "a", 3)
    got: dict[str, list[int]] = {}

    def note(deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            got.setdefault(delta.request_id, []).extend(delta.token_ids)

    for _ in range({"waiting": 0, "prefilling": 1, "forked": 2, "decoding": 4, "preempted": 3}[when]):
        note(step(scheduler, runner))
    if when == "preempted":
        while scheduler.running:
            scheduler._preempt(StepPlan())
    assert scheduler.num_waiting == {"waiting": 3, "prefilling": 2, "preempted": 3}.get(when, 0)
    assert scheduler.abort(victim)
    assert not scheduler.abort(victim)
    assert faults(scheduler) == []
    before = set(got)
    while scheduler.has_work:
        note(step(scheduler, runner))
        assert faults(scheduler) == []
    got.pop(victim, None)
    expected = family("a", 3)
    expected.pop(victim)
    assert got == expected
    assert (victim in before) == (when not in ("waiting", "prefilling"))
    assert scheduler.kv.pool.num_used == 0


def test_places_are_kept_for_those_that_will_fork() -> None:
    """Nobody enters while the leader computes the prompt who would take a follower's place."""
    scheduler, runner = make_scheduler(max_num_seqs=4, long_prefill_token_threshold=2), FakeRunner(64, 4)
    scheduler.add(request("first", [1], max_tokens=30), seed=0)
    step(scheduler, runner)
    add_family(scheduler, "a", 3)
    scheduler.add(request("late", [2], max_tokens=2), seed=0)
    order: list[str] = []
    while scheduler.has_work:
        plan = scheduler.schedule(0.0)
        order += [entry.sequence.request_id for entry in plan.scheduled if entry.sequence.request_id not in order]
        scheduler.update(plan, runner.run(plan))
        assert faults(scheduler) == []
    assert order == ["first", "a", "a.1", "a.2", "late"]
    assert max(len(batch) for batch in runner.batches) <= 4


def test_more_siblings_than_places_come_in_turns() -> None:
    scheduler, runner = make_scheduler(max_num_seqs=3, budget=32), FakeRunner(64, 4)
    add_family(scheduler, "a", 8)
    assert scheduler.num_waiting == 8
    assert drain(scheduler, runner) == family("a", 8)
    assert scheduler.counters.forks == 5


def test_a_sibling_reports_what_its_leader_found_and_waited() -> None:
    scheduler, runner = make_scheduler(budget=64), FakeRunner(64, 4)
    scheduler.add(request("warm", PROMPT, max_tokens=1), seed=0)
    drain(scheduler, runner)
    add_family(scheduler, "a", 2)
    deltas = step(scheduler, runner, now=2.5)
    assert [(delta.num_cached_tokens, delta.queue_s) for delta in deltas] == [(8, 2.5)] * 2
    assert scheduler.counters.prefix_queries == 10 + 10


def test_a_row_without_finite_logits_ends_one_sibling() -> None:
    scheduler, runner = make_scheduler(budget=64), FakeRunner(64, 4)
    add_family(scheduler, "a", 3)
    plan = scheduler.schedule(0.0)
    tokens = runner.run(plan)
    deltas = scheduler.update(plan, [NO_TOKEN, *tokens[1:]])
    assert [delta.finish_reason for delta in deltas] == [FinishReason.ERROR, None, None]
    assert faults(scheduler) == []
    assert drain(scheduler, runner) == {name: tokens[1:] for name, tokens in family("a", 3).items() if name != "a"}


def test_an_impossible_family_is_refused_as_a_whole() -> None:
    scheduler = make_scheduler()
    refusal = add(scheduler, request("a", [VOCAB], siblings=siblings("a", 2)))
    assert refusal is not None
    assert not scheduler.has_work
    twice = request("a", [1], siblings=(*siblings("a", 1), *siblings("a", 1)))
    refusal = add(scheduler, twice)
    assert refusal is not None
    assert "'a.1' is already in use" in (refusal.error or "")
    assert not scheduler.has_work
