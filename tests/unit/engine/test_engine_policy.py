"""Who comes first and who gives way, under each policy: order, bounds of waiting, fairness to the preempted."""

from __future__ import annotations

import random

import pytest

from quire.engine.policy import AGEING_TOKENS_PER_S, POLICIES
from quire.engine.scheduler import Scheduler
from quire_testing.fake_runner import VOCAB, FakeRunner, answer
from quire_testing.scheduling import drain, faults, make_scheduler, request, step

ALL = sorted(POLICIES)


def admission_order(scheduler: Scheduler, runner: FakeRunner) -> list[str]:
    """Request ids by when they were first computed; runs all to the end."""
    drain(scheduler, runner)
    seen: dict[str, None] = {}
    for batch in runner.batches:
        for name, _, _ in batch:
            seen.setdefault(name)
    return list(seen)


def test_first_come_first_served_does_not_read_priorities_or_lengths() -> None:
    scheduler = make_scheduler(max_num_seqs=1, policy="fcfs")
    for name, length, priority in [("a", 9, 9), ("b", 5, 0), ("c", 1, -5)]:
        scheduler.add(request(name, [1] * length, priority=priority), seed=0)
    assert admission_order(scheduler, FakeRunner(64, 4)) == ["a", "b", "c"]


def test_the_lowest_priority_number_first_then_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=1, policy="priority")
    for name, priority in [("a", 5), ("b", 0), ("c", 5), ("d", -3), ("e", 0)]:
        scheduler.add(request(name, [1], priority=priority), seed=0)
    assert admission_order(scheduler, FakeRunner(64, 4)) == ["d", "b", "e", "a", "c"]


def test_the_shortest_prompt_first_then_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=1, policy="sjf")
    for name, length in [("a", 9), ("b", 3), ("c", 9), ("d", 1)]:
        scheduler.add(request(name, [ord(name) % VOCAB] * length), seed=0)
    assert admission_order(scheduler, FakeRunner(64, 4)) == ["d", "b", "a", "c"]


def test_shortest_first_passes_nobody_for_longer_than_its_bound() -> None:
    """B037: small requests pass a large one, but none that arrive p / AGEING_TOKENS_PER_S seconds after it."""
    length = 100
    bound_s = length / AGEING_TOKENS_PER_S
    scheduler, runner = make_scheduler(max_num_seqs=1, policy="sjf", budget=128), FakeRunner(64, 4)
    scheduler.add(request("first", [1], max_tokens=2), seed=0)
    step(scheduler, runner)
    scheduler.add(request("long", [2] * length, max_tokens=2, arrival_s=10.0), seed=0)
    for index in range(40):  # a small one every twentieth of the bound, for twice the bound
        scheduler.add(request(f"s{index}", [3], max_tokens=2, arrival_s=10.0 + index * bound_s / 20), seed=0)
    order = admission_order(scheduler, runner)
    passed = order.index("long") - 1
    assert 0 < passed <= 20
    assert order == ["first", *(f"s{i}" for i in range(passed)), "long", *(f"s{i}" for i in range(passed, 40))]


def test_an_urgent_request_starts_in_the_next_step_and_all_others_end() -> None:
    """B038: eight of priority 10, then one of 0, then a trickle of 5; four may run, and the pool is small."""
    scheduler = make_scheduler(num_blocks=16, block_size=4, max_num_seqs=4, budget=32, policy="priority")
    runner = FakeRunner(16, 4)
    prompts = {f"low{i}": [i + 1] * 10 for i in range(8)}
    for name, prompt in prompts.items():
        scheduler.add(request(name, prompt, max_tokens=12, priority=10), seed=0)
    got: dict[str, list[int]] = {}

    def go() -> set[str]:
        deltas = step(scheduler, runner)
        for delta in deltas:
            got.setdefault(delta.request_id, []).extend(delta.token_ids)
        assert faults(scheduler) == []
        return {delta.request_id for delta in deltas}

    for _ in range(3):
        go()
    prompts["urgent"] = [20] * 10
    scheduler.add(request("urgent", prompts["urgent"], max_tokens=12, priority=0), seed=0)
    assert "urgent" in go(), "its first token comes with the next step"
    for index in range(6):
        prompts[f"mid{index}"] = [30, index]
        scheduler.add(request(f"mid{index}", prompts[f"mid{index}"], max_tokens=12, priority=5), seed=0)
        go()
        go()
    bound = sum(len(prompt) + 12 for prompt in prompts.values())
    steps = 0
    while scheduler.has_work:
        go()
        steps += 1
        assert steps <= bound
    assert scheduler.counters.preemptions > 0
    assert got == {name: answer(prompt, 12) for name, prompt in prompts.items()}


