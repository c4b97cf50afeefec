"""Run a step's plan on the device: flatten it into tensors, call the executor, sample.

Host arrays are allocated once and reused. Nothing here decides what to compute.
"""

from __future__ import annotations

import numpy as np
import torch

from quire.engine.block_ops import move_blocks
from quire.engine.plan import StepPlan
from quire.engine.prompt_logprobs import prompt_logprobs, prompt_spans
from quire.engine.results import StepResult
from quire.engine.sampling import Sampler
from quire.models.executor import Batch, Executor, KVPool


class ModelRunner:
    """Holds the model, its KV pool, and the buffers of the largest possible step."""

    def __init__(
        self,
        executor: Executor,
        kv: KVPool,
        sampler: Sampler,
        *,
        swap_pool: KVPool | None = None,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_blocks: int,
    ) -> None:
        """max_blocks: columns of the block table, enough for a sequence of the model's length. swap_pool: the host pool."""
        self.executor = executor
        self.kv = kv
        self.sampler = sampler
        self._swap_pool = swap_pool
        self._block_size = block_size
        self._token_ids = np.zeros(max_num_batched_tokens, dtype=np.int64)
        self._positions = np.zeros(max_num_batched_tokens, dtype=np.int64)
        self._slots = np.zeros(max_num_batched_tokens, dtype=np.int64)
        self._tables = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self._query_start = np.zeros(max_num_seqs + 1, dtype=np.int32)
        self._context_lens = np.zeros(max_num_seqs, dtype=np.int32)

    def run(self, plan: StepPlan) -> StepResult:
        """Compute the plan; one token for each entry that samples, in order."""
        rows = [entry.sequence for entry in plan.scheduled if entry.samples]
        spans = prompt_spans(plan)
        self.sampler.prepare(rows)
        hidden = self.hidden(plan, [row for span in spans for row in range(span.row, span.row + len(span.tokens))])
        result = self.sampler(self.executor.logits(hidden[: len(rows)]), rows) if rows else StepResult()
        if spans:
            result.extras.prompt_logprobs = prompt_logprobs(self.executor, hidden[len(rows) :], spans)
        return result

    def hidden(self, plan: StepPlan, rows: list[int]) -> torch.Tensor:
        """Hidden states of a step: those that entries sample from, then those of `rows` of the flattened batch."""
        self._move(plan)
        return self.executor.forward(self._batch(plan, rows), self.kv)

    def _move(self, plan: StepPlan) -> None:
        if plan.swap_outs or plan.swap_ins:
            assert self._swap_pool is not None
            move_blocks(self.kv, self._swap_pool, plan.swap_outs)
        move_blocks(self.kv, self.kv, plan.copies)
        if plan.swap_ins:
            assert self._swap_pool is not None
            move_blocks(self._swap_pool, self.kv, plan.swap_ins)

    def _batch(self, plan: StepPlan, rows: list[int]) -> Batch:
        """Rows wanted: those that sample, then these."""
        token_ids, positions, slots, size = self._token_ids, self._positions, self._slots, self._block_size
        wanted: list[int] = []
        at = widest = index = 0
        for entry in plan.scheduled:
            sequence, start, count = entry.sequence, entry.start, entry.num_tokens
            if count == 0:  # forked: draws from the row before
                wanted.append(at - 1)
                continue
            blocks = sequence.table.block_ids
            self._tables[index, : len(blocks)] = blocks
            widest = max(widest, len(blocks))
            if count == 1:
                token_ids[at] = sequence.tokens[start]
                positions[at] = start
                slots[at] = blocks[start // size] * size + start % size
            else:
                end = at + count
                places = positions[at:end] = np.arange(start, start + count)
                token_ids[at:end] = sequence.tokens[start : start + count]
                slots[at:end] = self._tables[index, places // size].astype(np.int64) * size + places % size
            at += count
            self._query_start[index + 1] = at
            self._context_lens[index] = start + count
            index += 1
            if entry.samples:
                wanted.append(at - 1)
        wanted += rows
        count = index
        return Batch(
            token_ids=self._tensor(token_ids[:at]),
            positions=self._tensor(positions[:at]),
            slot_mapping=self._tensor(slots[:at]),
            block_tables=self._tensor(self._tables[:count, :widest]),
            query_start=self._tensor(self._query_start[: count + 1]),
            context_lens=self._tensor(self._context_lens[:count]),
            logit_rows=torch.tensor(wanted, dtype=torch.int64, device=self.executor.device),
        )

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.executor.device)
