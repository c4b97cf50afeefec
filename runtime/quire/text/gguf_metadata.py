"""The key-value header of a GGUF file, read in a tenth of a second.

The `gguf` package walks every array element through numpy memmaps, six seconds for a vocabulary of 49 152 tokens; the
server process needs the vocabulary only, so it reads the header itself. Tensors are none of this module's business.
Layout (little endian, versions 2 and 3): magic, version u32, tensor count u64, entry count u64, then the entries: key
as string, type u32, value; a string is a u64 length and bytes; an array is an element type u32, a u64 length and the
elements. Every length is checked against the file before it is believed.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np

from quire.errors import ModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def read_metadata(path: Path) -> dict[str, Any]:
    """All entries by key: numbers, bools, strings and lists of them; raises ModelError that names the file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(data, path).entries()
    except (OSError, ValueError) as exc:  # ValueError: mmap of an empty file
        raise ModelError(f"cannot read the GGUF file {path}: {exc}") from exc


class _Header:
    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0

    def entries(self) -> dict[str, Any]:
        if self.data[:4] != b"GGUF":
            raise ModelError(f"{self.path} is not a GGUF file: it begins with {self.data[:4]!r} instead of b'GGUF'")
        self.at = 4
        version = self.scalar("I")
        if version not in (2, 3):
            raise ModelError(f"{self.path} is GGUF version {version}; versions 2 and 3 (little endian) are supported")
        self.scalar("Q")  # number of tensors
        return {self.string(): self.value(self.scalar("I")) for _ in range(self.scalar("Q"))}

    def take(self, size: int) -> int:
        """Move on by `size` bytes and return where they began."""
        begin = self.at
        if size < 0 or begin + size > len(self.data):
            raise ModelError(
                f"the GGUF file {self.path} is truncated or corrupt: its header asks for {size} bytes at offset {begin}, "
                f"the file has {len(self.data)}; download it again"
            )
        self.at = begin + size
        return begin

    def scalar(self, code: str) -> Any:
        return struct.unpack_from("<" + code, self.data, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        size = self.scalar("Q")
        begin = self.take(size)
        return self.data[begin : begin + size].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        raise ModelError(f"the GGUF file {self.path} is corrupt: unknown value type {kind} at offset {self.at - 4}")

    def array(self) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind in _SCALARS:
            dtype = np.dtype("<" + _SCALARS[kind])
            begin = self.take(count * dtype.itemsize)
            values: list[Any] = np.frombuffer(self.data, dtype, count, begin).tolist()
            return values
        if kind == _STRING:
            return self.strings(count)
        if kind == _ARRAY:
            return [self.array() for _ in range(count)]
        raise ModelError(f"the GGUF file {self.path} is corrupt: unknown array type {kind} at offset {self.at - 12}")

    def strings(self, count: int) -> list[str]:
        """The hot loop: two arrays of fifty thousand strings and more."""
        data, at, end, unpack = self.data, self.at, len(self.data), struct.Struct("<Q").unpack_from
        out: list[str] = []
        for _ in range(count):
            if at + 8 > end:
                self.take(end)  # raises
            (size,) = unpack(data, at)
            at += 8 + size
            if at > end:
                self.take(end)  # raises
            out.append(data[at - size : at].decode("utf-8", errors="replace"))
        self.at = at
        return out
