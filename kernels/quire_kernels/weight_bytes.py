"""Packed weights as bytes, for who keeps them elsewhere, in a file: they come back as weights without a copy.

The layout (csrc/packed/layout.h) is the same for every instruction set. Of the C++ extension only: the torch reference has no layout.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire_kernels.dispatch import PackedWeight
from quire_kernels.errors import ArgumentError
from quire_kernels.formats import PACKED_FORMATS, GgmlType

__all__ = ["ALIGNMENT", "PACKING", "borrow", "bytes_of"]

PACKING = 1
"""Which bytes packing makes of numbers. Whoever changes them raises it (a test holds their digest), so that what was kept is not taken
for what would be made."""

ALIGNMENT = 64
"""Bytes of memory at whose multiples borrowed data begins."""


def bytes_of(packed: PackedWeight) -> memoryview:
    """What a weight of the C++ extension holds, `nbytes` of it, read-only; the view keeps the weight alive."""
    from quire_kernels import _cpu  # only here: it may not be built

    if not isinstance(packed, _cpu.PackedWeight):
        raise ArgumentError(f"packed must be a weight of the C++ extension, got {type(packed).__name__}")
    return memoryview(packed)


def borrow(data: memoryview, parts: Sequence[tuple[GgmlType | str, int]], cols: int) -> PackedWeight:
    """The weight whose bytes these are. It reads them where they lie, keeps what owns them alive, and expects that nobody changes them.

    data     contiguous, at a multiple of ALIGNMENT bytes, exactly as long as `bytes_of` was; mapped from a file, say
    parts    what was packed: of each part the format it was packed to or the type of GGUF it was packed from, and its rows N
    cols     K, of all parts

    Raises ArgumentError before a byte is read where the two do not fit. What the bytes mean is not checked: others are other numbers.
    """
    from quire_kernels import _cpu

    for kind, _ in parts:
        if not isinstance(kind, GgmlType) and kind not in PACKED_FORMATS:
            raise ArgumentError(f"a part must be f32, f16, bf16, q8, q4 or a GgmlType, got {kind!r}")
    if not data.contiguous:
        raise ArgumentError("data must be contiguous")
    kinds: list[tuple[str | int, int]] = [
        (int(kind) if isinstance(kind, GgmlType) else kind, rows) for kind, rows in parts
    ]
    return _cpu.borrow_weight(data, kinds, cols)
