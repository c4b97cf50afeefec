"""Cache writes, norms, rotary embedding, gated activation: against plain formulas, odd widths, strides and bad calls."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire_kernels import ops

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# fp32 inside, one rounding to the type at the end (rms_norm: one more in between, as Llama does).
TOLERANCE: dict[torch.dtype, dict[str, float]] = {
    torch.float32: {"rtol": 2e-6, "atol": 2e-6},
    torch.bfloat16: {"rtol": 2**-8, "atol": 1e-6},
    torch.float16: {"rtol": 2**-11, "atol": 1e-6},
}
TWO_ROUNDINGS: dict[torch.dtype, dict[str, float]] = {
    dtype: {"rtol": 2 * t["rtol"], "atol": t["atol"]} for dtype, t in TOLERANCE.items()
}
WIDTHS = [1, 3, 16, 31, 576, 577, 1536]


def randn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(implementation: str, dtype: torch.dtype, width: int) -> None:
    x, weight = randn(7, width, dtype=dtype), randn(width, dtype=dtype, seed=1)
    expected = exact_rms_norm(x, weight, 1e-5)
    result = ops.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(result.double(), expected, **TWO_ROUNDINGS[dtype])
    ops.rms_norm(x, weight, 1e-5, out=x)
    assert torch.equal(x, result)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_fused_add_rms_norm_is_add_then_norm(implementation: str, dtype: torch.dtype, width: int) -> None:
    x, residual = randn(5, width, dtype=dtype), randn(5, width, dtype=dtype, seed=1)
    weight = randn(width, dtype=dtype, seed=2)
    total = x + residual
    expected = ops.rms_norm(total, weight, 1e-6)
    result = ops.fused_add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, total)
    assert torch.equal(result, expected)


def test_rms_norm_rounds_before_the_weight_as_llama(implementation: str) -> None:
    x, weight = randn(64, 576, dtype=torch.bfloat16), randn(576, dtype=torch.bfloat16, seed=1)
    normal = x.float() * torch.rsqrt(x.float().square().mean(dim=-1, keepdim=True) + 1e-5)
    llama = weight * normal.to(torch.bfloat16)
    same = (ops.rms_norm(x, weight, 1e-5) == llama).double().mean()
    assert same > 0.999  # the order of the sum of squares may flip a last bit


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_with_an_offset_rounds_once_as_gemma(implementation: str, dtype: torch.dtype, width: int) -> None:
    x, residual = randn(7, width, dtype=dtype), randn(7, width, dtype=dtype, seed=2)
    weight = randn(width, dtype=dtype, seed=1) * 0.3
    expected = exact_rms_norm(x, weight.double() + 1, 1e-5)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5, offset=1.0).double(), expected, **TOLERANCE[dtype])
    total = x + residual
    expected = exact_rms_norm(total, weight.double() + 1, 1e-5)
    result = ops.fused_add_rms_norm(x, residual, weight, 1e-5, offset=1.0)
    torch.testing.assert_close(result.double(), expected, **TOLERANCE[dtype])
    assert torch.equal(residual, total)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("head_size", [7, 64, 80])
def test_head_rms_norm(implementation: str, dtype: torch.dtype, offset: float, head_size: int) -> None:
    fused = randn(5, 15, head_size, dtype=dtype)
    weights = randn(2, head_size, dtype=dtype, seed=1)
    expected = [
        ops.rms_norm(heads.reshape(-1, head_size), weight, 1e-5, offset=offset)
        for heads, weight in zip((fused[:, :9], fused[:, 9:12]), weights, strict=True)
    ]
    rest = fused[:, 12:].clone()
    ops.head_rms_norm(fused[:, :9], fused[:, 9:12], weights[0], weights[1], 1e-5, offset=offset)
    assert torch.equal(fused[:, :9].reshape(-1, head_size), expected[0])
    assert torch.equal(fused[:, 9:12].reshape(-1, head_size), expected[1])
    assert torch.equal(fused[:, 12:], rest)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("head_size", "half"), [(64, 32), (80, 40), (96, 16), (7, 3), (256, 128), (10, 0)])
def test_rope(implementation: str, dtype: torch.dtype, head_size: int, half: int) -> None:
    query, key = randn(6, 9, head_size, dtype=dtype), randn(6, 3, head_size, dtype=dtype, seed=1)
    positions = torch.tensor([0, 1, 99, 50, 50, 7])
    angles = torch.outer(torch.arange(100).double(), 1e4 ** -(torch.arange(half).double() / max(half, 1)))
    expected = []
    for heads in (query, key):
        wide = heads.double()
        turned = torch.view_as_complex(torch.stack([wide[..., :half], wide[..., half : 2 * half]], dim=-1).contiguous())
        turned = turned * torch.polar(torch.ones_like(angles), angles)[positions][:, None]
        expected.append(torch.cat([turned.real, turned.imag, wide[..., 2 * half :]], dim=-1))
    ops.rope(query, key, positions, angles.cos().float(), angles.sin().float())
    torch.testing.assert_close(query.double(), expected[0], **TOLERANCE[dtype])
    torch.testing.assert_close(key.double(), expected[1], **TOLERANCE[dtype])


def test_rope_on_slices_of_a_fused_projection(implementation: str) -> None:
    fused = randn(4, 15, 64, dtype=torch.float32)
    query, key, rest = fused[:, :9].clone(), fused[:, 9:12].clone(), fused[:, 12:].clone()
    positions, angles = torch.tensor([3, 2, 1, 0]), torch.randn(8, 32)
    ops.rope(query, key, positions, angles.cos(), angles.sin())
    ops.rope(fused[:, :9], fused[:, 9:12], positions, angles.cos(), angles.sin())
    assert torch.equal(fused, torch.cat([query, key, rest], dim=1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul(implementation: str, dtype: torch.dtype, width: int) -> None:
    gate_up = randn(5, 2 * width, dtype=dtype) * 8
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = gate * gate.sigmoid() * up
    torch.testing.assert_close(ops.silu_mul(gate_up).double(), expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_gelu_tanh_mul(implementation: str, dtype: torch.dtype, width: int) -> None:
    gate_up = randn(5, 2 * width, dtype=dtype) * 3
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = torch.nn.functional.gelu(gate, approximate="tanh") * up
    torch.testing.assert_close(ops.gelu_tanh_mul(gate_up).double(), expected, **TOLERANCE[dtype])


def test_gelu_tanh_mul_at_the_extremes(implementation: str) -> None:
    gate = torch.tensor([[-1e30, -200.0, -20.0, 0.0, 20.0, 1e30, float("inf"), float("nan")]])
    result = ops.gelu_tanh_mul(torch.cat([gate, torch.ones_like(gate)], dim=-1))
    assert result[0, :3].abs().max() < 1e-30
    assert result[0, 3:7].tolist() == [0.0, 20.0, gate[0, 5].item(), float("inf")]
    assert result[0, 7].isnan()


def test_silu_mul_at_the_extremes(implementation: str) -> None:
    gate = torch.tensor([[-1e30, -200.0, -88.0, 0.0, 88.0, 1e30, float("inf"), float("nan")]])
    result = ops.silu_mul(torch.cat([gate, torch.ones_like(gate)], dim=-1))
    assert result[0, :3].abs().max() < 1e-30
    assert result[0, 3:7].tolist() == [0.0, 88.0, gate[0, 5].item(), float("inf")]
    assert result[0, 7].isnan()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cache_dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "head_size"), [(3, 64), (1, 33), (5, 80)])
def test_write_kv(
    implementation: str, dtype: torch.dtype, cache_dtype: torch.dtype, heads: int, head_size: int
) -> None:
    tokens = randn(2, 6, heads, head_size, dtype=dtype)
    caches = randn(2, 4, 5, heads, head_size, dtype=cache_dtype, seed=1)
    expected = caches.clone()
    slots = torch.tensor([19, -1, 0, 7, -1, 12])
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[:, slot // 5, slot % 5] = tokens[:, row].to(cache_dtype)
    ops.write_kv(tokens[0], tokens[1], caches[0], caches[1], slots)
    assert torch.equal(caches, expected)


def test_write_kv_through_strides(implementation: str) -> None:
    fused = randn(3, 15, 64, dtype=torch.float32)
    pool = torch.zeros(4, 2, 3, 8, 64).transpose(2, 3)  # [N, 2, B, Hkv, D], heads before slots in memory
    slots = torch.tensor([31, 8, 0])
    ops.write_kv(fused[:, 9:12], fused[:, 12:], pool[:, 0], pool[:, 1], slots)
    for row, slot in enumerate(slots.tolist()):
        assert torch.equal(pool[slot // 8, :, slot % 8], fused[row, 9:].view(2, 3, 64))
    assert int((pool != 0).any(dim=-1).sum()) == 18


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_is_torchs(cpu_implementation: str, cast: torch.dtype) -> None:
    """Every bit pattern of the narrow type, its neighbours in float32, ties, subnormals, infinities and NaN."""
    narrow = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(cast)
    ties = narrow.float().view(torch.int32).unsqueeze(1) + torch.tensor([-1, 0, 1, 2**11, 2**12, 2**13 - 1, 2**15])
    values = torch.cat([ties.flatten().view(torch.float32), torch.tensor([1e-8, 65519.0, 65520.0, 3.4e38, -0.0])])
    rows = values[: values.numel() // 16 * 16].view(-1, 1, 16)
    cache = torch.zeros(rows.shape[0], 1, 1, 16, dtype=cast)
    ops.write_kv(rows, rows, cache, cache.clone(), torch.arange(rows.shape[0]))
    result, expected = cache.view(-1), rows.reshape(-1).to(cast)
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result[~expected.isnan()], expected[~expected.isnan()])
    back = torch.zeros(narrow.numel() // 16, 1, 1, 16)
    ops.write_kv(narrow.view(-1, 1, 16), narrow.view(-1, 1, 16), back, back.clone(), torch.arange(back.shape[0]))
    assert torch.equal(back.view(-1).nan_to_num(nan=1.5), narrow.float().nan_to_num(nan=1.5))


def test_long_batches_are_shared_out_without_a_change(cpu_implementation: str) -> None:
    x, weight = randn(3000, 576, dtype=torch.bfloat16), randn(576, dtype=torch.bfloat16, seed=1)
    ops.set_num_threads(1)
    alone = ops.rms_norm(x, weight, 1e-5), ops.silu_mul(x)
    for threads in (2, 5):
        ops.set_num_threads(threads)
        assert torch.equal(ops.rms_norm(x, weight, 1e-5), alone[0])
        assert torch.equal(ops.silu_mul(x), alone[1])


@pytest.mark.parametrize("slot", [-2, 20, 2**40, -(2**62)])
def test_write_kv_refuses_slots_out_of_bounds(implementation: str, slot: int) -> None:
    tokens, cache = torch.zeros(2, 1, 8), torch.zeros(4, 5, 1, 8)
    with pytest.raises(ops.ArgumentError, match=rf"slot_mapping\[1\] is {slot}, outside -1\.\.19"):
        ops.write_kv(tokens, tokens, cache, cache.clone(), torch.tensor([3, slot]))


@pytest.mark.parametrize("position", [-1, 8, 2**40])
def test_rope_refuses_positions_out_of_bounds(implementation: str, position: int) -> None:
    heads, table = torch.zeros(2, 1, 8), torch.zeros(8, 4)
    with pytest.raises(ops.ArgumentError, match=rf"positions\[1\] is {position}, outside 0\.\.7"):
        ops.rope(heads, heads.clone(), torch.tensor([0, position]), table, table)


def test_rows_of_no_tokens(implementation: str) -> None:
    empty, cache, table = torch.zeros(0, 1, 8), torch.zeros(4, 5, 1, 8), torch.zeros(8, 4)
    none = torch.zeros(0, dtype=torch.int64)
    ops.write_kv(empty, empty, cache, cache, none)
    ops.rope(empty, empty, none, table, table)
    assert ops.rms_norm(torch.zeros(0, 4), torch.zeros(4), 1e-5).shape == (0, 4)
    assert ops.silu_mul(torch.zeros(0, 4)).shape == (0, 2)
