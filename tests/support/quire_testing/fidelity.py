"""What an executor computes, alone and inside an engine that is short of everything, for comparison with a reference."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.models.executor import Batch, Executor, Footprint, KVPool, ModelFacts, allocate_kv_pool
from quire.models.loader import Builder, NativeModel, inspect
from quire.models.precision import Precision
from quire.models.source import resolve
from quire.request import SamplingParams
from quire_testing.cores import generate, make_core
from quire_testing.peak_memory import PeakMemory
from quire_testing.tiny_models import VOCAB, reference_logits
from quire_testing.witness import Witness

BLOCK_SIZE = 8
CPU = torch.device("cpu")
NUM_TOKENS = 64
NUM_POSITIONS = 256
BF16_MEAN_FACTOR, BF16_MAX_FACTOR = 1.5, 2.0
"""How much farther from float32 than transformers in bfloat16 ours may be: on average, and at the worst position."""


def prompts_for(count: int, seed: int = 5) -> list[list[int]]:
    """Prompts of many lengths, half of them with a common beginning."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, VOCAB) for _ in range(37)]
    return [
        (shared if index % 2 else []) + [rng.randrange(3, VOCAB) for _ in range(rng.randrange(1, 60))]
        for index in range(count)
    ]


def our_logits(
    folder: Path,
    sequences: list[list[int]],
    chunk: int,
    num_positions: int = 512,
    dtype: torch.dtype = torch.float32,
    modules: bool = False,
) -> list[Tensor]:
    """[T, vocab] for each sequence, all side by side in steps of `chunk` tokens each; unused slots of the pool are NaN.

    modules: by the torch executor, even where there is a plan.
    """
    model = inspect(resolve(str(folder)))
    if modules:
        assert isinstance(model, NativeModel)
        executor: Executor = model.modules(CPU).load(Precision.of(dtype), num_positions)
    else:
        executor = model.on(CPU).load(Precision.of(dtype), num_positions)
    columns = -(-max(map(len, sequences)) // BLOCK_SIZE)
    tables = torch.randperm(columns * len(sequences), generator=torch.Generator().manual_seed(0))
    tables = tables.int().view(len(sequences), columns)
    pool = allocate_kv_pool(model.description, tables.numel(), BLOCK_SIZE, dtype, CPU)
    for cache in (*pool.keys, *pool.values):
        cache.fill_(float("nan"))
    results: list[list[Tensor]] = [[] for _ in sequences]
    for start in range(0, max(map(len, sequences)), chunk):
        spans = [range(start, max(min(start + chunk, len(s)), start)) for s in sequences]
        active = [index for index, span in enumerate(spans) if span]
        positions = torch.tensor([p for index in active for p in spans[index]])
        rows = torch.tensor([index for index in active for _ in spans[index]])
        hidden = executor.forward(
            Batch(
                token_ids=torch.tensor([sequences[index][p] for index in active for p in spans[index]]),
                positions=positions,
                slot_mapping=tables[rows, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE,
                block_tables=tables[active].contiguous(),
                query_start=torch.tensor([0, *(len(spans[index]) for index in active)]).cumsum(0).int(),
                context_lens=torch.tensor([spans[index].stop for index in active], dtype=torch.int32),
                logit_rows=torch.arange(len(positions)),
            ),
            pool,
        )
        parts = executor.logits(hidden).split([len(spans[index]) for index in active])
        for index, part in zip(active, parts, strict=True):
            results[index].append(part)
    return [torch.cat(parts) for parts in results]


def step_bytes(folder: Path, num_tokens: int = 200) -> tuple[int, int]:
    """Bytes that a step of so many tokens takes in torch beside weights and pool, and how many the memory plan counts for it."""
    model = inspect(resolve(str(folder)))
    if isinstance(model, NativeModel):
        builder: Builder = model.modules(CPU)
    else:
        builder = model.on(CPU)
    precision = Precision.of(torch.float32)
    executor, footprint = builder.load(precision, num_tokens), builder.footprint(precision)
    batch, pool = _newest(model.description, num_tokens, num_tokens)
    with PeakMemory() as peak:
        executor.forward(batch, pool)
    return peak.most, num_tokens * footprint.activations_per_token + footprint.activations_per_step


def plan_bytes(model: NativeModel, precision: Precision, num_tokens: int, context: int) -> tuple[int, Footprint]:
    """Bytes of the CPU plan's work space after a step of the newest tokens of a sequence of `context`, and its footprint."""
    builder = model.plan()
    executor = builder.load(precision, context)
    executor.forward(*_newest(model.description, num_tokens, context))
    return executor._plan.workspace_bytes, builder.footprint(precision)


def _newest(facts: ModelFacts, num_tokens: int, context: int) -> tuple[Batch, KVPool]:
    """A step of the newest tokens of a sequence, and a pool that holds it."""
    blocks = -(-context // BLOCK_SIZE)
    pool = allocate_kv_pool(facts, blocks, BLOCK_SIZE, torch.float32, CPU)
    for cache in (*pool.keys, *pool.values):
        cache.zero_()
    positions = torch.arange(context - num_tokens, context)
    batch = Batch(
        token_ids=positions % VOCAB,
        positions=positions,
        slot_mapping=positions,
        block_tables=torch.arange(blocks, dtype=torch.int32).view(1, -1),
        query_start=torch.tensor([0, num_tokens], dtype=torch.int32),
        context_lens=torch.tensor([context], dtype=torch.int32),
        logit_rows=torch.tensor([num_tokens - 1]),
    )
    return batch, pool


@dataclass(frozen=True)
class Crowd:
    """Greedy answers of requests that got into each other's way, and what was seen of it."""

    prompts: list[list[int]]
    answers: list[list[int]]
    witness: Witness

    def sequence(self, index: int) -> list[int]:
        """The tokens that were computed: the last one of an answer never is."""
        return self.prompts[index] + self.answers[index][:-1]

    def computed(self, index: int) -> tuple[list[int], Tensor]:
        """The positions of a sequence as often as they were computed, and our logits [N, vocab] there."""
        known = self.witness.logits[str(index)]
        return [position for position, _ in known], torch.stack([row for _, row in known])


def crowded(model: Path | str, *, dtype: str = "float32") -> Crowd:
    """Eight prompts, 64 tokens each, in a pool for one or two of them, with a host pool that not every victim fits in.

    Moving a block is said to cost nothing, so whether a victim is swapped or computed again depends on the host pool alone.
    """
    size = 2 if dtype == "bfloat16" else 4
    block_bytes = inspect(resolve(str(model))).description.kv_elements_per_token() * BLOCK_SIZE * size
    core = make_core(
        model,
        dtype=dtype,
        max_model_len=NUM_POSITIONS,
        num_blocks=32,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=24,
        max_num_seqs=6,
        swap_space=str(8 * block_bytes),
    )
    core.scheduler.costs.swap_s_per_block = 0.0
    witness = Witness(core)
    prompts = prompts_for(8)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    answers = generate(core, prompts, params, every=3)
    witness.everything_happened()
    assert witness.computed_again
    return Crowd(prompts, answers, witness)


def check_exact(crowd: Crowd, model: Any) -> None:
    """Every logit that was computed, as often as it was, is within 1e-4 of the model's; greedy answers are its own."""
    for index, answer in enumerate(crowd.answers):
        exact = reference_logits(model, crowd.sequence(index))
        positions, ours = crowd.computed(index)
        torch.testing.assert_close(ours, exact[positions], rtol=0, atol=1e-4)
        assert set(positions) == set(
            range(min(positions), len(exact))
        )  # what lies before was found in the prefix cache
        assert answer == exact[len(crowd.prompts[index]) - 1 :].argmax(dim=-1).tolist()
        assert len(answer) == NUM_TOKENS
    assert len({tuple(answer) for answer in crowd.answers}) > 4


def divergence(ours: Tensor, theirs: Tensor) -> Tensor:
    """Kullback-Leibler divergence [N], in nats, of the distributions that logits [N, vocab] are."""
    return torch.nn.functional.kl_div(
        ours.float().log_softmax(dim=-1), theirs.float().log_softmax(dim=-1), reduction="none", log_target=True
    ).sum(dim=-1)


def check_bfloat16(crowd: Crowd, model: Any) -> None:
    """Distributions in bfloat16 are no farther from float32 than transformers' own in bfloat16, on average over all
    positions and at the worst of them, within the factors below."""
    half = copy.deepcopy(model)
    for parameter in half.parameters():  # buffers stay, as where the library loads a model in bfloat16
        parameter.data = parameter.data.bfloat16()
    own, its = [], []
    for index in range(len(crowd.prompts)):
        exact, rounded = (reference_logits(one, crowd.sequence(index)) for one in (model, half))
        positions, logits = crowd.computed(index)
        own.append(divergence(logits, exact[positions]))
        its.append(divergence(rounded, exact))
    ours, theirs = torch.cat(own), torch.cat(its)
    assert 0 < ours.mean() <= BF16_MEAN_FACTOR * theirs.mean()
    assert ours.max() <= BF16_MAX_FACTOR * theirs.max()
