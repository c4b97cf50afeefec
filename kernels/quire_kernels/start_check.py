"""The products of the chosen instruction set beside those of the portable one, on a small example of each kind, once at the start.

Which instruction set is taken is decided by what the processor says of itself, and those with VNNI and BF16 were tested in
emulation only (docs/kernels.md). Where a product is wrong the next best set is taken, which is announced; one that QUIRE_CPU_ISA
names is refused. Called while `quire_kernels.cpu` is imported, because it changes the set in use.
"""

from __future__ import annotations

import logging
import os

import torch
from torch import Tensor

from quire_kernels import _cpu
from quire_kernels.errors import UnavailableError
from quire_kernels.formats import GGML_BLOCKS, GgmlType

KINDS: tuple[GgmlType | str, ...] = (
    "f32",
    "f16",
    "bf16",
    *(GgmlType[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q6_K")),
)
"""All that products are compiled for: formats of floats, and types of blocks, each of which is its own case of q4 or q8."""

_OUTPUTS, _INPUTS, _ROWS = 24, 256, (1, 9)  # two panels, a whole one and a part; tiles of one row and of several
# Of the largest result. fp32 sums in another order are some 1e-6 apart; inputs rounded to bfloat16 cost some 1e-3.
_ALLOWED, _ALLOWED_ROUNDED = 1e-4, 2.0**-7
_SCALES: dict[GgmlType, tuple[int, ...]] = {GgmlType.Q4_1: (1, 3), GgmlType.Q5_1: (1, 3), GgmlType.Q6_K: (209,)}
"""Where the upper bytes of float16 scales and minima are in a block, if not at 1."""

_log = logging.getLogger(__name__)


def settle() -> str:
    """Leave the best instruction set in use whose products are right: the one that was chosen, if they are. Says what was passed
    over and why; empty where nothing was. Raises UnavailableError where QUIRE_CPU_ISA leaves no choice."""
    chosen, available = _cpu.isa(), _cpu.available_isas()
    found: dict[str, str] = {}
    for isa in reversed(available[: available.index(chosen) + 1]):  # portable, the last one, always is right
        if not (kind := differing(isa)):
            break
        found[isa] = kind
    if not found:
        return ""
    wrong = ", ".join(f"{name} (products with {kind} weights)" for name, kind in found.items())
    if os.environ.get("QUIRE_CPU_ISA"):
        raise UnavailableError(f"QUIRE_CPU_ISA={chosen}: this CPU computes wrongly with {wrong}; unset it to use {isa}")
    _cpu.use_isa(isa)
    reason = f"this CPU computes wrongly with {wrong}; using {isa}"
    _log.warning("kernels: %s", reason)
    return reason


def differing(isa: str) -> str:
    """The first of KINDS whose products differ from the portable ones; empty where there is none. Leaves in use what was."""
    if isa == "portable":
        return ""
    before, noise = _cpu.isa(), _noise()
    numbers = noise[: _OUTPUTS * _INPUTS].float().sub_(127.5).div_(64).view(_OUTPUTS, _INPUTS)
    try:
        for kind in KINDS:
            weight = _quants(kind, noise) if isinstance(kind, GgmlType) else _cpu.pack_weights([(numbers, kind)], None)
            for rows in _ROWS:
                x = numbers[-rows:]
                expected, result = (_product(name, x, weight) for name in ("portable", isa))
                rounded = kind == "bf16" and _cpu.record_bytes("bf16", _INPUTS) > 0
                allowed = (_ALLOWED_ROUNDED if rounded else _ALLOWED) * expected.abs().max()
                if not bool(((result - expected).abs() <= allowed).all()):  # NaN is not
                    return kind.name if isinstance(kind, GgmlType) else kind
    finally:
        _cpu.use_isa(before)
    return ""


def _product(isa: str, x: Tensor, weight: _cpu.PackedWeight) -> Tensor:
    _cpu.use_isa(isa)
    out = torch.empty(len(x), _OUTPUTS)
    _cpu.packed_linear(x, weight, None, out)
    return out


def _quants(kind: GgmlType, noise: Tensor) -> _cpu.PackedWeight:
    elements, size = GGML_BLOCKS[kind]
    blocks = noise[: _OUTPUTS * _INPUTS // elements * size].clone().view(-1, size)
    for at in _SCALES.get(kind, (1,)):
        blocks[:, at].remainder_(4).add_(32)  # between 2^-7 and 2^-6
    return _cpu.pack_gguf([(blocks.flatten(), int(kind), _OUTPUTS, blocks.numel())], _INPUTS)


def _noise() -> Tensor:
    """Bytes in no order, always the same; enough for the weight of any kind."""
    index = torch.arange(_OUTPUTS * _INPUTS * 2)
    return ((index * index * 40_503 + index * 2_654_435_761) >> 15 & 255).to(torch.uint8)
