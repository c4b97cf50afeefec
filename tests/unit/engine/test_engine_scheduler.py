"""What each step computes: budget, order, chunks, preemption, aborts, refusals."""

from __future__ import annotations

import pytest

from quire.engine.plan import StepPlan
from quire.engine.results import NO_TOKEN, NOT_YET
from quire.engine.scheduler import Scheduler
from quire.engine.sequence import State
from quire.request import FinishReason, TokenDelta
from quire_testing.fake_runner import VOCAB, FakeRunner, answer
from quire_testing.scheduling import add, drain, faults, make_scheduler, request, shape, siblings, step


def test_decodes_come_first_and_prompts_fill_the_rest_of_the_budget() -> None:
    scheduler, runner = make_scheduler(budget=8), FakeRunner(64, 4)
    scheduler.add(request("a", [1, 2, 3]), seed=0)
    plan = scheduler.schedule(0.0)
    assert shape(plan) == [("a", 0, 3)]
    scheduler.update(plan, runner.run(plan))
    scheduler.add(request("b", list(range(10))), seed=0)
    scheduler.add(request("c", [4, 5]), seed=0)
    plan = scheduler.schedule(0.0)
    assert shape(plan) == [("a", 3, 1), ("b", 0, 7)]
    assert (plan.num_tokens, plan.num_prompt_tokens) == (8, 7)
    assert [entry.samples for entry in plan.scheduled] == [True, False]
    scheduler.update(plan, runner.run(plan))
    assert shape(scheduler.schedule(0.0)) == [("a", 4, 1), ("b", 7, 3), ("c", 0, 2)]


def test_no_more_sequences_than_allowed() -> None:
    scheduler, runner = make_scheduler(max_num_seqs=2, budget=100), FakeRunner(64, 4)
    for name in "abc":
        scheduler.add(request(name, [1], max_tokens=2), seed=0)
    assert len(scheduler.schedule(0.0).scheduled) == 2
    assert len(scheduler.waiting) == 1
    assert set(drain(scheduler, runner)) == set("abc")


def test_a_prompt_found_in_full_computes_one_block() -> None:
    scheduler, runner = make_scheduler(), FakeRunner(64, 4)
    prompt = list(range(12))
    scheduler.add(request("a", prompt, max_tokens=1), seed=0)
    drain(scheduler, runner)
    scheduler.add(request("b", prompt, max_tokens=1), seed=0)
    plan = scheduler.schedule(0.0)
    assert shape(plan) == [("b", 8, 4)]
    (delta,) = scheduler.update(plan, runner.run(plan))
    assert delta.num_cached_tokens == 8
    assert (scheduler.counters.prefix_queries, scheduler.counters.prefix_hits) == (24, 8)


def test_sequences_of_one_step_share_a_prefix() -> None:
    scheduler, runner = make_scheduler(budget=64), FakeRunner(64, 4)
    for name in "abc":
        scheduler.add(request(name, [*range(8), 30, ord(name) % VOCAB], max_tokens=3), seed=0)
    assert shape(scheduler.schedule(0.0)) == [("a", 0, 10), ("b", 8, 2), ("c", 8, 2)]
    assert scheduler.kv.pool.num_used == 2 + 3
    got = drain_from_start("abc", runner)
    assert got == {name: answer([*range(8), 30, ord(name) % VOCAB], 3) for name in "abc"}


def drain_from_start(names: str, runner: FakeRunner) -> dict[str, list[int]]:
    scheduler = make_scheduler(budget=64)
    for name in names:
        scheduler.add(request(name, [*range(8), 30, ord(name) % VOCAB], max_tokens=3), seed=0)
    return drain(scheduler, runner)


def test_the_newest_is_preempted_and_loses_nothing() -> None:
    scheduler, runner = make_scheduler(num_blocks=6, block_size=4, budget=64), FakeRunner(6, 4)
    prompts = {"old": [1] * 7, "new": [2] * 7}
    for name, prompt in prompts.items():
        scheduler.add(request(name, prompt, max_tokens=15), seed=0)
    got = drain(scheduler, runner)
    assert scheduler.counters.preemptions > 0
    assert got == {name: answer(prompt, 15) for name, prompt in prompts.items()}
    resumed = {name for batch in runner.batches for name, start, count in batch if start + count > 8 and count > 1}
    assert resumed == {"new"}


