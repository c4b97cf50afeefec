"""Every architecture computes what transformers computes: logits at every position, and greedy answers in any company."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from quire.models.executor import Batch, allocate_kv_pool
from quire.models.loader import inspect, load
from quire.models.source import resolve
from quire.request import SamplingParams
from quire_testing.cores import generate, make_core
from quire_testing.tiny_llama import greedy
from quire_testing.tiny_models import FAMILIES, VOCAB, make, reference_logits, save

CPU = torch.device("cpu")
BLOCK_SIZE = 8
NUM_TOKENS = 64


def prompts_for(count: int, seed: int = 5) -> list[list[int]]:
    """Prompts of many lengths, half of them with a common beginning."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, VOCAB) for _ in range(37)]
    return [
        (shared if index % 2 else []) + [rng.randrange(3, VOCAB) for _ in range(rng.randrange(1, 60))]
        for index in range(count)
    ]


def our_logits(folder: Path, sequences: list[list[int]], chunk: int, num_positions: int = 512) -> list[torch.Tensor]:
    """Logits at every position, all sequences side by side in steps of `chunk` tokens each."""
    model = inspect(resolve(str(folder)))
    decoder = load(model, torch.float32, CPU, num_positions)
    columns = -(-max(map(len, sequences)) // BLOCK_SIZE)
    tables = torch.randperm(columns * len(sequences), generator=torch.Generator().manual_seed(0))
    tables = tables.int().view(len(sequences), columns)
    pool = allocate_kv_pool(model.description, tables.numel(), BLOCK_SIZE, torch.float32, CPU)
    for cache in (*pool.keys, *pool.values):
        cache.fill_(float("nan"))
    results: list[list[torch.Tensor]] = [[] for _ in sequences]
    for start in range(0, max(map(len, sequences)), chunk):
        spans = [range(start, min(start + chunk, len(s))) for s in sequences]
        ends = [max(span.stop, span.start) if span else len(s) for span, s in zip(spans, sequences, strict=True)]
        positions = torch.tensor([p for span in spans for p in span])
        rows = torch.tensor([i for i, span in enumerate(spans) for _ in span])
        hidden = decoder.forward(
            Batch(
                token_ids=torch.tensor([s[p] for s, span in zip(sequences, spans, strict=True) for p in span]),
                positions=positions,
                slot_mapping=tables[rows, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE,
                block_tables=tables,
                query_start=torch.tensor([0, *map(len, spans)]).cumsum(0).int(),
                context_lens=torch.tensor(ends, dtype=torch.int32),
                logit_rows=torch.arange(len(positions)),
            ),
            pool,
        )
        logits = decoder.logits(hidden)
        for result, part in zip(results, logits.split([len(span) for span in spans]), strict=True):
            result.append(part)
    return [torch.cat(parts) for parts in results]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """transformers' model, and the folder it was saved to."""
    model = make(request.param)
    return model, save(model, tmp_path_factory.mktemp(request.param))


def test_logits_at_every_position(family: tuple[Any, Path]) -> None:
    model, folder = family
    sequences = prompts_for(3)
    expected = [reference_logits(model, sequence) for sequence in sequences]
    assert expected[0].std() > 0.3
    for chunk in (1000, 13):
        for ours, theirs in zip(our_logits(folder, sequences, chunk), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_greedy_in_a_mixed_batch_with_chunks_hits_and_preemption(family: tuple[Any, Path]) -> None:
    model, folder = family
    prompts = prompts_for(8)
    expected = [greedy(model, prompt, NUM_TOKENS) for prompt in prompts]
    assert len({tuple(answer[:5]) for answer in expected}) > 4
    core = make_core(folder, num_blocks=50, block_size=BLOCK_SIZE, max_num_batched_tokens=24, max_num_seqs=6)
    assert generate(core, prompts, SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS), every=3) == expected
    assert core.scheduler.counters.preemptions > 0
    assert core.scheduler.counters.prefix_hits > 0


def test_the_description_counts_the_parameters(family: tuple[Any, Path]) -> None:
    model, folder = family
    assert inspect(resolve(str(folder))).description.num_parameters() == model.num_parameters()
