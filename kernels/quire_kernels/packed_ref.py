"""The reference of packed weights, in torch: how weights and inputs become quants, and what a product makes of them.

Quants, scales and minima are plain tensors here. Their layout in panels is the C++ extension's business (csrc/packed/layout.h); the
numbers are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quire_kernels import checks
from quire_kernels.errors import ArgumentError
from quire_kernels.formats import GGML_BLOCKS, GgmlType
from quire_kernels.quants_ref import BLOCK, FLOATS, Quants, cut

LARGEST = 32768.0
"""Weights above have no scale in float16."""
_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Part:
    """Some rows [N, K] of one format: as they are, or as N times ceil(K / 32) blocks of quants."""

    format: str
    rows: int
    values: Tensor | Quants

    def floats(self, cols: int) -> Tensor:
        """The rows in fp32."""
        if isinstance(self.values, Quants):
            return self.values.floats().reshape(self.rows, -(-cols // BLOCK) * BLOCK)[:, :cols]
        return self.values.float()


@dataclass(frozen=True)
class PackedWeight:
    """A stack of parts that read the same input."""

    parts: tuple[Part, ...]
    shape: tuple[int, int]

    @property
    def format(self) -> str:
        """As `q4`, or `q4+q8` where the parts differ."""
        return "+".join(dict.fromkeys(part.format for part in self.parts))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        tensors: list[Tensor | None] = []
        for values in (part.values for part in self.parts):
            tensors += [values.values, values.scale, values.minimum] if isinstance(values, Quants) else [values]
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def pack_weights(parts: Sequence[tuple[Tensor, str]], importance: Tensor | None) -> PackedWeight:
    """Round, or quantise in blocks of 32 along K."""
    checks.pack_weights([weight for weight, _ in parts], importance)
    cols = parts[0][0].shape[1]
    for weight, _ in parts:
        if weight.shape[1] != cols:
            raise ArgumentError(f"all parts of a packed weight must have {cols} columns, got {weight.shape[1]}")
    packed = tuple(Part(format, len(weight), _packed(weight, format, importance)) for weight, format in parts)
    _check_inputs(packed)
    return PackedWeight(packed, (sum(part.rows for part in packed), cols))


def _packed(weight: Tensor, format: str, importance: Tensor | None) -> Tensor | Quants:
    if format in _DTYPES:
        return weight.to(_DTYPES[format])
    bad = ~(weight.float().abs() <= LARGEST).all(dim=-1)
    if bool(bad.any()):
        raise ArgumentError(
            f"weight[{int(bad.nonzero()[0])}] holds a number that is not finite or above 32768, which has no quants; "
            "pack it as f32 or bf16"
        )
    blocks = _blocks(weight.float())
    if format == "q8":
        return _quantize_q8(blocks)
    weights = weight.new_ones(weight.shape[1]) if importance is None else importance
    return _quantize_q4(blocks, _blocks(weights.float()[None]).expand_as(blocks))


def pack_gguf(parts: Sequence[tuple[Tensor, int, int, int]], cols: int) -> PackedWeight:
    """Cut blocks into quants; scales and minima are rounded to float16, which changes those of K types only."""
    packed: list[Part] = []
    for raw, ggml_type, rows, num_bytes in parts:
        checks.pack_gguf(raw, num_bytes)
        kind = GgmlType(ggml_type)
        if kind in FLOATS:
            values = raw.contiguous().view(FLOATS[kind]).reshape(rows, cols)
            packed.append(Part(kind.name.lower(), rows, values))
            continue
        quants = cut(kind, raw.reshape(-1, GGML_BLOCKS[kind][1]))
        minimum = None if quants.minimum is None else _half(quants.minimum)
        packed.append(Part(f"q{quants.bits}", rows, replace(quants, scale=_half(quants.scale), minimum=minimum)))
    _check_inputs(packed)
    return PackedWeight(tuple(packed), (sum(part.rows for part in packed), cols))


def packed_linear(x: Tensor, packed: object, bias: Tensor | None, out: Tensor) -> None:
    """In fp32, with an input that went through int8 where the weights are quants."""
    weight = _known(packed)
    checks.packed_linear(x, weight.shape, bias, out)
    inputs = quantize_rows(x) if isinstance(weight.parts[0].values, Quants) else x
    result = torch.cat([inputs @ part.floats(weight.shape[1]).T for part in weight.parts], dim=-1)
    out.copy_(result if bias is None else result + bias)


def unpack_weight(packed: object, out: Tensor) -> None:
    """All parts in fp32."""
    weight = _known(packed)
    checks.unpack_weight(weight.shape, out)
    out.copy_(torch.cat([part.floats(weight.shape[1]) for part in weight.parts]))


def quantize_rows(x: Tensor) -> Tensor:
    """x [M, K] as int8 in blocks of 32 shows it: x / scale rounded to nearest even, scale = max|x| / 127."""
    blocks = _blocks(x)
    largest = blocks.abs().amax(dim=-1, keepdim=True)
    kept = largest >= 2.0**-100
    factor = torch.full_like(largest, 127.0) / largest  # a number by a tensor would be rounded twice
    quants = torch.round(blocks * torch.where(kept, factor, 0.0))
    scale = torch.where(kept, largest / 127.0, 0.0)
    scale = torch.where(largest.isfinite(), scale, math.nan)
    return (scale * quants).flatten(1)[:, : x.shape[1]]


def _known(packed: object) -> PackedWeight:
    if not isinstance(packed, PackedWeight):
        raise ArgumentError(
            f"packed must be a weight that this implementation packed, got {type(packed).__module__}.{type(packed).__name__}"
        )
    return packed


def _check_inputs(parts: Sequence[Part]) -> None:
    if len({_input_kind(part) for part in parts}) > 1:
        raise ArgumentError(
            "parts that read their input in different forms (bf16, other floats, quants) cannot share a packed weight; "
            "pack them apart"
        )


def _input_kind(part: Part) -> str:
    return "quants" if isinstance(part.values, Quants) else "bf16" if part.format == "bf16" else "plain"


def _blocks(rows: Tensor) -> Tensor:
    """[N, K] to [N, B, 32], padded with zeros."""
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK))
    return padded.reshape(rows.shape[0], padded.shape[1] // BLOCK, BLOCK)


def _half(x: Tensor) -> Tensor:
    return x.half().float()


def _steps(x: Tensor, scale: Tensor) -> Tensor:
    return torch.where(scale > 0, x * (1.0 / scale), 0.0)


def _quantize_q8(blocks: Tensor) -> Quants:
    """Symmetric: scale = max|x| / 127, in float16."""
    scale = _half(blocks.abs().amax(dim=-1, keepdim=True) / 127.0)
    values = 1 + torch.floor((_steps(blocks, scale) + 127.0).clamp(0, 254) + 0.5)
    return Quants(values.to(torch.uint8).flatten(0, 1), scale.flatten(0, 1), None, 128, 8)


def _quantize_q4(blocks: Tensor, importance: Tensor) -> Quants:
    """Of sixteen pairs of scale and minimum the one with the least weighted squared error (`quantize_q4` in csrc/packed/blocks.h)."""
    blocks, h = blocks.flatten(0, 1), importance.flatten(0, 1).double()
    low, high = blocks.amin(dim=-1, keepdim=True), blocks.amax(dim=-1, keepdim=True)
    tries: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def total(x: Tensor) -> Tensor:
        return x.sum(dim=-1, keepdim=True)

    def attempt(scale: Tensor, minimum: Tensor) -> Tensor:
        scale, minimum = _half(scale), _half(minimum)
        values = torch.round(_steps(blocks - minimum, scale).clamp(0, 15))
        error = total(h * (scale * values + minimum - blocks).square()).nan_to_num(math.inf)
        tries.append((error, values, scale, minimum))
        return values

    for steps in (15.0, 12.5, 13.5, 14.0, 14.5, 15.5, 16.5, 17.5):
        values = attempt((high - low) / steps, low + (high - low) * 0.5 * (1.0 - 15.0 / steps)).double()
        hq, hqq = total(h * values), total(h * values.square())
        hx, hqx = total(h * (blocks - low)), total(h * (blocks - low) * values)
        spread = total(h) * hqq - hq * hq
        fits = spread > 1e-6 * total(h) * hqq
        scale = torch.where(fits, (total(h) * hqx - hq * hx) / spread, 0.0)
        minimum = torch.where(fits, (hx - scale * hq) / total(h), 0.0)
        attempt(scale.float(), low + minimum.float())
    best = torch.cat([each[0] for each in tries], dim=-1).argmin(dim=-1)
    chosen = [torch.stack([each[i] for each in tries])[best, torch.arange(len(best))] for i in (1, 2, 3)]
    return Quants(chosen[0].to(torch.uint8), chosen[1], chosen[2], 0, 4)