def test_a_prompt_leaves_a_token_to_each_sequence_behind_it() -> None:
    """A long prompt that comes first in rank cannot stall those that decode behind it."""
    scheduler, runner = make_scheduler(budget=8, policy="priority"), FakeRunner(64, 4)
    for name in "ab":
        scheduler.add(request(name, [1, 2], max_tokens=20, priority=5), seed=0)
    step(scheduler, runner)
    scheduler.add(request("long", [3] * 40, priority=0), seed=0)
    step(scheduler, runner)
    assert [sequence.request_id for sequence in scheduler.running] == ["long", "a", "b"]
    for _ in range(4):
        plan = scheduler.schedule(0.0)
        assert [(name, count) for name, _, count in shape(plan)] == [("long", 6), ("a", 1), ("b", 1)]
        scheduler.update(plan, runner.run(plan))


def test_the_threshold_cuts_prompts_only_while_others_decode() -> None:
    scheduler, runner = make_scheduler(budget=16, long_prefill_token_threshold=4), FakeRunner(64, 4)
    scheduler.add(request("first", [1] * 20, max_tokens=30), seed=0)
    assert shape(scheduler_step(scheduler, runner)) == [("first", 0, 16)]
    assert shape(scheduler_step(scheduler, runner)) == [("first", 16, 4)]
    for name in ("one", "two"):
        scheduler.add(request(name, [ord(name[0]) % VOCAB] * 10), seed=0)
    assert shape(scheduler_step(scheduler, runner)) == [("first", 20, 1), ("one", 0, 4)]
    assert shape(scheduler_step(scheduler, runner)) == [("first", 21, 1), ("one", 4, 4)]
    assert shape(scheduler_step(scheduler, runner)) == [("first", 22, 1), ("one", 8, 2), ("two", 0, 2)]
    assert shape(scheduler_step(scheduler, runner)) == [("first", 23, 1), ("one", 10, 1), ("two", 2, 4)]
    got = drain(scheduler, runner)
    assert got["two"] == answer([ord("t") % VOCAB] * 10, 4)


def test_a_chunk_of_one_token_uses_the_threshold_up() -> None:
    scheduler, runner = make_scheduler(budget=16, long_prefill_token_threshold=1), FakeRunner(64, 4)
    scheduler.add(request("first", [1], max_tokens=30), seed=0)
    scheduler_step(scheduler, runner)
    for name in ("one", "two"):
        scheduler.add(request(name, [2] * 4), seed=0)
    for start in range(4):
        assert shape(scheduler_step(scheduler, runner))[:2] == [("first", 1 + start, 1), ("one", start, 1)]
        assert scheduler.num_waiting == (start < 3)


@pytest.mark.parametrize("threshold", [0, 4])
def test_an_urgent_prompt_does_not_wait_for_a_long_one(threshold: int) -> None:
    """It comes in beside the other's next chunk and goes before it from then on; who decodes goes on in every step."""
    scheduler = make_scheduler(budget=8, policy="priority", long_prefill_token_threshold=threshold)
    runner, limit = FakeRunner(64, 4), threshold or 7
    scheduler.add(request("first", [1], max_tokens=30, priority=5), seed=0)
    scheduler_step(scheduler, runner)
    scheduler.add(request("long", [3] * 60, priority=6), seed=0)
    assert shape(scheduler_step(scheduler, runner)) == [("first", 1, 1), ("long", 0, limit)]
    scheduler.add(request("urgent", [4] * 15, priority=1), seed=0)
    assert shape(scheduler_step(scheduler, runner)) == [("first", 2, 1), ("long", limit, limit - 1), ("urgent", 0, 1)]
    together = shape(scheduler_step(scheduler, runner))
    assert together[:2] == [("urgent", 1, threshold or 6), ("first", 3, 1)]
    assert [name for name, _, _ in together[2:]] == ([] if threshold else ["long"])


def scheduler_step(scheduler: Scheduler, runner: FakeRunner) -> StepPlan:
    plan = scheduler.schedule(0.0)
    scheduler.update(plan, runner.run(plan))
    return plan


def test_overload_ends_in_bounded_steps_and_the_oldest_is_never_preempted() -> None:
    """40 requests at once, 40 more later, with room for three: B035."""
    scheduler = make_scheduler(num_blocks=32, block_size=16, max_num_seqs=64, budget=64, max_model_len=512)
    runner, bound = FakeRunner(32, 16), 0
    requests = {f"r{i:02}": ([(i + j) % VOCAB for j in range(100)], 150) for i in range(80)}
    late = list(requests.items())
    got: dict[str, list[int]] = {}
    for steps in range(20_000):
        if steps in (0, 50):
            for name, (prompt, max_tokens) in late[:40]:
                scheduler.add(request(name, prompt, max_tokens=max_tokens), seed=0)
                bound += len(prompt) + max_tokens
            late = late[40:]
        oldest = scheduler.running[0] if scheduler.running else None
        deltas = step(scheduler, runner)
        assert oldest is None or oldest.state in (State.RUNNING, State.FINISHED)
        for delta in deltas:
            got.setdefault(delta.request_id, []).extend(delta.token_ids)
        if not scheduler.has_work and not late:
            break
    else:
        raise AssertionError("not done")
    assert steps < bound
    assert got == {name: answer(prompt, max_tokens) for name, (prompt, max_tokens) in requests.items()}
    assert scheduler.kv.pool.num_used == 0


