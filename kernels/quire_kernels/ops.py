"""The public door to all kernels: every shape is written here, and checked before anything is launched.

Letters: T tokens of the flattened batch, S sequences, Hq query heads, Hkv key/value heads, D head size, N blocks in
the pool, B slots in a block, M columns of the block table, H hidden size, I intermediate size, P positions.
Floating types are float32, bfloat16 and float16; all sums are made in float32. The last dimension of every tensor must
be contiguous, the others may be strided (a slice of a fused projection is fine). All tensors live on one device.

On a CPU, a sequence's results are the same bit for bit whatever else is in the batch, however its prompt was chunked
and with any number of threads. A wrong shape, type, device or index raises `ArgumentError` naming the argument; the
selected implementation makes these checks where they cost least. Nothing but the choice of the implementation, the
allocation of outputs and the call belongs here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire_kernels.dispatch import Kernels, PackedWeight, Selection, select
from quire_kernels.errors import ArgumentError, KernelError, UnavailableError
from quire_kernels.formats import GGML_BLOCKS, PACKED_FORMATS, GgmlType, packed_bytes

__all__ = [
    "GGML_BLOCKS",
    "PACKED_FORMATS",
    "ArgumentError",
    "GgmlType",
    "KernelError",
    "PackedWeight",
    "UnavailableError",
    "dequantize_gguf",
    "fused_add_rms_norm",
    "gelu_tanh_mul",
    "head_rms_norm",
    "num_threads",
    "pack_gguf",
    "pack_weight",
    "pack_weights",
    "packed_bytes",
    "packed_linear",
    "paged_attention",
    "rms_norm",
    "rope",
    "selection",
    "set_num_threads",
    "silu_mul",
    "unpack_weight",
    "write_kv",
]


def selection(device: torch.device | str = "cpu") -> Selection:
    """The implementation that serves a device, and why if it is a fallback."""
    return select(torch.device(device).type)


def set_num_threads(num_threads: int) -> None:
    """Threads, the caller's included, that kernels on CPU tensors use from now on; never changes a result."""
    if not 1 <= num_threads <= 1024:
        raise ArgumentError(f"num_threads must be between 1 and 1024, got {num_threads}")
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
    *,
    window: int = 0,
    softcap: float = 0.0,
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
    window                         how many of the newest tokens a query sees, its own included (arXiv:2310.06825); 0: all
    softcap                        scaled scores x become softcap * tanh(x / softcap) (arXiv:2408.00118); 0: they stay
    """
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    _kernels(query).paged_attention(
        query, key_cache, value_cache, block_tables, query_start, context_lens, scale, out, window, softcap
    )
    return out


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store keys and values of new tokens in their cache slots, rounding to the cache's type.

    key, value              [T, Hkv, D]
    key_cache, value_cache  [N, B, Hkv, D]   written in place
    slot_mapping            [T] int64        slot = block * B + offset; -1 skips the row (padding). A slot must not
                                             be named twice
    """
    _kernels(key).write_kv(key, value, key_cache, value_cache, slot_mapping)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None, *, offset: float = 0.0) -> Tensor:
    """x / sqrt(mean(x^2) + eps), rounded to x's type, * weight (arXiv:1910.07467, in the order of Llama).

    x       [T, H]
    weight  [H]      type of x
    out     [T, H]   type of x; may be x. Allocated when None
    offset           where it is not 0, the factor is weight + offset in float32 and only the result is rounded (Gemma)
    """
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _kernels(x).rms_norm(x, weight, eps, offset, out)
    return out


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor | None = None, *, offset: float = 0.0
) -> Tensor:
    """residual += x, rounded to its type and in place; then `rms_norm(residual, weight, eps, offset=offset)`.

    x, residual  [T, H]
    weight       [H]      type of x
    out          [T, H]   type of x; may be x. Allocated when None
    """
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _kernels(x).fused_add_rms_norm(x, residual, weight, eps, offset, out)
    return out


def head_rms_norm(
    query: Tensor, key: Tensor, query_weight: Tensor, key_weight: Tensor, eps: float, *, offset: float = 0.0
) -> None:
    """`rms_norm` of every head of queries and keys, in place.

    query                     [T, Hq, D]
    key                       [T, Hkv, D]   type of query
    query_weight, key_weight  [D]           type of query
    """
    _kernels(query).head_rms_norm(query, key, query_weight, key_weight, eps, offset)


