"""What really happened in an engine's steps, and the logits of every position that it computed.

A test that compares answers "under chunked prefill, prefix hits, preemption and swaps" is worth something only where these
came to pass; `everything_happened` says which did not.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quire.engine.core import EngineCore
from quire.engine.plan import StepPlan
from quire.models.executor import Batch, Executor, KVPool

Logits = dict[str, list[tuple[int, Tensor]]]
"""By request: positions and the logits [vocab] there, in the order of computing; a position that was computed again is there
twice."""


class Witness:
    """Looks on while an engine runs. every_position: compute logits also where nothing is sampled; else only sampled ones."""

    def __init__(self, core: EngineCore, *, every_position: bool = True) -> None:
        self.logits: Logits = defaultdict(list)
        self.steps = 0
        self.mixed_steps = 0  # prompts beside sequences that decode
        self.chunks = 0  # parts of a prompt that are not its end
        self.blocks_swapped_in = 0
        self.computed_again: set[str] = set()  # requests of which positions were computed twice
        self._core = core
        self._plan = StepPlan()
        self._run = core.runner.run
        core.runner.run = self._watched
        core.runner.executor = _Recorder(core.runner.executor, self, every_position)

    def _watched(self, plan: StepPlan) -> Any:
        self._plan = plan
        self.steps += 1
        decoding = [entry for entry in plan.scheduled if entry.start >= entry.sequence.num_prompt]
        prompts = [entry for entry in plan.scheduled if entry.start < entry.sequence.num_prompt]
        self.mixed_steps += bool(decoding and prompts)
        self.chunks += sum(entry.start + entry.num_tokens < entry.sequence.num_prompt for entry in prompts)
        self.blocks_swapped_in += len(plan.swap_ins)
        return self._run(plan)

    def note(self, logits: Tensor, *, sampled_only: bool) -> None:
        """Logits of the rows of the current plan, in order."""
        row = 0
        for entry in self._plan.scheduled:
            first = entry.num_tokens - entry.samples if sampled_only else 0
            known = self.logits[entry.sequence.request_id]
            for position in range(entry.start + first, entry.start + entry.num_tokens):
                if not sampled_only and known and position <= known[-1][0]:
                    self.computed_again.add(entry.sequence.request_id)
                known.append((position, logits[row].clone()))
                row += 1
        assert row == len(logits)

    def everything_happened(self) -> None:
        """Fails, with the numbers, where one of these did not happen."""
        counters = self._core.scheduler.counters
        happened = {
            "prompts beside decoding": self.mixed_steps,
            "chunks of prompts": self.chunks,
            "prefix hits": counters.prefix_hits,
            "preemptions to recompute": counters.preemptions_recompute,
            "preemptions to swap": counters.preemptions_swap,
            "blocks swapped in": self.blocks_swapped_in,
        }
        assert all(happened.values()), happened


class _Recorder:
    """An executor that tells the witness what it computes."""

    def __init__(self, executor: Executor, witness: Witness, every_position: bool) -> None:
        self.device, self.dtype = executor.device, executor.dtype
        self._executor = executor
        self._witness = witness
        self._every = every_position

    def forward(self, batch: Batch, kv: KVPool) -> Tensor:
        if not self._every:
            return self._executor.forward(batch, kv)
        hidden = self._executor.forward(replace(batch, logit_rows=torch.arange(len(batch.token_ids))), kv)
        self._witness.note(self._executor.logits(hidden), sampled_only=False)
        return hidden.index_select(0, batch.logit_rows)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self._executor.logits(hidden)
        if not self._every:
            self._witness.note(logits, sampled_only=True)
        return logits
