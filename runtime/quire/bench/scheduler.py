"""`quire bench scheduler`: what the bookkeeping of a step costs, without a model.

Times are CPU seconds of this thread, so that other load on the machine does not count. The best of several rounds is
taken for medians: what is slower than that is the machine, not the code.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from quire.engine.scheduler import Scheduler
from quire.kvcache.manager import KVCacheManager
from quire.request import AddRequest, SamplingParams

BLOCK_SIZE = 16
VOCAB = 50_000
STEP_TARGET_MS = 1.0
LOOKUP_TARGET_MS = 5.0
LOOKUP_TOKENS = 32 * 1024
OVERHEAD_TARGET = 0.01
REFERENCE_TOKENS_PER_S = 20_000
"""A model that computes this many prompt tokens a second must not lose 1 % to names of blocks that nobody finds."""


@dataclass(frozen=True)
class Times:
    """Milliseconds."""

    median: float
    p99: float


@dataclass(frozen=True)
class Report:
    """step: schedule and update of the decoding sequences. lookup_*: one prompt of LOOKUP_TOKENS. caching_*: what prefix
    caching adds to a token of a prompt that nobody sent before, and to a generated token; microseconds."""

    num_seqs: int
    step: Times
    lookup_hit: Times
    lookup_miss: Times
    caching_prompt_us: float
    caching_decode_us: float

    @property
    def caching_share(self) -> float:
        """Of the time that computing a prompt token takes at REFERENCE_TOKENS_PER_S."""
        return self.caching_prompt_us * 1e-6 * REFERENCE_TOKENS_PER_S

    @property
    def passed(self) -> bool:
        return (
            self.step.median <= STEP_TARGET_MS
            and max(self.lookup_hit.median, self.lookup_miss.median) <= LOOKUP_TARGET_MS
            and self.caching_share <= OVERHEAD_TARGET
        )

    def __str__(self) -> str:
        rows = [
            (f"schedule + update of {self.num_seqs} decoding requests", self.step, STEP_TARGET_MS),
            (f"prefix look-up of {LOOKUP_TOKENS} tokens, all found", self.lookup_hit, LOOKUP_TARGET_MS),
            (f"prefix look-up of {LOOKUP_TOKENS} tokens, none found", self.lookup_miss, LOOKUP_TARGET_MS),
        ]
        lines = [
            f"{what:<48} median {times.median:6.3f} ms, p99 {times.p99:6.3f} ms; target {target:g} ms: "
            + verdict(times.median <= target)
            for what, times, target in rows
        ]
        lines.append(
            f"{'prefix caching where nothing hits':<48} {self.caching_prompt_us:.3f} us a prompt token, {self.caching_decode_us:.3f} us a "
            f"generated one: {self.caching_share:.2%} at {REFERENCE_TOKENS_PER_S} prompt tokens/s; target {OVERHEAD_TARGET:.0%}: "
            + verdict(self.caching_share <= OVERHEAD_TARGET)
        )
        return "\n".join(lines)


def run(*, num_seqs: int = 256, steps: int = 400, rounds: int = 5) -> Report:
    """Measure. steps: decoding steps in each round."""
    prompt_us: dict[bool, float] = {}
    decode_us: dict[bool, float] = {}
    for caching in (True, False):
        prompt_us[caching] = min(_prefill_us(caching) for _ in range(rounds))
        decode_us[caching] = min(_decode(caching, num_seqs, steps).median for _ in range(rounds)) * 1e3 / num_seqs
    hit, miss = _lookups(rounds * 10)
    times = min((_decode(True, num_seqs, steps) for _ in range(rounds)), key=lambda times: times.median)
    return Report(
        num_seqs=num_seqs,
        step=times,
        lookup_hit=hit,
        lookup_miss=miss,
        caching_prompt_us=max(prompt_us[True] - prompt_us[False], 0.0),
        caching_decode_us=max(decode_us[True] - decode_us[False], 0.0),
    )


def decoding(caching: bool, num_seqs: int, steps: int) -> Scheduler:
    """A scheduler with num_seqs sequences that decode for `steps` more steps; prompts of 100 to 355 tokens."""
    scheduler = _scheduler(
        num_blocks=num_seqs * (400 + steps) // BLOCK_SIZE + num_seqs, num_seqs=num_seqs, caching=caching
    )
    for index in range(num_seqs):
        _add(scheduler, str(index), _prompt(index, 100 + index % 256), max_tokens=steps + 100)
    while any(s.num_generated == 0 for s in scheduler.running) or len(scheduler.waiting):
        step(scheduler)
    return scheduler


def _decode(caching: bool, num_seqs: int, steps: int) -> Times:
    """Schedule and update of num_seqs decoding sequences."""
    scheduler = decoding(caching, num_seqs, steps)
    return _times([_timed(lambda: step(scheduler)) for _ in range(steps)])


def _prefill_us(caching: bool, num_prompts: int = 64, length: int = 2048) -> float:
    """Microseconds a token of prompts that have nothing in common, scheduled in chunks of 512."""
    scheduler = _scheduler(num_blocks=num_prompts * length // BLOCK_SIZE + 64, num_seqs=8, caching=caching)
    for index in range(num_prompts):
        _add(scheduler, str(index), _prompt(index, length), max_tokens=1)

    def drain() -> None:
        while scheduler.has_work:
            step(scheduler)

    return _timed(drain) * 1e6 / (num_prompts * length)


def _lookups(count: int) -> tuple[Times, Times]:
    """Of a prompt that is cached in full, and of one that is not at all; names are made anew each time."""
    kv = KVCacheManager(2 * LOOKUP_TOKENS // BLOCK_SIZE, BLOCK_SIZE)
    known, unknown = _prompt(1, LOOKUP_TOKENS), _prompt(2, LOOKUP_TOKENS)
    table = kv.table()
    assert kv.grow(table, known, 0, len(known), [])
    hit = _times([_timed(lambda: kv.find_prefix(kv.table(), known)) for _ in range(count)])
    miss = _times([_timed(lambda: kv.find_prefix(kv.table(), unknown)) for _ in range(count)])
    return hit, miss


def _scheduler(*, num_blocks: int, num_seqs: int, caching: bool) -> Scheduler:
    return Scheduler(
        KVCacheManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=caching),
        max_num_seqs=num_seqs,
        max_num_batched_tokens=512,
        max_model_len=num_blocks * BLOCK_SIZE,
        vocab_size=VOCAB,
    )


def _add(scheduler: Scheduler, request_id: str, prompt: list[int], *, max_tokens: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    request = AddRequest(request_id=request_id, prompt_token_ids=prompt, params=params, arrival_s=0.0)
    refusal = scheduler.add(request, seed=0)
    assert refusal is None, refusal


def step(scheduler: Scheduler) -> None:
    """One step in which every sequence that samples gets the same token."""
    plan = scheduler.schedule(0.0)
    scheduler.update(plan, [7] * sum(entry.samples for entry in plan.scheduled))


def _prompt(seed: int, length: int) -> list[int]:
    return [(seed * 7919 + index * index) % VOCAB for index in range(length)]


def _timed(action: Callable[[], object]) -> float:
    began = time.thread_time()
    action()
    return time.thread_time() - began


def _times(seconds: list[float]) -> Times:
    ordered = sorted(seconds)
    return Times(statistics.median(ordered) * 1e3, ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)] * 1e3)


def verdict(passed: bool) -> str:
    """How reports say it."""
    return "pass" if passed else "FAIL"