def rope(query: Tensor, key: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate queries and keys in place by position (arXiv:2104.09864), halves (i, i + R) as Llama does, not pairs.

    query      [T, Hq, D]
    key        [T, Hkv, D]     type of query
    positions  [T] int64       row of cos and sin, 0 <= position < P
    cos, sin   [P, R] float32  2R <= D; elements from 2R on are left alone. Scaling is the table's business
    """
    _kernels(query).rope(query, key, positions, cos, sin)


def _half_as_wide(gate_up: Tensor) -> Tensor:
    *rows, columns = gate_up.shape or (0,)  # what is no matrix is refused by the kernel
    return torch.empty((*rows, columns // 2), dtype=gate_up.dtype, device=gate_up.device)


def silu_mul(gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """silu(gate) * up, computed in float32 and rounded once.

    gate_up  [T, 2I]  the gates, then the ups
    out      [T, I]   type of gate_up. Allocated when None
    """
    out = _half_as_wide(gate_up) if out is None else out
    _kernels(gate_up).silu_mul(gate_up, out)
    return out


def gelu_tanh_mul(gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """gelu(gate) * up with gelu's tanh formula (arXiv:1606.08415, section 2), computed in float32 and rounded once.

    gate_up  [T, 2I]  the gates, then the ups
    out      [T, I]   type of gate_up. Allocated when None
    """
    out = _half_as_wide(gate_up) if out is None else out
    _kernels(gate_up).gelu_tanh_mul(gate_up, out)
    return out


def dequantize_gguf(raw: Tensor, ggml_type: int, num_elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Unpack a tensor of a GGUF file.

    raw           [bytes] uint8, contiguous; exactly the tensor's blocks
    ggml_type     a `GgmlType` (the file's number; `gguf.GGMLQuantizationType` is accepted)
    num_elements  a multiple of the type's block
    returns       [num_elements] of dtype, computed in float32 and rounded once
    """
    kind = _kind(ggml_type)
    elements, size = GGML_BLOCKS[kind]
    if num_elements < 0 or num_elements % elements:
        raise ArgumentError(f"num_elements must be a multiple of {elements} for {kind.name}, got {num_elements}")
    out = torch.empty(num_elements, dtype=dtype, device=raw.device)
    _kernels(raw).dequantize_gguf(raw, int(kind), elements, size, out)
    return out


def pack_weight(weight: Tensor, format: str) -> PackedWeight:
    """Lay a weight out for `packed_linear`.

    weight  [N, K], at least 1 of each
    format  f32, f16, bf16   the numbers, rounded to nearest
            q8               8 bits: blocks of 32 along K share a float16 scale of max|weight| / 127
            q4               4 bits: blocks of 32 along K share a float16 scale and minimum, those of the least squared
                             error among sixteen that are tried
    returns the weight in the layout of the implementation that serves its device; it keeps nothing of the tensor

    Numbers that are not finite, or above 32768, have no quants: ArgumentError.
    """
    return pack_weights([(weight, format)])


def pack_weights(parts: Sequence[tuple[Tensor, str]], importance: Tensor | None = None) -> PackedWeight:
    """Lay weights that read the same input out for one `packed_linear`, whose output columns follow each other.

    parts       weight [N, K] and format of each, as in `pack_weight`
    importance  [K] float32, finite and none negative: weighs the squared error of each input where the grid of a q4 block is
                chosen, as the mean square of what the product reads there; None: all alike
    """
    for _, format in parts:
        if format not in PACKED_FORMATS:
            raise ArgumentError(f"format must be f32, f16, bf16, q8 or q4, got {format!r}")
    if not parts:
        raise ArgumentError("parts must hold at least one weight, got none")
    if importance is not None and not bool((importance.isfinite() & (importance >= 0)).all()):
        raise ArgumentError("importance must be finite and not negative")
    return _kernels(parts[0][0]).pack_weights(list(parts), importance)


def pack_gguf(parts: Sequence[tuple[Tensor, int, int]], cols: int) -> PackedWeight:
    """Lay the blocks of GGUF tensors out for `packed_linear`, without making floats of them.

    parts    of each tensor of the stack: raw ([bytes] uint8, contiguous; exactly its blocks), its `GgmlType`, its rows N
    cols     K, a multiple of each type's block; all parts read the same input
    returns  [sum of N, K]. F32, F16 and BF16 stay as they are; Q4_0, Q4_1 and Q4_K become q4, the others q8

    `unpack_weight` then gives what `dequantize_gguf` gives; for Q4_K, Q5_K and Q6_K, whose scales and minima are products,
    these are rounded to float16 (2^-11 relative). Floats and quants cannot share a stack, nor bf16 and other floats.
    """
    if not parts:
        raise ArgumentError("parts must hold at least one tensor")
    checked: list[tuple[Tensor, int, int, int]] = []
    for raw, ggml_type, rows in parts:
        kind = _kind(ggml_type)
        elements, size = GGML_BLOCKS[kind]
        if cols < 1 or cols % elements:
            raise ArgumentError(f"cols must be a multiple of {elements} for {kind.name}, got {cols}")
        if rows < 1:
            raise ArgumentError(f"rows must be 1 or more, got {rows}")
        checked.append((raw, int(kind), rows, rows * (cols // elements) * size))
    return _kernels(parts[0][0]).pack_gguf(checked, cols)


def packed_linear(x: Tensor, packed: PackedWeight, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """x W^T (+ bias), sums in float32.

    x       [M, K] float32   where W is q8 or q4, each block of 32 is rounded to int8 with a scale of max|x| / 127; where it
                             is bf16, x is rounded to bfloat16 if the instruction set multiplies that (AVX512_BF16)
    packed  [N, K]           from `pack_weight` or `pack_gguf`, under the implementation that serves x
    bias    [N] float32
    out     [M, N] float32   Allocated when None
    """
    if out is None:
        out = torch.empty((*x.shape[:-1], packed.shape[0]), dtype=x.dtype, device=x.device)
    _kernels(x).packed_linear(x, packed, bias, out)
    return out


def unpack_weight(packed: PackedWeight, device: torch.device | str = "cpu") -> Tensor:
    """The weight that a product multiplies with, [N, K] float32; on the device it was packed for."""
    out = torch.empty(packed.shape, dtype=torch.float32, device=device)
    _kernels(out).unpack_weight(packed, out)
    return out


def _kind(ggml_type: int) -> GgmlType:
    try:
        return GgmlType(ggml_type)
    except ValueError:
        known = ", ".join(member.name for member in GgmlType)
        raise ArgumentError(f"ggml_type {ggml_type} is not supported; supported: {known}") from None


def _kernels(tensor: Tensor) -> Kernels:
    return select("cpu" if tensor.is_cpu else tensor.device.type).kernels