def test_the_head_of_the_queue_is_not_passed() -> None:
    """Strict order (B037): small requests behind a large one wait for it, and it enters when the first running one ends."""
    scheduler, runner = make_scheduler(num_blocks=10, block_size=4, budget=64), FakeRunner(10, 4)
    scheduler.add(request("running", [1] * 20, max_tokens=8), seed=0)
    step(scheduler, runner)
    scheduler.add(request("large", [2] * 24, max_tokens=2), seed=0)
    scheduler.add(request("small", [3], max_tokens=2), seed=0)
    order = []
    while scheduler.has_work:
        order += [delta.request_id for delta in step(scheduler, runner) if delta.finish_reason]
    assert order[0] == "running"
    assert set(order[1:]) == {"large", "small"}
    first = {
        name: next(i for i, b in enumerate(runner.batches) if name in {e[0] for e in b}) for name in ("large", "small")
    }
    assert first["large"] <= first["small"]


@pytest.mark.parametrize("when", ["waiting", "prefilling", "decoding", "preempted", "in flight"])
def test_abort_frees_blocks_at_once(when: str) -> None:
    scheduler, runner = make_scheduler(num_blocks=8, block_size=4, budget=6, max_num_seqs=2), FakeRunner(8, 4)
    target = "x"
    if when == "waiting":
        scheduler.add(request("a", [1]), seed=0)
        scheduler.add(request("b", [1]), seed=0)
        step(scheduler, runner)
    scheduler.add(request(target, [7] * 10, max_tokens=8), seed=0)
    if when in ("prefilling", "decoding"):
        for _ in range(1 if when == "prefilling" else 3):
            step(scheduler, runner)
    if when == "preempted":
        step(scheduler, runner)
        scheduler._preempt(StepPlan())
    plan = scheduler.schedule(0.0) if when == "in flight" else StepPlan()
    tokens = runner.run(plan)
    assert scheduler.abort(target)
    assert not scheduler.abort(target)
    assert scheduler.update(plan, tokens) == []
    assert all(sequence.request_id != target for sequence in [*scheduler.running, *scheduler.waiting])
    assert faults(scheduler) == []
    drain(scheduler, runner)
    assert scheduler.kv.pool.num_used == 0


def test_requests_that_leave_the_queue_are_never_started() -> None:
    """B029: one runs, three wait, two of them leave; the last starts right after the first."""
    scheduler, runner = make_scheduler(max_num_seqs=1), FakeRunner(64, 4)
    for name in "abcd":
        scheduler.add(request(name, [ord(name) % VOCAB], max_tokens=3), seed=0)
    step(scheduler, runner)
    scheduler.abort("b")
    scheduler.abort("c")
    assert len(scheduler.waiting) == 1
    got = drain(scheduler, runner)
    assert set(got) == {"a", "d"}
    assert {name for batch in runner.batches for name, _, _ in batch} == {"a", "d"}


def test_the_request_table_is_empty_after_many() -> None:
    scheduler, runner = make_scheduler(budget=64), FakeRunner(64, 4)
    for index in range(1000):
        scheduler.add(request(str(index), [index % VOCAB, 1], max_tokens=1), seed=0)
    assert len(drain(scheduler, runner)) == 1000
    assert not scheduler._live
    assert scheduler.kv.pool.num_used == 0


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([], 4, "the prompt is empty"),
        ([1] * 128, 1, "the prompt has 128 tokens, the model's length is 128"),
        ([1] * 120, 9, "the prompt has 120 tokens and max_tokens is 9, together 129, but the model's length is 128"),
        ([1] * 60, 10, "needs 18 KV blocks for 70 tokens, but the pool has 16"),
        ([1, VOCAB], 1, f"prompt token id {VOCAB} is outside the model's vocabulary of {VOCAB}"),
        ([-1], 1, "prompt token id -1 is outside"),
    ],
)
def test_requests_that_can_never_be_served_are_refused_with_numbers(
    prompt: list[int], max_tokens: int, message: str
) -> None:
    scheduler = make_scheduler(num_blocks=16)
    refusal = scheduler.add(request("a", prompt, max_tokens=max_tokens), seed=0)
    assert refusal is not None
    assert refusal.finish_reason is FinishReason.ERROR
    assert message in (refusal.error or "")
    assert not scheduler.has_work


