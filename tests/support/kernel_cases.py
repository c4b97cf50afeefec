"""Paged batches for tests of the kernels, and an attention of their own to compare with; blocks of GGUF."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import quire_kernels
from quire_kernels import ops

ADDRESS_SANITIZER = "libasan" in os.environ.get("LD_PRELOAD", "")
"""Whether this is a run of `make test-asan`."""
# Scores and sums are fp32, so what is left is the rounding of the result to its type (half a unit: 2^-9, 2^-12).
ATTENTION_TOLERANCE: dict[torch.dtype, dict[str, float]] = {
    torch.float32: {"rtol": 1e-5, "atol": 3e-6},
    torch.bfloat16: {"rtol": 2**-8, "atol": 1e-5},
    torch.float16: {"rtol": 2**-11, "atol": 1e-5},
}


@dataclass(frozen=True)
class PagedBatch:
    """Arguments of `ops.paged_attention`."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    scale: float
    window: int = 0
    softcap: float = 0.0

    def run(self, out: Tensor | None = None) -> Tensor:
        return ops.paged_attention(
            self.query,
            self.key_cache,
            self.value_cache,
            self.block_tables,
            self.query_start,
            self.context_lens,
            self.scale,
            out,
            window=self.window,
            softcap=self.softcap,
        )

    def rows(self, sequence: int) -> slice:
        return slice(int(self.query_start[sequence]), int(self.query_start[sequence + 1]))

    def alone(self, sequence: int) -> PagedBatch:
        """The same sequence in a batch of its own, with a block table no wider than it needs."""
        rows = self.rows(sequence)
        columns = -(-int(self.context_lens[sequence]) // self.key_cache.shape[1])
        return replace(
            self,
            query=self.query[rows].clone(),
            block_tables=self.block_tables[sequence : sequence + 1, :columns].clone(),
            query_start=torch.tensor([0, rows.stop - rows.start], dtype=torch.int32),
            context_lens=self.context_lens[sequence : sequence + 1],
        )

    def expected(self) -> Tensor:
        """Attention by torch in float64 on gathered keys; rows of padding are 0."""
        result = torch.zeros(self.query.shape, dtype=torch.float64)
        block_size = self.key_cache.shape[1]
        group = self.query.shape[1] // self.key_cache.shape[2]
        for sequence, context in enumerate(self.context_lens.tolist()):
            rows = self.rows(sequence)
            count = rows.stop - rows.start
            if count == 0:
                continue
            tokens = torch.arange(context)
            blocks = self.block_tables[sequence].long()[tokens // block_size]
            keys = self.key_cache[blocks, tokens % block_size].double().transpose(0, 1)
            values = self.value_cache[blocks, tokens % block_size].double().transpose(0, 1)
            age = torch.arange(context - count, context)[:, None] - tokens[None, :]
            visible = (age >= 0) & (age < (self.window or context))
            scores = self.query[rows].double().transpose(0, 1) @ keys.repeat_interleave(group, dim=0).mT * self.scale
            if self.softcap:
                scores = self.softcap * torch.tanh(scores / self.softcap)
            weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
            result[rows] = (weights @ values.repeat_interleave(group, dim=0)).transpose(0, 1)
        return result


def paged_batch(
    lengths: Sequence[tuple[int, int]],
    *,
    heads: tuple[int, int] = (9, 3),
    head_size: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    padding: int = 0,
    seed: int = 0,
) -> PagedBatch:
    """lengths: (query tokens, context) of each sequence. Blocks are scattered over the pool, unused slots hold NaN, and
    entries of the block table that no token needs name no block."""
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = heads
    needed = [-(-context // block_size) for _, context in lengths]
    num_blocks = sum(needed) + 2
    order = torch.randperm(num_blocks, generator=generator)
    tables = torch.full((len(lengths), max(needed, default=0) + 1), -(2**31), dtype=torch.int32)
    shape = (num_blocks, block_size, num_kv_heads, head_size)
    caches = torch.full((2, *shape), float("nan"), dtype=cache_dtype or dtype)
    taken = 0
    for sequence, (_, context) in enumerate(lengths):
        blocks = order[taken : taken + needed[sequence]]
        taken += needed[sequence]
        tables[sequence, : len(blocks)] = blocks
        tokens = torch.arange(context)
        fresh = torch.randn(2, context, num_kv_heads, head_size, generator=generator)
        caches[:, blocks[tokens // block_size], tokens % block_size] = fresh.to(caches.dtype)
    starts = torch.tensor([0, *(count for count, _ in lengths)]).cumsum(0).int()
    return PagedBatch(
        query=torch.randn(int(starts[-1]) + padding, num_heads, head_size, generator=generator).to(dtype),
        key_cache=caches[0],
        value_cache=caches[1],
        block_tables=tables,
        query_start=starts,
        context_lens=torch.tensor([context for _, context in lengths], dtype=torch.int32),
        scale=head_size**-0.5,
    )


def as_int8(x: Tensor) -> Tensor:
    """x in blocks of 32 as int8 with a scale shows it, in double."""
    rows, cols = x.shape
    blocks = torch.nn.functional.pad(x, (0, -cols % 32)).view(rows, -1, 32)
    largest = blocks.abs().amax(dim=-1, keepdim=True)
    factor = torch.full_like(largest, 127) / largest  # a number by a tensor would be rounded twice
    quants = torch.round(blocks * torch.where(largest > 0, factor, 0.0))
    return (quants.double() * (largest / 127).double()).reshape(rows, -1)[:, :cols]


def assert_product(
    implementation: str, x: Tensor, packed: ops.PackedWeight, result: Tensor, bias: Tensor | None = None
) -> None:
    """The result is the product of what the weight unpacks to and what the format makes of the input, but for the rounding of an
    fp32 sum of K products, relative to the sum of their magnitudes."""
    weight = ops.unpack_weight(packed).double()
    if packed.format.startswith("q"):
        inputs = as_int8(x)
    elif packed.format == "bf16" and implementation.endswith("bf16"):
        inputs = x.bfloat16().double()
    else:
        inputs = x.double()
    expected = inputs @ weight.T
    # A weight with a minimum is a difference of two numbers of up to twice its block's largest.
    most = torch.nn.functional.pad(weight.abs(), (0, -weight.shape[1] % 32)).view(len(weight), -1, 32).amax(dim=-1)
    magnitude = inputs.abs() @ (3 * most.repeat_interleave(32, dim=-1)[:, : weight.shape[1]]).T
    if bias is not None:
        expected, magnitude = expected + bias, magnitude + bias.abs()
    wrong = (result.double() - expected).abs() > 2e-6 * magnitude + 1e-37
    assert not bool(wrong.any()), f"differs first at {wrong.nonzero()[0].tolist()}: {(result - expected).abs().max()}"


def random_blocks(kind: ops.GgmlType, blocks: int, seed: int = 0) -> np.ndarray:
    """Random bytes, but finite scales: f16 patterns with all exponent bits set are the file's business, not ours."""
    elements, size = ops.GGML_BLOCKS[kind]
    raw = np.random.default_rng([int(kind), seed]).integers(0, 256, (blocks, size), dtype=np.uint8)
    if elements > 1:
        halves = {ops.GgmlType.Q4_1: 2, ops.GgmlType.Q5_1: 2, ops.GgmlType.Q4_K: 2, ops.GgmlType.Q5_K: 2}.get(kind, 1)
        first = size - 2 if kind is ops.GgmlType.Q6_K else 0
        raw[:, first + 1 : first + 2 * halves : 2] &= 0xBF
    return raw


def run_alone(program: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(quire_kernels.__file__).parents[1]), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
