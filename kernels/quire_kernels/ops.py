"""The public door to all kernels: shapes are written here, and checked here before anything is launched.

Letters: T tokens of the flattened batch, S sequences, Hq query heads, Hkv key/value heads, D head size, N blocks in
the pool, B slots in a block, M columns of the block table, H hidden size, I intermediate size, P positions.
Floating types are float32, bfloat16 and float16; all sums are made in float32. The last dimension of every tensor must
be contiguous, the others may be strided (a slice of a fused projection is fine). All tensors live on one device.

On a CPU, a sequence's results are the same bit for bit whatever else is in the batch and however its prompt was
chunked. A wrong shape, type, device or index raises `ArgumentError` naming the argument. Nothing but checks, output
allocation and the call of the selected implementation belongs here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from quire_kernels.dispatch import Kernels, Selection, select
from quire_kernels.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = [
    "GGML_BLOCKS",
    "GgmlType",
    "dequantize_gguf",
    "fused_add_rms_norm",
    "num_threads",
    "paged_attention",
    "rms_norm",
    "rope",
    "selection",
    "set_num_threads",
    "silu_mul",
    "write_kv",
]

FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
MAX_HEAD_SIZE = 512


class GgmlType(IntEnum):
    """The tensor types of GGUF that `dequantize_gguf` reads; the numbers are the file format's."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30


GGML_BLOCKS: dict[GgmlType, tuple[int, int]] = {
    GgmlType.F32: (1, 4),
    GgmlType.F16: (1, 2),
    GgmlType.Q4_0: (32, 18),
    GgmlType.Q4_1: (32, 20),
    GgmlType.Q5_0: (32, 22),
    GgmlType.Q5_1: (32, 24),
    GgmlType.Q8_0: (32, 34),
    GgmlType.Q4_K: (256, 144),
    GgmlType.Q5_K: (256, 176),
    GgmlType.Q6_K: (256, 210),
    GgmlType.BF16: (1, 2),
}
"""Elements and bytes of one block."""


def selection(device: torch.device | str = "cpu") -> Selection:
    """The implementation that serves a device, and why if it is a fallback."""
    return select(torch.device(device).type)


def set_num_threads(num_threads: int) -> None:
    """Threads, the caller's included, that kernels on CPU tensors use from now on; never changes a result."""
    if not 1 <= num_threads <= 1024:
        _refuse(f"num_threads must be between 1 and 1024, got {num_threads}")
    select("cpu").kernels.set_num_threads(num_threads)


