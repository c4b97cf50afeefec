"""Steps of encoders. All tokens of a prompt see each other, so it is computed in one step, needs no KV blocks, and has ended then."""

from __future__ import annotations

from typing import Any

import torch

from quire.engine.plan import StepPlan
from quire.engine.pooling.runner import gathered
from quire.engine.pooling.scheduler import PoolingScheduler
from quire.engine.pooling.sequence import PooledSequence
from quire.engine.results import Extras, StepResult
from quire.kvcache.manager import NO_HITS
from quire.models.encoder import Encoder, EncoderBatch
from quire.request import FinishReason, PoolRequest, TokenDelta


class WholePromptScheduler(PoolingScheduler):
    """See the module. A step takes waiting prompts in the policy's order while places and budget last; the model's length is at most the
    budget. num_types: segments that tokens may be in."""

    def __init__(self, *arguments: Any, num_types: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        assert self.max_model_len <= self.max_num_batched_tokens
        self._num_types = num_types

    def pool(self, request: PoolRequest) -> TokenDelta | None:
        types = request.token_type_ids
        if types and (
            len(types) != len(request.prompt_token_ids) or not 0 <= min(types) <= max(types) < self._num_types
        ):
            return TokenDelta(
                request_id=request.request_id,
                token_ids=[],
                finish_reason=FinishReason.ERROR,
                error=f"each token must be in a segment below {self._num_types}, the number that the model knows",
            )
        return super().pool(request)

    def schedule(self, now: float) -> StepPlan:
        plan = StepPlan()
        while len(plan.scheduled) < self.max_num_seqs:
            sequence = self.waiting.head()
            if sequence is None or plan.num_tokens + len(sequence.tokens) > self.max_num_batched_tokens:
                break
            self._admit(plan, self.waiting.pop(), NO_HITS, now)
            self._plan(plan, sequence, len(sequence.tokens))
        return plan


class EncoderRunner:
    """See `core.Runner`."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def run(self, plan: StepPlan) -> StepResult:
        sequences: list[PooledSequence] = []
        for entry in plan.scheduled:
            assert isinstance(entry.sequence, PooledSequence)
            sequences.append(entry.sequence)
        order = sorted(range(len(sequences)), key=lambda number: sequences[number].num_prompt)
        hidden = self._encoder.forward(self._batch([sequences[number] for number in order]))
        firsts, at = [0] * len(order), 0
        for number in order:
            firsts[number] = at
            at += sequences[number].num_prompt
        wanted = [one.wanted(0, one.num_prompt) for one in sequences]
        rows = [first + position for first, positions in zip(firsts, wanted, strict=True) for position in positions]
        values = hidden.index_select(0, torch.tensor(rows, device=self._encoder.device))
        if self._encoder.description.head is not None:
            values = self._encoder.judge(values)
        return StepResult(extras=Extras(pooled=gathered(plan, values, [len(positions) for positions in wanted])))

    def _batch(self, sequences: list[PooledSequence]) -> EncoderBatch:
        def column(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=self._encoder.device)

        return EncoderBatch(
            token_ids=column([token for one in sequences for token in one.tokens]),
            positions=column([position for one in sequences for position in range(one.num_prompt)]),
            token_type_ids=column([kind for one in sequences for kind in one.token_type_ids or [0] * one.num_prompt]),
            lengths=[one.num_prompt for one in sequences],
        )
