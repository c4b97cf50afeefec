"""`quire bench kv`: how much of the KV blocks in use holds tokens, under full load, with the real scheduler and pool.

The mix is chat-like (Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention, SOSP 2023,
figure 2): lengths are log-normal with the given means and medians. There is no model: a step's tokens are made up.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass

from quire.bench.scheduler import verdict
from quire.engine.scheduler import Scheduler
from quire.errors import ConfigError
from quire.kvcache.manager import KVCacheManager
from quire.request import AddRequest, SamplingParams

PROMPT_MEAN, PROMPT_MEDIAN = 1150, 1020
ANSWER_MEAN, ANSWER_MEDIAN = 211, 129
LONGEST = 8192
BUDGET = 2048
VOCAB = 50_000
TARGET = 0.96


@dataclass(frozen=True)
class Report:
    """utilization: tokens held / slots of the blocks held, mean over steps. pool_used: blocks held / blocks, mean over steps.
    waste_blocks: slots without a token, in blocks, per running sequence."""

    num_requests: int
    steps: int
    prompt_mean: float
    answer_mean: float
    running: float
    utilization: float
    least: float
    pool_used: float
    waste_blocks: float
    preemptions: int

    @property
    def passed(self) -> bool:
        return self.utilization >= TARGET

    def __str__(self) -> str:
        return (
            f"{self.num_requests} requests, prompts mean {self.prompt_mean:.0f}, answers mean {self.answer_mean:.0f} tokens; "
            f"{self.steps} steps under full load, {self.running:.1f} running sequences, pool {self.pool_used:.1%} used, "
            f"{self.preemptions} preemptions\n"
            f"KV utilisation   mean {self.utilization:.2%}, least {self.least:.2%}; {self.waste_blocks:.2f} blocks wasted per sequence"
            f"; target {TARGET:.0%}: {verdict(self.passed)}"
        )


def run(*, num_requests: int = 1000, num_blocks: int = 4096, block_size: int = 16, seed: int = 0) -> Report:
    """Serve num_requests that are all there from the start; steps count from when the pool is full, while requests wait."""
    rng = random.Random(seed)
    scheduler = Scheduler(
        KVCacheManager(num_blocks, block_size),
        max_num_seqs=1024,
        max_num_batched_tokens=BUDGET,
        max_model_len=LONGEST,
        vocab_size=VOCAB,
    )
    prompts = [_length(rng, PROMPT_MEAN, PROMPT_MEDIAN) for _ in range(num_requests)]
    answers = [_length(rng, ANSWER_MEAN, ANSWER_MEDIAN) for _ in range(num_requests)]
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        prompt = min(prompt, LONGEST - answer)
        params = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True)
        tokens = [rng.randrange(VOCAB) for _ in range(prompt)]
        request = AddRequest(request_id=str(index), prompt_token_ids=tokens, params=params, arrival_s=0.0)
        assert scheduler.add(request, seed=0) is None
    full = False
    utilization, used, running, waste = [], [], [], []
    while len(scheduler.waiting):
        plan = scheduler.schedule(0.0)
        full = full or plan.num_tokens < BUDGET  # what keeps the head of the queue out is a lack of blocks
        scheduler.update(plan, [7] * sum(entry.samples for entry in plan.scheduled))
        if full and scheduler.running:
            utilization.append(scheduler.utilization)
            used.append(scheduler.kv.pool.num_used / num_blocks)
            running.append(len(scheduler.running))
            waste.append((1 - utilization[-1]) * scheduler.kv.pool.num_used / running[-1])
    if not utilization:
        raise ConfigError(
            f"--requests {num_requests} never fill {num_blocks} blocks of {block_size}; raise --requests or lower --num-blocks"
        )
    return Report(
        num_requests=num_requests,
        steps=len(utilization),
        prompt_mean=statistics.fmean(prompts),
        answer_mean=statistics.fmean(answers),
        running=statistics.fmean(running),
        utilization=statistics.fmean(utilization),
        least=min(utilization),
        pool_used=statistics.fmean(used),
        waste_blocks=statistics.fmean(waste),
        preemptions=scheduler.counters.preemptions,
    )


def _length(rng: random.Random, mean: float, median: float) -> int:
    """One draw of the log-normal distribution with this mean and median, at least 1 and at most half of LONGEST."""
    sigma = math.sqrt(2 * math.log(mean / median))
    return min(max(round(rng.lognormvariate(math.log(median), sigma)), 1), LONGEST // 2)
