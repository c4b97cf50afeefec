"""The reference: every kernel in plain torch, written to be read, on any device.

It defines what the other implementations must compute, it is what tests compare with, and it serves devices that have
no kernels of their own. It is never tuned. Each function checks shapes first (`quire_kernels.checks`), then the values
that could lead out of bounds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quire_kernels import checks
from quire_kernels.errors import ArgumentError
from quire_kernels.formats import GgmlType

NAME = "ref"

set_num_threads = torch.set_num_threads
num_threads = torch.get_num_threads


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor,
    window: int,
    softcap: float,
) -> None:
    """One sequence at a time: gather its keys and values, soft-max in fp32 under the causal mask."""
    checks.paged_attention(query, key_cache, value_cache, block_tables, query_start, context_lens, out, window, softcap)
    num_blocks, block_size, num_kv_heads, head_size = key_cache.shape
    group = query.shape[1] // num_kv_heads
    starts = query_start.tolist()
    contexts = context_lens.tolist()
    _check_ragged(starts, contexts, query.shape[0], block_tables.shape[1] * block_size)
    out[starts[-1] :].zero_()
    for sequence, context in enumerate(contexts):
        begin, end = starts[sequence], starts[sequence + 1]
        if begin == end:
            continue
        blocks = block_tables[sequence, : -(-context // block_size)].long()
        _check_indices(f"block_tables[{sequence}]", blocks, 0, num_blocks - 1)
        keys = key_cache[blocks].reshape(-1, num_kv_heads, head_size)[:context].float()
        values = value_cache[blocks].reshape(-1, num_kv_heads, head_size)[:context].float()
        queries = query[begin:end].float().view(end - begin, num_kv_heads, group, head_size)
        scores = torch.einsum("qhgd,khd->hgqk", queries, keys) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        age = torch.arange(context - (end - begin), context, device=query.device)[:, None] - torch.arange(
            context, device=query.device
        )
        hidden = (age < 0) | (age >= window) if window else age < 0
        weights = scores.masked_fill_(hidden, float("-inf")).softmax(dim=-1)
        result = torch.einsum("hgqk,khd->qhgd", weights, values)
        out[begin:end] = result.reshape(end - begin, -1, head_size).to(out.dtype)


def _check_ragged(starts: list[int], contexts: list[int], num_tokens: int, capacity: int) -> None:
    if starts[0] != 0 or starts[-1] > num_tokens:
        raise ArgumentError(
            f"query_start must begin with 0 and end at most at the {num_tokens} rows of query, got {starts[0]}..{starts[-1]}"
        )
    for sequence, context in enumerate(contexts):
        length = starts[sequence + 1] - starts[sequence]
        if length < 0:
            raise ArgumentError(f"query_start must not decrease, but does at sequence {sequence}")
        if context < length:
            raise ArgumentError(
                f"context_lens[{sequence}] is {context}, less than the sequence's {length} query tokens"
            )
        if context > capacity:
            raise ArgumentError(
                f"context_lens[{sequence}] is {context}, more than the {capacity} slots a row of block_tables can name"
            )


def _check_indices(name: str, indices: Tensor, low: int, high: int) -> None:
    for index in ((indices < low) | (indices > high)).nonzero().flatten().tolist():
        raise ArgumentError(f"{name}[{index}] is {int(indices[index])}, outside {low}..{high}")


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Scatter rows to slots; slot = block * block_size + offset."""
    checks.write_kv(key, value, key_cache, value_cache, slot_mapping)
    num_blocks, block_size = key_cache.shape[:2]
    _check_indices("slot_mapping", slot_mapping, -1, num_blocks * block_size - 1)
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    block, offset = slots // block_size, slots % block_size
    key_cache[block, offset] = key[kept].to(key_cache.dtype)
    value_cache[block, offset] = value[kept].to(value_cache.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float, out: Tensor) -> None:
    """Statistics in fp32; the normalised row is rounded to the dtype before the weight, as Llama does, or once, as Gemma."""
    checks.rms_norm(x, weight, out)
    out.copy_(_rms_norm(x, weight, eps, offset))


def _rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return scaled * (weight.float() + offset) if offset else scaled.to(x.dtype) * weight


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float, out: Tensor) -> None:
    """The sum is stored in the model's dtype and normalised as stored."""
    checks.fused_add_rms_norm(x, residual, weight, out)
    residual.add_(x)
    rms_norm(residual, weight, eps, offset, out)


def head_rms_norm(
    query: Tensor, key: Tensor, query_weight: Tensor, key_weight: Tensor, eps: float, offset: float
) -> None:
    """Each head is a row."""
    checks.head_rms_norm(query, key, query_weight, key_weight)
    query.copy_(_rms_norm(query, query_weight, eps, offset))
    key.copy_(_rms_norm(key, key_weight, eps, offset))


