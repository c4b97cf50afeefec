"""An executor's logits at every position, through a real block pool, for comparison with a reference."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from torch import Tensor

from quire.models.executor import Batch, allocate_kv_pool
from quire.models.loader import inspect, load
from quire.models.source import resolve
from quire_testing.tiny_models import VOCAB

BLOCK_SIZE = 8
CPU = torch.device("cpu")


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
) -> list[Tensor]:
    """[T, vocab] for each sequence, all side by side in steps of `chunk` tokens each; unused slots of the pool are NaN."""
    model = inspect(resolve(str(folder)))
    executor = load(model, dtype, CPU, num_positions)
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
