"""Whether a model of transformers computes the same with paged attention as with its own.

Two short texts, one of them in two chunks beside the other, against the model's plain attention on each text alone. A
difference means that the model remembers something else than keys and values, masks in its own way, or counts
positions itself: then it is refused, for it would answer nonsense.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.errors import ModelError
from quire.models.executor import Batch, Executor, ModelFacts, allocate_kv_pool

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.05}
"""Relative difference of logits (Euclidean). Ignoring a bias or a chunk's past gives 0.3 and more, rounding far less."""
LENGTHS = (21, 9)
FIRST_CHUNK = 13
BLOCK_SIZE = 4


Reference = list[tuple[Tensor, Tensor]]
"""Texts [T] and the logits [T, vocab] of their tokens."""


@torch.inference_mode()
def plain_logits(model: Any, place: Path, vocab_size: int, num_positions: int) -> Reference:
    """What the model computes with its own attention. num_positions: bound of the texts' length."""
    name = model.config._attn_implementation
    model.set_attn_implementation("eager")
    if model.config._attn_implementation != "eager":
        raise ModelError(f"{place}: the model has no attention of its own to compare with; it cannot be served")
    reference = []
    for length in LENGTHS:
        text = torch.tensor([(7 + 31 * i + 57 * i * i) % vocab_size for i in range(min(length, num_positions))])
        logits = model(input_ids=text[None].to(model.device), use_cache=False).logits[0]
        reference.append((text, logits.float()))
    model.set_attn_implementation(name)
    return reference


def compare(executor: Executor, facts: ModelFacts, place: Path, reference: Reference) -> None:
    """Raises ModelError where paged attention gives other logits."""
    ours = _paged(executor, facts, *(text for text, _ in reference))
    theirs = torch.cat([logits for _, logits in reference])
    error = float((ours - theirs).norm() / theirs.norm())
    if not error <= TOLERANCE[executor.dtype]:
        raise ModelError(
            f"{place}: with paged attention the model does not compute what transformers does (logits differ by {error:.0%}); "
            "it cannot be served"
        )


def _paged(executor: Executor, facts: ModelFacts, first: Tensor, second: Tensor) -> Tensor:
    """The same logits by two steps: a chunk of the first text; then its rest and the second text."""
    columns = -(-max(LENGTHS) // BLOCK_SIZE)
    pool = allocate_kv_pool(facts, 2 * columns, BLOCK_SIZE, executor.dtype, executor.device)
    tables = torch.arange(2 * columns, dtype=torch.int32).flip(0).view(2, columns)
    cut = min(FIRST_CHUNK, len(first) - 1)
    steps = [[(0, 0, first[:cut])], [(0, cut, first[cut:]), (1, 0, second)]]
    hidden = [executor.forward(_batch(step, tables, executor.device), pool) for step in steps]
    return executor.logits(torch.cat(hidden)).float()


def _batch(step: list[tuple[int, int, Tensor]], tables: Tensor, device: torch.device) -> Batch:
    """Entries are (row of the block tables, position of the first token, tokens); all logits are wanted."""
    rows = torch.tensor([row for row, _, _ in step])
    positions = [torch.arange(start, start + len(tokens)) for _, start, tokens in step]
    slots = [
        tables[row, at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
        for (row, _, _), at in zip(step, positions, strict=True)
    ]
    counts = torch.tensor([0, *(len(tokens) for _, _, tokens in step)])
    return Batch(
        token_ids=torch.cat([tokens for _, _, tokens in step]).to(device),
        positions=torch.cat(positions).to(device),
        slot_mapping=torch.cat(slots).to(torch.int64).to(device),
        block_tables=tables[rows].contiguous().to(device),
        query_start=counts.cumsum(0).to(torch.int32).to(device),
        context_lens=torch.tensor([start + len(tokens) for _, start, tokens in step], dtype=torch.int32).to(device),
        logit_rows=torch.arange(int(counts.sum())).to(device),
    )
