"""Products with packed weights: against plain formulas on what the weight unpacks to, over odd shapes, alone and in company."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernel_cases import ADDRESS_SANITIZER, assert_product
from quire_kernels import ops

FORMATS = ops.PACKED_FORMATS
SHAPES = [(1, 1), (16, 32), (17, 33), (5, 96), (100, 31), (33, 577), (96, 320), (40, 1024)]  # N, K
ROWS = [1, 2, 3, 4, 5, 6, 7, 9, 13, 31]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(implementation: str, format: str, shape: tuple[int, int]) -> None:
    packed = ops.pack_weight(randn(*shape), format)
    assert (packed.format, packed.shape) == (format, shape)
    for rows in ROWS:
        x = randn(rows, shape[1], seed=rows) * torch.logspace(-3, 3, rows)[:, None]
        result = ops.packed_linear(x, packed)
        assert_product(implementation, x, packed, result)


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_is_the_same_in_any_company(cpu_implementation: str, format: str) -> None:
    packed = ops.pack_weight(randn(200, 576), format)
    x = randn(331, 576, seed=1)
    ops.set_num_threads(1)
    alone = torch.cat([ops.packed_linear(x[i : i + 1], packed) for i in range(len(x))])
    for threads in (1, 2, 3):
        ops.set_num_threads(threads)
        assert torch.equal(ops.packed_linear(x, packed), alone)
        for first, last in [(0, 2), (1, 4), (4, 8), (3, 8), (7, 13), (5, 100), (0, 97), (60, 261)]:
            assert torch.equal(ops.packed_linear(x[first:last], packed), alone[first:last])
    few = ops.pack_weight(randn(200, 576)[:33], format)  # the same rows in a weight of other panels
    assert torch.equal(ops.packed_linear(x, few), alone[:, :33])


@pytest.mark.parametrize("format", FORMATS)
def test_bias_and_strides(implementation: str, format: str) -> None:
    packed = ops.pack_weight(randn(50, 70), format)
    x, bias = randn(9, 140, seed=1)[:, 70:], randn(50, seed=2)
    plain = ops.packed_linear(x.contiguous(), packed)
    out = torch.full((9, 60), 7.0)
    result = ops.packed_linear(x, packed, bias, out=out[:, 5:55])
    assert result.data_ptr() == out[:, 5:].data_ptr()
    rounding = 1e-5 if implementation == "ref" else 0  # torch's own product depends on strides
    torch.testing.assert_close(result, plain + bias, rtol=rounding, atol=rounding)
    assert bool((out[:, :5] == 7).all()) and bool((out[:, 55:] == 7).all())
    assert ops.packed_linear(x[:0], packed).shape == (0, 50)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_a_broken_row_stays_broken_and_alone(implementation: str, format: str, bad: float) -> None:
    packed = ops.pack_weight(randn(40, 64), format)
    x = randn(5, 64, seed=1)
    clean = ops.packed_linear(x, packed)
    x[2, 37] = bad
    result = ops.packed_linear(x, packed)
    assert not bool(result[2].isfinite().any())
    kept = [0, 1, 3, 4]
    assert torch.equal(result[kept], clean[kept])


@pytest.mark.parametrize("format", FORMATS)
def test_small_and_zero_inputs(implementation: str, format: str) -> None:
    packed = ops.pack_weight(randn(16, 64), format)
    assert torch.equal(ops.packed_linear(torch.zeros(3, 64), packed), torch.zeros(3, 16))
    tiny = ops.packed_linear(torch.full((1, 64), 1e-42), packed)
    assert bool((tiny.abs() < 1e-39).all())
    zero = ops.pack_weight(torch.zeros(16, 64), format)
    assert torch.equal(ops.packed_linear(randn(3, 64), zero), torch.zeros(3, 16))


@pytest.mark.parametrize(
    ("format", "most"), [("f32", 1e-6), ("f16", 3e-4), ("bf16", 4e-3), ("q8", 0.009), ("q4", 0.085)]
)
def test_what_a_format_costs(implementation: str, format: str, most: float) -> None:
    """Root mean square of the error of products of normal weights and inputs, relative to the products."""
    weight, x = randn(256, 1024), randn(16, 1024, seed=1)
    exact = x.double() @ weight.double().T
    error = ops.packed_linear(x, ops.pack_weight(weight, format)).double() - exact
    assert float(error.square().mean().sqrt() / exact.square().mean().sqrt()) < most


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_come_back(implementation: str, dtype: torch.dtype) -> None:
    weight = randn(37, 75).to(dtype)
    strided = torch.zeros(37, 90, dtype=dtype)
    strided[:, 10:85] = weight
    for format, target in [("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)]:
        packed = ops.pack_weight(strided[:, 10:85], format)
        assert torch.equal(ops.unpack_weight(packed), weight.to(target).float())
    largest = torch.nn.functional.pad(weight.float(), (0, 21)).view(37, 3, 32).abs().amax(dim=-1)
    for format, steps in [("q8", 127), ("q4", 4)]:  # a grid may leave out the largest
        error = (ops.unpack_weight(ops.pack_weight(strided[:, 10:85], format)) - weight.float()).abs()
        allowed = (largest / steps).repeat_interleave(32, dim=-1)[:, :75]
        assert bool((error <= 0.7 * allowed).all())


def test_quants_are_those_of_the_reference(cpu_implementation: str) -> None:
    from quire_kernels import packed_ref

    weight = randn(64, 200) * torch.logspace(-4, 3, 64)[:, None]
    for format in ("q8", "q4"):
        ours = ops.unpack_weight(ops.pack_weight(weight, format))
        theirs = packed_ref.pack_weights([(weight, format)], None).parts[0].floats(200)
        same = (ours == theirs).double().mean()
        assert same > 0.99, format  # of pairs with the same error either may win
        ratio = (ours - weight).square().sum() / (theirs - weight).square().sum()
        assert abs(float(ratio) - 1) < 1e-4


@pytest.mark.parametrize("cols", [64, 75])
def test_what_matters_is_rounded_best(implementation: str, cols: int) -> None:
    weight, importance = randn(40, cols), torch.ones(cols)
    alike = ops.unpack_weight(ops.pack_weights([(weight, "q4")], importance))
    assert torch.equal(alike, ops.unpack_weight(ops.pack_weight(weight, "q4")))
    importance[[3, 17, 50]] = 1000.0
    weighted = ops.unpack_weight(ops.pack_weights([(weight, "q4")], importance))
    errors = [((each - weight).square() * importance).sum(dim=-1) for each in (weighted, alike)]
    assert float(errors[0].sum()) < 0.25 * float(errors[1].sum())


def test_what_matters_as_in_the_reference(cpu_implementation: str) -> None:
    from quire_kernels import packed_ref

    weight, importance = (
        randn(64, 200),
        torch.logspace(-4, 4, 200)[torch.randperm(200, generator=torch.Generator().manual_seed(1))],
    )
    ours = ops.unpack_weight(ops.pack_weights([(weight, "q4")], importance))
    theirs = packed_ref.pack_weights([(weight, "q4")], importance).parts[0].floats(200)
    assert (ours == theirs).double().mean() > 0.97
    ratio = ((ours - weight).square() * importance).sum() / ((theirs - weight).square() * importance).sum()
    assert abs(float(ratio) - 1) < 1e-3


def test_parts_of_a_weight(implementation: str) -> None:
    parts = [(randn(rows, 70, seed=rows), format) for rows, format in [(20, "q4"), (5, "q8"), (33, "q4")]]
    packed = ops.pack_weights(parts)
    assert (packed.format, packed.shape) == ("q4+q8", (58, 70))
    expected = torch.cat([ops.unpack_weight(ops.pack_weight(*part)) for part in parts])
    assert torch.equal(ops.unpack_weight(packed), expected)
    x = randn(3, 70)
    assert_product(implementation, x, packed, ops.packed_linear(x, packed))


def test_a_packed_weight_keeps_nothing_of_the_tensor(implementation: str) -> None:
    weight, x = randn(32, 64), randn(2, 64, seed=1)
    packed = [ops.pack_weight(weight, format) for format in ("bf16", "q8", "q4")]
    before = [ops.packed_linear(x, each) for each in packed]
    weight.zero_()
    assert all(torch.equal(ops.packed_linear(x, each), b) for each, b in zip(packed, before, strict=True))


@pytest.mark.parametrize(("format", "bits"), [("f32", 32), ("f16", 16), ("bf16", 16), ("q8", 8.5), ("q4", 5)])
def test_memory(cpu_implementation: str, format: str, bits: float) -> None:
    assert ops.pack_weight(torch.zeros(64, 1024), format).nbytes == 64 * 1024 * bits / 8


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Small weights share chunks of 32 MiB, large ones have memory of their own (packed/memory.cpp).
@pytest.mark.skipif(ADDRESS_SANITIZER, reason="AddressSanitizer keeps freed memory for a while")
@pytest.mark.parametrize(("count", "rows"), [(96, 512), (3, 16384)])
def test_memory_comes_back_with_the_last_weight(cpu_implementation: str, count: int, rows: int) -> None:
    weight, x = randn(rows, 512), randn(1, 512, seed=1)
    expected = ops.packed_linear(x, ops.pack_weight(weight, "f32"))
    before = resident()
    weights = [ops.pack_weight(weight, "f32") for _ in range(count)]
    held = sum(each.nbytes for each in weights)
    assert resident() - before > 0.9 * held
    del weights[1:]  # the neighbours of the first
    assert torch.equal(ops.packed_linear(x, weights[0]), expected)
    assert resident() - before < 0.6 * held
    weights.clear()
    assert resident() - before < 0.1 * held


@pytest.mark.parametrize("format", ["q8", "q4"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 40000.0], ids=str)
def test_weights_without_quants_are_refused(implementation: str, format: str, bad: float) -> None:
    weight = randn(50, 64)
    weight[48:, 3] = weight[7, 63] = bad
    with pytest.raises(ops.ArgumentError, match=r"weight\[7\] holds a number that is not finite or above 32768"):
        ops.pack_weight(weight, format)