def rope(query: Tensor, key: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate the first 2 * half elements of each head: halves, not pairs."""
    checks.rope(query, key, positions, cos, sin)
    _check_indices("positions", positions, 0, cos.shape[0] - 1)
    c = cos[positions].unsqueeze(1)
    s = sin[positions].unsqueeze(1)
    half = cos.shape[1]
    for heads in (query, key):
        first, second = heads[..., :half].float(), heads[..., half : 2 * half].float()
        rotated = torch.cat([first * c - second * s, second * c + first * s], dim=-1)
        heads[..., : 2 * half] = rotated.to(heads.dtype)


def silu_mul(gate_up: Tensor, out: Tensor) -> None:
    """silu(gate) * up in fp32, rounded once."""
    checks.gated(gate_up, out)
    gate, up = gate_up.float().chunk(2, dim=-1)
    out.copy_(torch.nn.functional.silu(gate) * up)


def gelu_tanh_mul(gate_up: Tensor, out: Tensor) -> None:
    """gelu(gate) * up in fp32 with gelu's tanh formula, rounded once."""
    checks.gated(gate_up, out)
    gate, up = gate_up.float().chunk(2, dim=-1)
    out.copy_(torch.nn.functional.gelu(gate, approximate="tanh") * up)


def dequantize_gguf(raw: Tensor, ggml_type: int, block_elements: int, block_bytes: int, out: Tensor) -> None:
    """Block formats of GGUF; the arithmetic is fp32, rounded once to out's dtype."""
    checks.dequantize_gguf(raw, block_elements, block_bytes, out)
    decode = _DECODERS[ggml_type]
    out.copy_(decode(raw.reshape(-1, block_bytes)).reshape(-1))


def _f16(raw: Tensor) -> Tensor:
    return raw.contiguous().view(torch.float16).float()


def _nibbles(raw: Tensor) -> Tensor:
    """[n, b] bytes to [n, 2b]: all low halves, then all high halves."""
    return torch.cat([raw & 0x0F, raw >> 4], dim=-1)


def _fifth_bits(raw: Tensor) -> Tensor:
    """[n, 4] bytes to [n, 32] values 0 or 16."""
    shifts = torch.arange(8, dtype=torch.uint8, device=raw.device)
    return (((raw.unsqueeze(-1) >> shifts) & 1) << 4).reshape(raw.shape[0], 32)


def _q4_0(b: Tensor) -> Tensor:
    return _f16(b[:, :2]) * (_nibbles(b[:, 2:]).float() - 8)


def _q4_1(b: Tensor) -> Tensor:
    return _f16(b[:, :2]) * _nibbles(b[:, 4:]).float() + _f16(b[:, 2:4])


def _q5_0(b: Tensor) -> Tensor:
    return _f16(b[:, :2]) * ((_nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6])).float() - 16)


def _q5_1(b: Tensor) -> Tensor:
    return _f16(b[:, :2]) * (_nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8])).float() + _f16(b[:, 2:4])


def _q8_0(b: Tensor) -> Tensor:
    return _f16(b[:, :2]) * b[:, 2:].contiguous().view(torch.int8).float()


def _k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """12 bytes to eight 6-bit scales and eight 6-bit minima."""
    low, high, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat([low & 0x3F, (rest & 0x0F) | ((low >> 2) & 0x30)], dim=-1)
    minima = torch.cat([high & 0x3F, (rest >> 4) | ((high >> 2) & 0x30)], dim=-1)
    return scales.float(), minima.float()


def _k_affine(b: Tensor, quants: Tensor) -> Tensor:
    """quants [n, 8, 32]: scale * q - minimum for each of the eight groups."""
    scales, minima = _k_scales(b[:, 4:16])
    d = (_f16(b[:, 0:2]) * scales).unsqueeze(-1)
    m = (_f16(b[:, 2:4]) * minima).unsqueeze(-1)
    return d * quants.float() - m


def _q4_k(b: Tensor) -> Tensor:
    return _k_affine(b, _nibbles(b[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(b: Tensor) -> Tensor:
    low = _nibbles(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    shifts = torch.arange(8, dtype=torch.uint8, device=b.device).view(1, 8, 1)
    high = ((b[:, 16:48].unsqueeze(1) >> shifts) & 1) << 4
    return _k_affine(b, low | high)


def _q6_k(b: Tensor) -> Tensor:
    low = _nibbles(b[:, :128].reshape(-1, 2, 64)).reshape(-1, 8, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=b.device).view(1, 1, 4, 1)
    high = ((b[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3).reshape(-1, 8, 32)
    quants = (low | (high << 4)).float().reshape(-1, 16, 16) - 32
    scales = _f16(b[:, 208:210]) * b[:, 192:208].contiguous().view(torch.int8).float()
    return scales.unsqueeze(-1) * quants


_DECODERS: dict[int, Callable[[Tensor], Tensor]] = {
    GgmlType.F32: lambda b: b.contiguous().view(torch.float32),
    GgmlType.F16: _f16,
    GgmlType.Q4_0: _q4_0,
    GgmlType.Q4_1: _q4_1,
    GgmlType.Q5_0: _q5_0,
    GgmlType.Q5_1: _q5_1,
    GgmlType.Q8_0: _q8_0,
    GgmlType.Q4_K: _q4_k,
    GgmlType.Q5_K: _q5_k,
    GgmlType.Q6_K: _q6_k,
    GgmlType.BF16: lambda b: b.contiguous().view(torch.bfloat16).float(),
}