def test_equal_priorities_do_not_preempt_each_other_for_a_place() -> None:
    scheduler, runner = make_scheduler(max_num_seqs=1, policy="priority"), FakeRunner(64, 4)
    for name in "abc":
        scheduler.add(request(name, [1], priority=3), seed=0)
    drain(scheduler, runner)
    assert scheduler.counters.preemptions == 0


def test_an_urgent_request_takes_no_more_than_it_needs() -> None:
    """Where there is room for it, nobody is preempted; where a place is missing, one is, the last in rank."""
    scheduler, runner = make_scheduler(max_num_seqs=3, policy="priority"), FakeRunner(64, 4)
    for name, priority in [("a", 8), ("b", 9)]:
        scheduler.add(request(name, [1], priority=priority), seed=0)
    step(scheduler, runner)
    for count, name in enumerate(["urgent", "very"]):
        scheduler.add(request(name, [2], priority=-count), seed=0)
        step(scheduler, runner)
        assert scheduler.counters.preemptions == count
    assert [sequence.request_id for sequence in scheduler.running] == ["very", "urgent", "a"]
    assert [sequence.request_id for sequence in scheduler.waiting] == ["b"]


@pytest.mark.parametrize("policy", ALL)
def test_the_preempted_return_before_equal_newcomers(policy: str) -> None:
    scheduler = make_scheduler(num_blocks=8, block_size=4, max_num_seqs=4, budget=32, policy=policy)
    runner = FakeRunner(8, 4)
    for name in "abc":
        scheduler.add(request(name, [ord(name) % VOCAB] * 7, max_tokens=12), seed=0)
    while scheduler.counters.preemptions == 0:
        step(scheduler, runner)
    (preempted,) = {sequence.request_id for sequence in scheduler.waiting if sequence.admitted is not None}
    scheduler.add(request("new", [9] * 7, max_tokens=12), seed=0)
    entered: list[str] = []
    while scheduler.has_work:
        before = {sequence.request_id for sequence in scheduler.running}
        plan = scheduler.schedule(0.0)
        entered += [e.sequence.request_id for e in plan.scheduled if e.sequence.request_id not in before]
        scheduler.update(plan, runner.run(plan))
    assert entered.index(preempted) < entered.index("new")


@pytest.mark.parametrize("policy", ALL)
def test_the_first_in_rank_is_never_preempted_and_every_step_advances_it(policy: str) -> None:
    """Overload with random lengths, priorities and arrivals: the first of all always moves on, and all answers are right."""
    rng = random.Random(5)
    scheduler = make_scheduler(num_blocks=24, block_size=4, max_num_seqs=6, budget=12, policy=policy)
    runner = FakeRunner(24, 4)
    waiting = [
        (f"r{i}", [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 40))], rng.randrange(1, 30)) for i in range(60)
    ]
    expected = {name: answer(prompt, max_tokens) for name, prompt, max_tokens in waiting}
    got: dict[str, list[int]] = {}
    now = 0.0
    while waiting or scheduler.has_work:
        now += 0.1
        if waiting and rng.random() < 0.3:
            name, prompt, max_tokens = waiting.pop()
            new = request(name, prompt, max_tokens=max_tokens, priority=rng.randrange(4), arrival_s=now)
            assert scheduler.add(new, seed=0) is None
        first = scheduler.running[0] if scheduler.running else None
        computed = first.num_computed if first else 0
        urgent = first is not None and any(scheduler.waiting.outranks(other, first) for other in scheduler.waiting)
        for delta in step(scheduler, runner, now):
            got.setdefault(delta.request_id, []).extend(delta.token_ids)
        if first is not None and not urgent:
            assert first.num_computed > computed
        assert faults(scheduler) == []
    assert scheduler.counters.preemptions > 5
    assert got == expected


