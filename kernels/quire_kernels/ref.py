"""The reference: every kernel in plain torch, written to be read, on any device.

It defines what the other implementations must compute, it is what tests compare with, and it serves devices that have
no kernels of their own. It is never tuned. Each function checks shapes first (`quire_kernels.checks`), then the values
that could lead out of bounds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire_kernels import checks
from quire_kernels.errors import ArgumentError
from quire_kernels.formats import GgmlType
from quire_kernels.packed_ref import pack_gguf, pack_weights, packed_linear, unpack_weight
from quire_kernels.quants_ref import FLOATS, cut

__all__ = [
    "NAME",
    "dequantize_gguf",
    "fused_add_rms_norm",
    "gelu_tanh_mul",
    "head_rms_norm",
    "num_threads",
    "pack_gguf",
    "pack_weights",
    "packed_linear",
    "paged_attention",
    "rms_norm",
    "rope",
    "set_num_threads",
    "silu_mul",
    "unpack_weight",
    "write_kv",
]

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
    kind = GgmlType(ggml_type)
    if kind in FLOATS:
        out.copy_(raw.contiguous().view(FLOATS[kind]))
    else:
        out.copy_(cut(kind, raw.reshape(-1, block_bytes)).floats().reshape(-1))
