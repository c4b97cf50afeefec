"""Unpacking of GGUF blocks equals the gguf package's, bit for bit, on every bit pattern a block may hold."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from kernel_cases import random_blocks
from quire_kernels import ops


@pytest.mark.parametrize("kind", ops.GgmlType)
def test_equals_the_gguf_package(implementation: str, kind: ops.GgmlType) -> None:
    raw = random_blocks(kind, 331)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType(kind)).reshape(-1).astype(np.float32)
    flat = torch.from_numpy(raw.reshape(-1))
    result = ops.dequantize_gguf(flat, gguf.GGMLQuantizationType(kind), expected.size)
    assert np.array_equal(result.numpy(), expected, equal_nan=True)
    for dtype in (torch.bfloat16, torch.float16):
        narrow = ops.dequantize_gguf(flat, kind, expected.size, dtype)
        assert narrow.dtype is dtype
        torch.testing.assert_close(narrow, torch.from_numpy(expected).to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_weights_come_back(implementation: str, name: str) -> None:
    kind = ops.GgmlType[name]
    weights = np.random.default_rng(0).standard_normal((64, 576), dtype=np.float32)
    raw = torch.from_numpy(gguf.quantize(weights, gguf.GGMLQuantizationType(kind)).reshape(-1))
    result = ops.dequantize_gguf(raw, kind, weights.size).numpy().reshape(weights.shape)
    steps = {"Q4_0": 8, "Q4_1": 7, "Q5_0": 16, "Q5_1": 15, "Q8_0": 127}[name]
    assert np.abs(result - weights).max() < 1.1 * np.abs(weights).max() / steps


def test_sizes_are_the_formats(implementation: str) -> None:
    for kind, sizes in ops.GGML_BLOCKS.items():
        assert sizes == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    assert ops.dequantize_gguf(torch.zeros(0, dtype=torch.uint8), ops.GgmlType.Q4_K, 0).shape == (0,)


@pytest.mark.parametrize(
    ("size", "kind", "elements", "dtype", "message"),
    [
        (18, 10, 32, torch.float32, "ggml_type 10 is not supported; supported: F32, F16, Q4_0"),
        (18, 2, 33, torch.float32, "num_elements must be a multiple of 32 for Q4_0, got 33"),
        (17, 2, 32, torch.float32, r"raw must have shape \[18\], got \[17\]"),
        (18, 2, 32, torch.int32, "out must be float32, bfloat16 or float16, got int32"),
    ],
)
def test_bad_calls_are_refused(
    implementation: str, size: int, kind: int, elements: int, dtype: torch.dtype, message: str
) -> None:
    with pytest.raises(ops.ArgumentError, match=message):
        ops.dequantize_gguf(torch.zeros(size, dtype=torch.uint8), kind, elements, dtype)
