"""Short ways to make schedulers and requests for tests, and the invariants that must hold between steps."""

from __future__ import annotations

from typing import Any

from quire.engine import audit
from quire.engine.plan import StepPlan
from quire.engine.scheduler import Scheduler
from quire.engine.sequence import Sequence, State
from quire.kvcache.manager import KVCacheManager
from quire.kvcache.swap import SwapSpace
from quire.request import AddRequest, SamplingParams, Sibling, TokenDelta
from quire_testing.fake_runner import VOCAB, FakeRunner


def make_scheduler(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 8,
    budget: int = 16,
    max_model_len: int = 128,
    prefix_caching: bool = True,
    num_swap_blocks: int = 0,
    **options: Any,
) -> Scheduler:
    """A scheduler over a small pool."""
    return Scheduler(
        KVCacheManager(num_blocks, block_size, enable_prefix_caching=prefix_caching, secret=b"test"),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        vocab_size=VOCAB,
        swap=SwapSpace(num_swap_blocks) if num_swap_blocks else None,
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
    siblings: tuple[Sibling, ...] = (),
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
        siblings=siblings,
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


def siblings(request_id: str, count: int) -> tuple[Sibling, ...]:
    """`count` siblings of a request, with seeds 1 to count; the ids are request_id.1 and so on."""
    return tuple(Sibling(request_id=f"{request_id}.{index}", seed=index) for index in range(1, count + 1))


def add(scheduler: Scheduler, new: AddRequest, *, seed: int = 0, held: bool = False) -> TokenDelta | None:
    """Add a request with its siblings' own seeds."""
    return scheduler.add(new, seed=seed, sibling_seeds=[sibling.seed or 0 for sibling in new.siblings], held=held)


def live_sequences(scheduler: Scheduler) -> list[Sequence]:
    """Everything that is running or waiting."""
    return list(scheduler.sequences())


def faults(scheduler: Scheduler) -> list[str]:
    """Violated invariants of scheduler and pools together, in words."""
    found = audit.faults(scheduler)
    ranks = [scheduler.waiting.rank(sequence) for sequence in scheduler.running]
    if ranks != sorted(ranks):
        found.append("running sequences are out of rank")
    if len(scheduler.running) > scheduler.max_num_seqs:
        found.append(f"{len(scheduler.running)} sequences run, more than {scheduler.max_num_seqs}")
    if any(one.state is not State.HELD or one.leader is not None for one in scheduler.held.values()):
        found.append("a held sequence is not held, or follows another")
    queued = [
        *scheduler.held.values(),
        *scheduler.waiting,
        *(follower for leader in scheduler.sequences() for follower in leader.followers),
    ]
    if len(scheduler.waiting) != len(list(scheduler.waiting)):
        found.append("the waiting queue miscounts")
    if len(queued) != scheduler.num_waiting + scheduler.num_swapped:
        found.append(f"{len(queued)} sequences queue, {scheduler.num_waiting} and {scheduler.num_swapped} are counted")
    if len(queued) + len(scheduler.running) != len(live_sequences(scheduler)):
        found.append("a sequence is in no queue")
    if scheduler.num_swapped != sum(sequence.state is State.SWAPPED for sequence in scheduler.sequences()):
        found.append("swapped sequences are miscounted")
    if not 0.0 <= scheduler.utilization <= 1.0:
        found.append(f"the utilisation is {scheduler.utilization}")
    return found
