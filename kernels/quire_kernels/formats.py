"""The block formats of GGUF that can be unpacked: their numbers in the file and the sizes of their blocks; packed formats."""

from __future__ import annotations

from enum import IntEnum


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

PACKED_FORMATS = ("f32", "f16", "bf16", "q8", "q4")
"""What `pack_weight` makes."""

_ROWS, _BLOCK = 16, 32
_PACKED_BLOCK_BYTES: dict[GgmlType | str, int] = {
    "q4": 20,
    "q8": 34,
    GgmlType.Q4_0: 18,
    GgmlType.Q4_1: 20,
    GgmlType.Q5_0: 34,
    GgmlType.Q5_1: 36,
    GgmlType.Q8_0: 34,
    GgmlType.Q4_K: 20,
    GgmlType.Q5_K: 36,
    GgmlType.Q6_K: 36,
}
_PLAIN = {GgmlType.F32: "f32", GgmlType.F16: "f16", GgmlType.BF16: "bf16"}
_FOUR_BITS = (GgmlType.Q4_0, GgmlType.Q4_1, GgmlType.Q4_K)


def packed_format(kind: GgmlType | str) -> str:
    """Which of PACKED_FORMATS blocks of a GGUF type become; a format stays what it is."""
    if not isinstance(kind, GgmlType):
        return kind
    return _PLAIN.get(kind) or ("q4" if kind in _FOUR_BITS else "q8")


def packed_bytes(kind: GgmlType | str, rows: int, cols: int) -> int:
    """Bytes of a weight [rows, cols] packed from blocks of a GGUF type or to one of PACKED_FORMATS, as csrc/packed/layout.h lays it out."""
    kind = _PLAIN.get(kind, kind) if isinstance(kind, GgmlType) else kind
    if kind == "f32":
        row = 4 * cols
    elif kind == "f16":
        row = 2 * cols
    elif kind == "bf16":
        row = 4 * -(-cols // 2)
    else:
        row = -(-cols // _BLOCK) * _PACKED_BLOCK_BYTES[kind]
    return -(-rows // _ROWS) * _ROWS * row
