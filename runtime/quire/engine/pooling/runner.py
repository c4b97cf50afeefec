"""Run a step of a decoder whose prompts become vectors: hidden states after the last norm, gathered by sequence."""

from __future__ import annotations

import torch

from quire.engine.plan import StepPlan
from quire.engine.pooling.sequence import PooledSequence
from quire.engine.results import Extras, Fault, StepResult
from quire.engine.runner import ModelRunner


class PoolingRunner:
    """See `core.Runner`. Nothing is sampled, so that what the memory plan counts for that is there for the hidden states."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def run(self, plan: StepPlan) -> StepResult:
        rows: list[int] = []
        counts: list[int] = []
        first = 0
        for entry in plan.scheduled:
            sequence, start = entry.sequence, entry.start
            assert isinstance(sequence, PooledSequence)
            wanted = sequence.wanted(start, start + entry.num_tokens)
            rows += [first + position - start for position in wanted]
            counts.append(len(wanted))
            first += entry.num_tokens
        hidden = self._runner.hidden(plan, rows)
        return StepResult(extras=Extras(pooled=gathered(plan, hidden, counts)))


def gathered(plan: StepPlan, hidden: torch.Tensor, counts: list[int]) -> dict[int, bytes | Fault | None]:
    """What a step makes of its prompts, as `Extras.pooled`. hidden: [R, H] of the rows wanted; counts: how many of them each entry has."""
    values = hidden.float().cpu().numpy()
    pooled: dict[int, bytes | Fault | None] = {}
    at = 0
    for number, (entry, count) in enumerate(zip(plan.scheduled, counts, strict=True)):
        sequence = entry.sequence
        assert isinstance(sequence, PooledSequence)
        sequence.gather(values[at : at + count])
        at += count
        complete = entry.start + entry.num_tokens == sequence.num_prompt
        pooled[number] = sequence.vector() if complete else None
    return pooled
