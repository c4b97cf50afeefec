"""Packed blocks of GGUF: what they unpack to is what the file says, and stacks of types are the products of their parts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernel_cases import assert_product, random_blocks
from quire_kernels import ops

K_TYPES = {ops.GgmlType.Q4_K, ops.GgmlType.Q5_K, ops.GgmlType.Q6_K}
ROWS, COLS = 37, 512


def blocks(kind: ops.GgmlType, rows: int = ROWS, cols: int = COLS) -> Tensor:
    if kind in (ops.GgmlType.F32, ops.GgmlType.F16, ops.GgmlType.BF16):
        dtype = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}[int(kind)]
        values = torch.randn(rows * cols, generator=torch.Generator().manual_seed(int(kind)))
        return values.to(dtype).view(torch.uint8)
    return torch.from_numpy(random_blocks(kind, rows * cols // ops.GGML_BLOCKS[kind][0])).reshape(-1)


@pytest.mark.parametrize("kind", ops.GgmlType)
def test_unpacks_to_what_the_file_says(implementation: str, kind: ops.GgmlType) -> None:
    raw = blocks(kind)
    packed = ops.pack_gguf([(raw, kind, ROWS)], COLS)
    result = ops.unpack_weight(packed)
    expected = ops.dequantize_gguf(raw, kind, ROWS * COLS).view(ROWS, COLS)
    if kind not in K_TYPES:
        assert torch.equal(result, expected)
        return
    # Scale and minimum are rounded to float16: by 2^-11 of each, of which neither is larger than twice the block's most, or
    # by half the smallest float16.
    most = expected.view(ROWS, -1, 16).abs().amax(dim=-1).repeat_interleave(16, dim=-1)
    minima = 64 * 2.0 if kind is not ops.GgmlType.Q6_K else 0.0  # dmin < 2 in random_blocks, times 63
    bound = 2.0**-11 * (3 * most + 2 * minima) + 2.0**-25 * 64
    assert bool(((result - expected).abs() <= bound).all())


@pytest.mark.parametrize("kind", sorted(K_TYPES))
def test_k_types_are_rounded_by_little(implementation: str, kind: ops.GgmlType) -> None:
    """On blocks as files hold them, against their own size."""
    raw = blocks(kind).view(-1, ops.GGML_BLOCKS[kind][1])
    scale = torch.tensor([0.0123]).half().view(torch.uint8)
    at = 208 if kind is ops.GgmlType.Q6_K else 0
    raw[:, at : at + 2] = scale
    if kind is not ops.GgmlType.Q6_K:
        raw[:, 2:4] = scale
    flat = raw.reshape(-1)
    expected = ops.dequantize_gguf(flat, kind, ROWS * COLS).view(ROWS, COLS)
    error = ops.unpack_weight(ops.pack_gguf([(flat, kind, ROWS)], COLS)) - expected
    assert float(error.square().mean().sqrt() / expected.square().mean().sqrt()) < 4e-4


@pytest.mark.parametrize("kind", ops.GgmlType)
@pytest.mark.parametrize("rows", [1, 3, 5, 8])
def test_products(implementation: str, kind: ops.GgmlType, rows: int) -> None:
    packed = ops.pack_gguf([(blocks(kind), kind, ROWS)], COLS)
    x = torch.randn(rows, COLS, generator=torch.Generator().manual_seed(rows))
    assert_product(implementation, x, packed, ops.packed_linear(x, packed))


def test_a_stack_is_its_parts(implementation: str) -> None:
    kinds = [ops.GgmlType.Q4_1, ops.GgmlType.Q6_K, ops.GgmlType.Q8_0, ops.GgmlType.Q4_1, ops.GgmlType.Q5_1]
    parts = [(blocks(kind, rows), kind, rows) for kind, rows in zip(kinds, [20, 16, 5, 33, 1], strict=True)]
    stack = ops.pack_gguf(parts, COLS)
    assert (stack.format, stack.shape) == ("q4+q8", (75, COLS))
    x = torch.randn(7, COLS, generator=torch.Generator().manual_seed(0))
    bias = torch.arange(75.0)
    alone = [ops.packed_linear(x, ops.pack_gguf([part], COLS)) for part in parts]
    assert torch.equal(ops.packed_linear(x, stack, bias), torch.cat(alone, dim=1) + bias)
    assert torch.equal(
        ops.unpack_weight(stack), torch.cat([ops.unpack_weight(ops.pack_gguf([p], COLS)) for p in parts])
    )


@pytest.mark.parametrize(
    ("parts", "cols", "message"),
    [
        ([], 64, "parts must hold at least one tensor"),
        ([(18, 10, 1)], 32, "ggml_type 10 is not supported; supported: F32, F16, Q4_0"),
        ([(18, 2, 1)], 33, "cols must be a multiple of 32 for Q4_0, got 33"),
        ([(18, 2, 0)], 32, "rows must be 1 or more, got 0"),
        ([(18, 2, 1), (17, 2, 1)], 32, r"raw must have shape \[18\], got \[17\]"),
        ([(18, 2, 1), (128, 0, 1)], 32, "parts that read their input in different forms .* cannot share"),
        ([(64, 30, 1), (128, 0, 1)], 32, "parts that read their input in different forms .* cannot share"),
    ],
)
def test_bad_parts_are_refused(implementation: str, parts: list[tuple[int, int, int]], cols: int, message: str) -> None:
    with pytest.raises(ops.ArgumentError, match=message):
        ops.pack_gguf([(torch.zeros(size, dtype=torch.uint8), kind, rows) for size, kind, rows in parts], cols)
