"""Weights as quants, in torch: what every quantised block comes down to, and how the blocks of GGUF are cut into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from quire_kernels.formats import GgmlType

BLOCK = 32
"""Weights that `Quants` keeps together."""


@dataclass(frozen=True)
class Quants:
    """n blocks of 32: a weight is scale * (quant - zero), or scale * quant + minimum.

    values   [n, 32] uint8
    scale    [n, 1] or, for each 16, [n, 2] float32
    minimum  [n, 1] float32, or None; zero is 0 then
    bits     4 or 8: what a quant takes when packed
    """

    values: Tensor
    scale: Tensor
    minimum: Tensor | None
    zero: int
    bits: int

    def floats(self) -> Tensor:
        """[n, 32] in fp32."""
        scale = self.scale.repeat_interleave(BLOCK // self.scale.shape[-1], dim=-1)
        values = self.values.float()
        return scale * values + self.minimum if self.minimum is not None else scale * (values - self.zero)


FLOATS = {GgmlType.F32: torch.float32, GgmlType.F16: torch.float16, GgmlType.BF16: torch.bfloat16}


def cut(kind: GgmlType, b: Tensor) -> Quants:
    """Blocks [n, bytes] of a quantised type."""
    return _CUTS[kind](b)


def _f16(raw: Tensor) -> Tensor:
    return raw.contiguous().view(torch.float16).float()


def _nibbles(raw: Tensor) -> Tensor:
    """[n, b] bytes to [n, 2b]: all low halves, then all high halves."""
    return torch.cat([raw & 0x0F, raw >> 4], dim=-1)


def _fifth_bits(raw: Tensor) -> Tensor:
    """[n, 4] bytes to [n, 32] values 0 or 16."""
    shifts = torch.arange(8, dtype=torch.uint8, device=raw.device)
    return (((raw.unsqueeze(-1) >> shifts) & 1) << 4).reshape(raw.shape[0], 32)


def _k_quants(b: Tensor, values: Tensor, bits: int) -> Quants:
    """values [n, 8, 32]; f16 d and dmin, then 12 bytes with eight 6-bit scales and eight 6-bit minima."""
    low, high, rest = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scales = torch.cat([low & 0x3F, (rest & 0x0F) | ((low >> 2) & 0x30)], dim=-1).float()
    minima = torch.cat([high & 0x3F, (rest >> 4) | ((high >> 2) & 0x30)], dim=-1).float()
    scale, minimum = _f16(b[:, 0:2]) * scales, -(_f16(b[:, 2:4]) * minima)
    return Quants(values.reshape(-1, BLOCK), scale.reshape(-1, 1), minimum.reshape(-1, 1), 0, bits)


def _q4_k(b: Tensor) -> Quants:
    return _k_quants(b, _nibbles(b[:, 16:].reshape(-1, 4, 32)), 4)


def _q5_k(b: Tensor) -> Quants:
    low = _nibbles(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    shifts = torch.arange(8, dtype=torch.uint8, device=b.device).view(1, 8, 1)
    return _k_quants(b, low | ((b[:, 16:48].unsqueeze(1) >> shifts) & 1) << 4, 8)


def _q6_k(b: Tensor) -> Quants:
    low = _nibbles(b[:, :128].reshape(-1, 2, 64)).reshape(-1, BLOCK)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=b.device).view(1, 1, 4, 1)
    high = ((b[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3).reshape(-1, BLOCK)
    scale = _f16(b[:, 208:210]) * b[:, 192:208].contiguous().view(torch.int8).float()
    return Quants(low | (high << 4), scale.reshape(-1, 2), None, 32, 8)


_CUTS: dict[GgmlType, Callable[[Tensor], Quants]] = {
    GgmlType.Q4_0: lambda b: Quants(_nibbles(b[:, 2:]), _f16(b[:, :2]), None, 8, 4),
    GgmlType.Q4_1: lambda b: Quants(_nibbles(b[:, 4:]), _f16(b[:, :2]), _f16(b[:, 2:4]), 0, 4),
    GgmlType.Q5_0: lambda b: Quants(_nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6]), _f16(b[:, :2]), None, 16, 8),
    GgmlType.Q5_1: lambda b: Quants(_nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8]), _f16(b[:, :2]), _f16(b[:, 2:4]), 0, 8),
    GgmlType.Q8_0: lambda b: Quants(b[:, 2:] ^ 128, _f16(b[:, :2]), None, 128, 8),
    GgmlType.Q4_K: _q4_k,
    GgmlType.Q5_K: _q5_k,
    GgmlType.Q6_K: _q6_k,
}
