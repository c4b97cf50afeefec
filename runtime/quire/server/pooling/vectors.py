"""Vectors as answers tell them. The engine sends float32 in little-endian order. Pure."""

from __future__ import annotations

import base64
import math
import struct


def numbers_of(vector: bytes) -> tuple[float, ...]:
    """Its numbers."""
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def shortened(vector: bytes, size: int, *, normalised: bool) -> bytes:
    """Its first `size` numbers, which are a vector too where the model was trained so (Matryoshka, arXiv:2205.13147). normalised: it has
    the length 1, and gets that again."""
    if size * 4 >= len(vector):
        return vector
    numbers = numbers_of(vector[: size * 4])
    length = math.sqrt(sum(number * number for number in numbers)) if normalised else 1.0
    return struct.pack(f"<{size}f", *(number / (length or 1.0) for number in numbers))


def told(vector: bytes, encoding: str | None) -> str | tuple[float, ...]:
    """As a field of an answer: a list of numbers, or their bytes in base64."""
    return base64.b64encode(vector).decode("ascii") if encoding == "base64" else numbers_of(vector)
