"""What each operation demands of shapes, types and devices, for implementations written in Python.

The C++ extension makes the same checks itself, on the tensors it borrows (csrc/module/); the tests run both through one
list of bad calls and expect the same sentences. Nothing here reads a tensor's elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from quire_kernels.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
MAX_HEAD_SIZE = 512


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    out: Tensor,
    window: int,
    softcap: float,
) -> None:
    _, num_heads, head_size = _ranks(query, "query", 3)
    num_sequences, columns = _ranks(block_tables, "block_tables", 2)
    _check_float("query", query)
    num_kv_heads = _check_caches(key_cache, value_cache, head_size, query)
    if num_kv_heads == 0 or num_heads == 0 or num_heads % num_kv_heads:
        _refuse(f"query has {num_heads} heads, which is not a multiple of key_cache's {num_kv_heads}")
    if not 1 <= head_size <= MAX_HEAD_SIZE:
        _refuse(f"query has head size {head_size}, outside 1..{MAX_HEAD_SIZE}")
    if key_cache.shape[1] < 1:
        _refuse("key_cache has a block size of 0")
    if window < 0:
        _refuse(f"window must be 0 (none) or more, got {window}")
    if not 0 <= softcap < float("inf"):
        _refuse(f"softcap must be 0 (none) or a positive number, got {softcap}")
    _check("block_tables", block_tables, (num_sequences, columns), torch.int32, query)
    _check("query_start", query_start, (num_sequences + 1,), torch.int32, query)
    _check("context_lens", context_lens, (num_sequences,), torch.int32, query)
    _check("out", out, query.shape, query.dtype, query)


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    num_tokens, num_kv_heads, head_size = _ranks(key, "key", 3)
    _check_float("key", key)
    _check("value", value, (num_tokens, num_kv_heads, head_size), key.dtype, key)
    cache_heads = _check_caches(key_cache, value_cache, head_size, key)
    if cache_heads != num_kv_heads:
        _refuse(f"key has {num_kv_heads} heads, but key_cache {cache_heads}")
    _check("slot_mapping", slot_mapping, (num_tokens,), torch.int64, key)


def rms_norm(x: Tensor, weight: Tensor, out: Tensor) -> None:
    shape = _ranks(x, "x", 2)
    _check_float("x", x)
    _check("weight", weight, shape[1:], x.dtype, x)
    _check("out", out, shape, x.dtype, x)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, out: Tensor) -> None:
    shape = _ranks(x, "x", 2)
    _check_float("x", x)
    _check("residual", residual, shape, x.dtype, x)
    _check("weight", weight, shape[1:], x.dtype, x)
    _check("out", out, shape, x.dtype, x)


def head_rms_norm(query: Tensor, key: Tensor, query_weight: Tensor, key_weight: Tensor) -> None:
    num_tokens, _, head_size = _ranks(query, "query", 3)
    num_kv_heads = _ranks(key, "key", 3)[1]
    _check_float("query", query)
    _check("key", key, (num_tokens, num_kv_heads, head_size), query.dtype, query)
    _check("query_weight", query_weight, (head_size,), query.dtype, query)
    _check("key_weight", key_weight, (head_size,), query.dtype, query)


def rope(query: Tensor, key: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
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


def gated(gate_up: Tensor, out: Tensor) -> None:
    num_tokens, width = _ranks(gate_up, "gate_up", 2)
    _check_float("gate_up", gate_up)
    if width % 2:
        _refuse(f"gate_up must have an even number of columns (gates, then ups), got {width}")
    _check("out", out, (num_tokens, width // 2), gate_up.dtype, gate_up)


def dequantize_gguf(raw: Tensor, block_elements: int, block_bytes: int, out: Tensor) -> None:
    _check("raw", raw, (out.shape[0] // block_elements * block_bytes,), torch.uint8, raw)
    _check_float("out", out)


def pack_weights(weights: list[Tensor], importance: Tensor | None) -> None:
    for weight in weights:
        shape = _ranks(weight, "weight", 2)
        _check_float("weight", weight)
        if min(shape) < 1:
            _refuse(f"weight must have at least one row and one column, got shape {list(shape)}")
    if not weights:
        _refuse("parts must hold at least one weight, got none")
    if importance is not None:
        _check("importance", importance, (weights[0].shape[1],), torch.float32, weights[0])


def pack_gguf(raw: Tensor, num_bytes: int) -> None:
    _check("raw", raw, (num_bytes,), torch.uint8, raw)


def packed_linear(x: Tensor, shape: tuple[int, int], bias: Tensor | None, out: Tensor) -> None:
    num_tokens, _ = _ranks(x, "x", 2)
    _check("x", x, (num_tokens, shape[1]), torch.float32, x)
    if bias is not None:
        _check("bias", bias, shape[:1], torch.float32, x)
    _check("out", out, (num_tokens, shape[0]), torch.float32, x)


def unpack_weight(shape: tuple[int, int], out: Tensor) -> None:
    _check("out", out, shape, torch.float32, out)


def _refuse(message: str) -> NoReturn:
    raise ArgumentError(message)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _ranks(tensor: Tensor, name: str, rank: int) -> tuple[int, ...]:
    if tensor.ndim != rank:
        _refuse(f"{name} must have {rank} dimensions, got {tensor.ndim}")
    return tensor.shape


def _check_contiguous(name: str, tensor: Tensor) -> None:
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        _refuse(f"{name} must be contiguous in its last dimension, got stride {tensor.stride(-1)}")


def _check_float(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in FLOATS:
        _refuse(f"{name} must be float32, bfloat16 or float16, got {_name(tensor.dtype)}")
    _check_contiguous(name, tensor)


def _check(name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> None:
    _ranks(tensor, name, len(shape))
    if tensor.shape != tuple(shape):
        _refuse(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")
    if tensor.dtype is not dtype:
        _refuse(f"{name} must be {_name(dtype)}, got {_name(tensor.dtype)}")
    if tensor.device != like.device:
        _refuse(f"{name} must be on {like.device} as the first argument is, but is on {tensor.device}")
    _check_contiguous(name, tensor)


def _check_caches(key_cache: Tensor, value_cache: Tensor, head_size: int, like: Tensor) -> int:
    """The number of key/value heads of the caches."""
    shape = _ranks(key_cache, "key_cache", 4)
    if shape[3] != head_size:
        _refuse(f"key_cache has head size {shape[3]}, but the first argument {head_size}")
    _check_float("key_cache", key_cache)
    _check("key_cache", key_cache, shape, key_cache.dtype, like)
    _check("value_cache", value_cache, shape, key_cache.dtype, like)
    return shape[2]