def num_threads() -> int:
    """Threads that kernels on CPU tensors use; at first the CPUs this process may run on."""
    return select("cpu").kernels.num_threads()


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of a ragged batch over a paged cache; prompts, chunks of prompts and decodes mix freely.

    query         [T, Hq, D]       rows query_start[s] .. query_start[s+1]-1 are the newest tokens of sequence s
    key_cache     [N, B, Hkv, D]   Hq is a multiple of Hkv: query head h reads head h // (Hq // Hkv); D <= 512
    value_cache   [N, B, Hkv, D]   same type as key_cache; may differ from query's
    block_tables  [S, M] int32     block of token t of sequence s: block_tables[s, t // B]; only the entries that
                                   context_lens needs are read
    query_start   [S+1] int32      begins with 0, does not decrease; rows of query from query_start[S] on are padding
    context_lens  [S] int32        tokens of s in the cache, its query tokens included (call `write_kv` first)
    scale                          factor of the scores, usually D ** -0.5
    out           [T, Hq, D]       type of query; padding rows become 0. Allocated (contiguous) when None
    """
    kernels = _kernels(query)
    _, num_heads, head_size = _ranks(query, "query", 3)
    num_sequences, columns = _ranks(block_tables, "block_tables", 2)
    num_kv_heads = _check_caches(key_cache, value_cache, head_size, query)
    _check_float("query", query)
    if num_kv_heads == 0 or num_heads == 0 or num_heads % num_kv_heads:
        _refuse(f"query has {num_heads} heads, which is not a multiple of key_cache's {num_kv_heads}")
    if not 0 < head_size <= MAX_HEAD_SIZE:
        _refuse(f"query has head size {head_size}, outside 1..{MAX_HEAD_SIZE}")
    _check("block_tables", block_tables, (num_sequences, columns), torch.int32, query)
    _check("query_start", query_start, (num_sequences + 1,), torch.int32, query)
    _check("context_lens", context_lens, (num_sequences,), torch.int32, query)
    out = _output(out, query, query.shape)
    kernels.paged_attention(query, key_cache, value_cache, block_tables, query_start, context_lens, float(scale), out)
    return out


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store keys and values of new tokens in their cache slots, rounding to the cache's type.

    key, value              [T, Hkv, D]
    key_cache, value_cache  [N, B, Hkv, D]   written in place
    slot_mapping            [T] int64        slot = block * B + offset; -1 skips the row (padding). A slot named
                                             twice gets one of the rows, unspecified which
    """
    kernels = _kernels(key)
    num_tokens, num_kv_heads, head_size = _ranks(key, "key", 3)
    _check_float("key", key)
    _check("value", value, (num_tokens, num_kv_heads, head_size), key.dtype, key)
    cache_heads = _check_caches(key_cache, value_cache, head_size, key)
    if cache_heads != num_kv_heads:
        _refuse(f"key has {num_kv_heads} heads, but key_cache {cache_heads}")
    _check("slot_mapping", slot_mapping, (num_tokens,), torch.int64, key)
    kernels.write_kv(key, value, key_cache, value_cache, slot_mapping)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (arXiv:1910.07467), rounded before the weight as Llama does.

    x       [T, H]
    weight  [H]      type of x
    out     [T, H]   type of x; may be x. Allocated when None
    """
    kernels = _kernels(x)
    hidden = _ranks(x, "x", 2)[1]
    _check_float("x", x)
    _check("weight", weight, (hidden,), x.dtype, x)
    out = _output(out, x, x.shape)
    kernels.rms_norm(x, weight, float(eps), out)
    return out


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """residual += x, rounded to its type and in place; then `rms_norm(residual, weight, eps)`.

    x, residual  [T, H]
    weight       [H]      type of x
    out          [T, H]   type of x; may be x. Allocated when None
    """
    kernels = _kernels(x)
    num_tokens, hidden = _ranks(x, "x", 2)
    _check_float("x", x)
    _check("residual", residual, (num_tokens, hidden), x.dtype, x)
    _check("weight", weight, (hidden,), x.dtype, x)
    out = _output(out, x, x.shape)
    kernels.fused_add_rms_norm(x, residual, weight, float(eps), out)
    return out


def rope(query: Tensor, key: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate queries and keys in place by position (arXiv:2104.09864), halves (i, i + R) as Llama does, not pairs.

    query      [T, Hq, D]
    key        [T, Hkv, D]     type of query
    positions  [T] int64       row of cos and sin, 0 <= position < P
    cos, sin   [P, R] float32  2R <= D; elements from 2R on are left alone. Scaling is the table's business
    """
    kernels = _kernels(query)
    num_tokens, _, head_size = _ranks(query, "query", 3)
    num_kv_heads = _ranks(key, "key", 3)[1]
    _check_float("query", query)
    _check("key", key, (num_tokens, num_kv_heads, head_size), query.dtype, query)
    _check("positions", positions, (num_tokens,), torch.int64, query)
    table = _ranks(cos, "cos", 2)
    _check("cos", cos, table, torch.float32, query)
    _check("sin", sin, table, torch.float32, query)
    if 2 * table[1] > head_size:
        _refuse(f"cos has {table[1]} columns, more than half of the head size {head_size}")
    kernels.rope(query, key, positions, cos, sin)


def silu_mul(gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """silu(gate) * up, computed in float32 and rounded once.

    gate_up  [T, 2I]  the gates, then the ups
    out      [T, I]   type of gate_up. Allocated when None
    """
    kernels = _kernels(gate_up)
    num_tokens, width = _ranks(gate_up, "gate_up", 2)
    _check_float("gate_up", gate_up)
    if width % 2:
        _refuse(f"gate_up must have an even number of columns (gates, then ups), got {width}")
    out = _output(out, gate_up, (num_tokens, width // 2))
    kernels.silu_mul(gate_up, out)
    return out


def dequantize_gguf(raw: Tensor, ggml_type: int, num_elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Unpack a tensor of a GGUF file.

    raw           [bytes] uint8, contiguous; exactly the tensor's blocks
    ggml_type     a `GgmlType` (the file's number; `gguf.GGMLQuantizationType` is accepted)
    num_elements  a multiple of the type's block
    returns       [num_elements] of dtype, computed in float32 and rounded once
    """
    kernels = _kernels(raw)
    try:
        kind = GgmlType(ggml_type)
    except ValueError:
        known = ", ".join(member.name for member in GgmlType)
        raise ArgumentError(f"ggml_type {ggml_type} is not supported; supported: {known}") from None
    if dtype not in FLOATS:
        _refuse(f"dtype must be float32, bfloat16 or float16, got {dtype}")
    elements, size = GGML_BLOCKS[kind]
    if num_elements < 0 or num_elements % elements:
        _refuse(f"num_elements must be a multiple of {elements} for {kind.name}, got {num_elements}")
    _check("raw", raw, (num_elements // elements * size,), torch.uint8, raw)
    out = torch.empty(num_elements, dtype=dtype, device=raw.device)
    kernels.dequantize_gguf(raw, int(kind), out)
    return out


def _kernels(tensor: Tensor) -> Kernels:
    return select("cpu" if tensor.is_cpu else tensor.device.type).kernels


def _refuse(message: str) -> NoReturn:
    raise ArgumentError(message)


def _ranks(tensor: Tensor, name: str, rank: int) -> tuple[int, ...]:
    shape = tensor.shape
    if len(shape) != rank:
        _refuse(f"{name} must have {rank} dimensions, got shape {list(shape)}")
    return shape


def _check_float(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in FLOATS:
        _refuse(f"{name} must be float32, bfloat16 or float16, got {tensor.dtype}")
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        _refuse(f"{name} must be contiguous in its last dimension, got strides {tensor.stride()}")


def _check(name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> None:
    if tensor.shape != shape:
        _refuse(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")
    if tensor.dtype is not dtype:
        _refuse(f"{name} must be {dtype}, got {tensor.dtype}")
    if tensor.device != like.device:
        _refuse(f"{name} is on {tensor.device}, but the first argument on {like.device}")
    if tensor.stride(-1) != 1 and shape[-1] > 1:
        _refuse(f"{name} must be contiguous in its last dimension, got strides {tensor.stride()}")


def _check_caches(key_cache: Tensor, value_cache: Tensor, head_size: int, like: Tensor) -> int:
    """The number of key/value heads of the caches."""
    shape = _ranks(key_cache, "key_cache", 4)
    if shape[3] != head_size:
        _refuse(f"key_cache has head size {shape[3]}, but the first argument {head_size}")
    _check_float("key_cache", key_cache)
    _check("key_cache", key_cache, shape, key_cache.dtype, like)
    _check("value_cache", value_cache, shape, key_cache.dtype, like)
    return shape[2]


def _output(out: Tensor | None, like: Tensor, shape: Collection[int]) -> Tensor:
    if out is None:
        return torch.empty(tuple(shape), dtype=like.dtype, device=like.device)
    _check("out", out, tuple(shape), like.dtype, like)
    return out