def test_a_request_id_in_use_is_refused() -> None:
    scheduler = make_scheduler()
    assert scheduler.add(request("a", [1]), seed=0) is None
    refusal = scheduler.add(request("a", [1]), seed=0)
    assert refusal is not None
    assert "already in use" in (refusal.error or "")


def test_a_request_that_just_fits_the_pool_ends() -> None:
    scheduler, runner = make_scheduler(num_blocks=16), FakeRunner(16, 4)
    assert scheduler.add(request("a", [1] * 60, max_tokens=5), seed=0) is None
    assert drain(scheduler, runner) == {"a": answer([1] * 60, 5)}


def test_why_sequences_end() -> None:
    scheduler, runner = make_scheduler(eos_token_ids=(VOCAB - 1,)), FakeRunner(64, 4)
    expected = answer([5], 8)
    scheduler.add(request("length", [5], max_tokens=8), seed=0)
    scheduler.add(request("stop", [5], max_tokens=8, stop_token_ids=(expected[2],)), seed=0)
    deltas: dict[str, TokenDelta] = {}
    got: dict[str, list[int]] = {}
    while scheduler.has_work:
        for delta in step(scheduler, runner):
            got.setdefault(delta.request_id, []).extend(delta.token_ids)
            deltas[delta.request_id] = delta
    assert deltas["length"].finish_reason is FinishReason.LENGTH
    assert deltas["length"].stop_token_id is None
    assert deltas["stop"].finish_reason is FinishReason.STOP
    assert deltas["stop"].stop_token_id == expected[2]
    assert got["stop"] == expected[: expected.index(expected[2]) + 1]


def test_the_end_token_counts_unless_ignored() -> None:
    expected = answer([5], 8)
    scheduler, runner = make_scheduler(eos_token_ids=(expected[1],)), FakeRunner(64, 4)
    scheduler.add(request("ends", [5], max_tokens=8, ignore_eos=False), seed=0)
    scheduler.add(request("goes on", [5], max_tokens=8), seed=0)
    got = drain(scheduler, runner)
    assert got["ends"] == expected[: expected.index(expected[1]) + 1]
    assert got["goes on"] == expected


def test_a_row_without_finite_logits_fails_its_request_alone() -> None:
    scheduler, runner = make_scheduler(), FakeRunner(64, 4)
    scheduler.add(request("bad", [1]), seed=0)
    scheduler.add(request("good", [2]), seed=0)
    plan = scheduler.schedule(0.0)
    tokens = runner.run(plan)
    bad, good = scheduler.update(plan, [NO_TOKEN, tokens[1]])
    assert bad.finish_reason is FinishReason.ERROR
    assert bad.token_ids == []
    assert "no finite logits" in (bad.error or "")
    assert good.finish_reason is None
    assert drain(scheduler, runner) == {"good": answer([2], 4)[1:]}


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_token_that_is_not_yet_drawn_comes_later_and_holds_nobody_up(prefix_caching: bool) -> None:
    scheduler, runner = make_scheduler(prefix_caching=prefix_caching), FakeRunner(64, 4)
    prompt = list(range(8))  # fills its blocks
    add(scheduler, request("slow", prompt, siblings=siblings("slow", 1)))
    scheduler.add(request("quick", [2]), seed=0)
    got: dict[str, list[int]] = {"slow": [], "slow.1": [], "quick": []}
    for number in range(10):
        plan = scheduler.schedule(0.0)
        slow = [entry.sequence.request_id.startswith("slow") for entry in plan.scheduled if entry.samples]
        tokens = runner.run(plan)
        for delta in scheduler.update(
            plan, [NOT_YET if late and number % 2 == 0 else token for late, token in zip(slow, tokens, strict=True)]
        ):
            assert delta.error is None
            got[delta.request_id] += delta.token_ids
        assert faults(scheduler) == []
        if number == 3:
            assert len(got["quick"]) == 4
    assert got == {"slow": answer(prompt, 4), "slow.1": answer(prompt, 4, seed=1), "quick": answer([2], 4)}
    assert not scheduler.has_work


def test_queue_time_is_from_arrival_to_first_scheduling() -> None:
    scheduler, runner = make_scheduler(max_num_seqs=1), FakeRunner(64, 4)
    scheduler.add(request("a", [1], max_tokens=2), seed=0)
    scheduler.add(request("b", [1], max_tokens=2), seed=0)
    times: dict[str, list[float | None]] = {}
    now = 0.0
    while scheduler.has_work:
        now += 1.0
        for delta in step(scheduler, runner, now):
            times.setdefault(delta.request_id, []).append(delta.queue_s)
    assert times == {"a": [1.0, None], "b": [3.0, None]}