@pytest.mark.parametrize("policy", ALL)
def test_sequences_that_ended_in_the_queue_never_come_out(policy: str) -> None:
    """B029: one runs, three wait, two of them leave; the last starts right after the first."""
    scheduler, runner = make_scheduler(max_num_seqs=1, policy=policy), FakeRunner(64, 4)
    for name in "abcd":
        scheduler.add(request(name, [ord(name) % VOCAB], max_tokens=3), seed=0)
    step(scheduler, runner)
    scheduler.abort("b")
    scheduler.abort("c")
    assert len(scheduler.waiting) == 1
    assert admission_order(scheduler, runner) == ["a", "d"]


def test_books_balance_through_shared_prefixes_aborts_and_evictions() -> None:
    """B031: 64 blocks, 500 requests from 5 prefixes; after each step every block is free, cached or held, exactly once."""
    rng = random.Random(11)
    prefixes = [[rng.randrange(VOCAB) for _ in range(rng.randrange(8, 40))] for _ in range(5)]
    scheduler, runner = make_scheduler(num_blocks=64, block_size=4, max_num_seqs=12, budget=48), FakeRunner(64, 4)
    pool = scheduler.kv.pool
    live: set[str] = set()
    added = evictions = 0
    while added < 500 or scheduler.has_work:
        while added < 500 and len(live) < 20:
            prompt = rng.choice(prefixes) + [rng.randrange(VOCAB) for _ in range(rng.randrange(0, 12))]
            scheduler.add(request(f"r{added}", prompt, max_tokens=rng.randrange(1, 16)), seed=0)
            live.add(f"r{added}")
            added += 1
        if rng.random() < 0.3:
            name = rng.choice(sorted(live))
            assert scheduler.abort(name)
            live.discard(name)
        cached = {block.key for block in pool.blocks if block.key is not None}
        for delta in step(scheduler, runner):
            if delta.finish_reason is not None:
                live.discard(delta.request_id)
        evictions += len(cached - {block.key for block in pool.blocks})
        free = {block.id for block in pool.free_blocks()}
        held = {block.id for block in pool.blocks if block.references}
        assert len(free) + len(held) == 64
        assert not free & held
        assert faults(scheduler) == []
    assert evictions > 100
    assert pool.num_used == 0


@pytest.mark.parametrize("salts", [("one", "two"), ("one", None), (None, "salt:"), ("a", "a\0")])
def test_two_salts_never_share(salts: tuple[str | None, str | None]) -> None:
    scheduler, runner = make_scheduler(budget=64), FakeRunner(64, 4)
    prompt = list(range(20))
    hits: list[int] = []
    for name, salt in [("a", salts[0]), ("b", salts[1]), ("c", salts[0]), ("d", salts[1])]:
        scheduler.add(request(name, prompt, cache_salt=salt), seed=0)
        assert drain(scheduler, runner) == {name: answer(prompt, 4)}
        hits.append(scheduler.counters.prefix_hits - sum(hits))
    assert hits == [0, 0, 16, 16]


def test_salts_do_not_share_within_a_step_either() -> None:
    scheduler, runner = make_scheduler(budget=64), FakeRunner(64, 4)
    for name, salt in [("a", "x"), ("b", "y"), ("c", "x")]:
        scheduler.add(request(name, list(range(12)), cache_salt=salt), seed=0)
    plan = scheduler.schedule(0.0)
    assert [entry.num_tokens for entry in plan.scheduled] == [12, 12, 4]
    a, b, c = (set(entry.sequence.table.block_ids) for entry in plan.scheduled)
    assert not a & b
    assert len(a & c) == 2
    scheduler.update(plan, runner.run(plan))
