"""Short ways to make schedulers and requests for tests, and the invariants that must hold between steps."""

from __future__ import annotations

from collections import Counter
from typing import Any

from quire.engine.scheduler import Scheduler, StepPlan
from quire.engine.sequence import Sequence
from quire.kvcache.manager import KVCacheManager
from quire.request import AddRequest, SamplingParams, TokenDelta
from quire_testing.fake_runner import VOCAB, FakeRunner


def make_scheduler(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 8,
    budget: int = 16,
    max_model_len: int = 128,
    prefix_caching: bool = True,
    **options: Any,
) -> Scheduler:
    """A scheduler over a small pool."""
    return Scheduler(
        KVCacheManager(num_blocks, block_size, enable_prefix_caching=prefix_caching, secret=b"test"),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        vocab_size=VOCAB,
        **options,
    )


def request(
    request_id: str,
    prompt: list[int],
    max_tokens: int = 4,
    *,
    priority: int = 0,
    cache_salt: str | None = None,
    arrival_s: float = 0.0,
    **params: Any,
) -> AddRequest:
    """A greedy request."""
    params = {"temperature": 0.0, "ignore_eos": True, **params}
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        params=SamplingParams(max_tokens=max_tokens, **params),
        arrival_s=arrival_s,
        priority=priority,
        cache_salt=cache_salt,
    )


def shape(plan: StepPlan) -> list[tuple[str, int, int]]:
    """Request id, start and number of tokens of each entry."""
    return [(entry.sequence.request_id, entry.start, entry.num_tokens) for entry in plan.scheduled]


def step(scheduler: Scheduler, runner: FakeRunner, now: float = 0.0) -> list[TokenDelta]:
    """One whole step."""
    plan = scheduler.schedule(now)
    return scheduler.update(plan, runner.run(plan))


def drain(scheduler: Scheduler, runner: FakeRunner, limit: int = 1000) -> dict[str, list[int]]:
    """Step until nothing is left; the answers. Books must balance after each step."""
    got: dict[str, list[int]] = {}
    for _ in range(limit):
        if not scheduler.has_work:
            return got
        for delta in step(scheduler, runner):
            got.setdefault(delta.request_id, []).extend(delta.token_ids)
        assert faults(scheduler) == []
    raise AssertionError(f"still at work after {limit} steps")


def live_sequences(scheduler: Scheduler) -> list[Sequence]:
    """Everything that is running or waiting."""
    return [*scheduler.running, *scheduler.waiting]


def faults(scheduler: Scheduler) -> list[str]:
    """Violated invariants of scheduler and pool together, in words."""
    found = scheduler.kv.pool.check()
    held = Counter(block.id for sequence in live_sequences(scheduler) for block in sequence.table.blocks)
    for block in scheduler.kv.pool.blocks:
        if block.references != held[block.id]:
            found.append(f"block {block.id}: {block.references} references, but {held[block.id]} holders")
    for sequence in live_sequences(scheduler):
        table = sequence.table
        if list(table.block_ids) != [block.id for block in table.blocks]:
            found.append(f"{sequence.request_id}: block ids differ from blocks")
        if len(table.blocks) * scheduler.kv.block_size < sequence.num_computed:
            found.append(f"{sequence.request_id}: fewer slots than computed tokens")
    found += [f"{s.request_id} waits but holds blocks" for s in scheduler.waiting if s.table.blocks]
    ranks = [scheduler.waiting.rank(sequence) for sequence in scheduler.running]
    if ranks != sorted(ranks):
        found.append("running sequences are out of rank")
    if len(scheduler.running) > scheduler.max_num_seqs:
        found.append(f"{len(scheduler.running)} sequences run, more than {scheduler.max_num_seqs}")
    if len(scheduler.waiting) != len(list(scheduler.waiting)):
        found.append("the waiting queue miscounts")
    return found
