"""Short ways to make schedulers and requests for tests, and the invariants that must hold between steps."""

from __future__ import annotations

from collections import Counter
from typing import Any

from quire.engine.scheduler import Scheduler
from quire.engine.sequence import Sequence
from quire.kvcache.manager import KVCacheManager
from quire.request import AddRequest, SamplingParams
from quire_testing.fake_runner import VOCAB


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


def request(request_id: str, prompt: list[int], max_tokens: int = 4, **params: Any) -> AddRequest:
    """A greedy request that arrived at time 0."""
    params = {"temperature": 0.0, "ignore_eos": True, **params}
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        params=SamplingParams(max_tokens=max_tokens, **params),
        arrival_s=0.0,
    )


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
    if len(scheduler.running) > scheduler.max_num_seqs:
        found.append(f"{len(scheduler.running)} sequences run, more than {scheduler.max_num_seqs}")
    if len(scheduler.waiting) != len(list(scheduler.waiting)):
        found.append("the waiting queue miscounts")
    return found
