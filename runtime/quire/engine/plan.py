"""What one step is to do: the scheduler writes it, the runner reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from quire.engine.sequence import Sequence


class Scheduled(msgspec.Struct, gc=False):
    """tokens[start : start + num_tokens] of a sequence are computed in this step. `samples`: a token is drawn after.

    A forked sequence computes nothing in its first step: it draws from the logits of the entry before it.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool


@dataclass(slots=True)
class StepPlan:
    """What one step computes, and which blocks move before: swap_outs (device, host), then copies (device, device), then
    swap_ins (host, device), each pair from and to. prefill_left: tokens that chunks of prompts may still have."""

    scheduled: list[Scheduled] = field(default_factory=list)
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    prefill_left: int = 0
    swap_outs: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    swap_ins: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions_recompute: int = 0
    preemptions_swap: int = 0
    forks: int = 0

    @property
    def preemptions(self) -> int:
        return self.preemptions_recompute + self.preemptions_swap
