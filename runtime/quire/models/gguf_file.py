"""Read GGUF files (versions 2 and 3, little-endian): metadata and where each tensor lies.

Every length is checked against the file before it is believed, so a truncated or damaged file ends with one ModelError
that says where, never with a hang, a crash or a huge allocation. Tensor data is mapped, not read. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. No torch here; the tokenizer reads metadata through this too.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.errors import ModelError

MAX_TENSORS = 1 << 20
MAX_KEYS = 1 << 20
MAX_NESTING = 4
GGML_BLOCKS = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    30: (1, 2),  # BF16
}
"""Elements and bytes of a block of the types that `quire_kernels.ops.dequantize_gguf` reads."""
SUPPORTED_TYPES = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor: `shape` is row-major (GGUF's own order reversed), `start` its first byte in the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    start: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


class GGUFFile:
    """An open GGUF file. Raises ModelError naming the file, the place and a remedy where it cannot be understood."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.size = path.stat().st_size
                if self.size < 24:
                    raise ModelError(f"{path} has {self.size} bytes, too few for a GGUF file; download it again")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as exc:
            raise ModelError(f"cannot read {path}: {exc.strerror or exc}") from exc
        self._at = 0
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GGUFTensor] = {}
        self._parse()

    def data(self, tensor: GGUFTensor) -> memoryview:
        """The raw bytes of a tensor, mapped from the file."""
        return memoryview(self._map)[tensor.start : tensor.start + tensor.num_bytes]

    def _parse(self) -> None:
        if self._map[:4] != b"GGUF":
            raise ModelError(f"{self.path} does not begin with GGUF: it is no GGUF file, or it is damaged")
        self._at = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise ModelError(f"{self.path} has GGUF version {version}; versions 2 and 3 (little-endian) are supported")
        num_tensors, num_keys = self._scalar("Q"), self._scalar("Q")
        if num_tensors > MAX_TENSORS or num_keys > MAX_KEYS:
            raise self._damaged(f"its header claims {num_tensors} tensors and {num_keys} metadata keys")
        for _ in range(num_keys):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("I"), 0)
        headers = [self._tensor_header() for _ in range(num_tensors)]
        self._place(headers)

    def _place(self, headers: list[tuple[str, tuple[int, ...], int, int]]) -> None:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self._damaged(f"general.alignment is {alignment!r}, not a power of two")
        base = -(-self._at // alignment) * alignment
        for name, shape, ggml_type, offset in headers:
            if ggml_type not in GGML_BLOCKS:
                raise ModelError(
                    f"{self.path}: tensor {name} has type {ggml_type}, which is not supported (or the file is damaged); "
                    f"use a file with {SUPPORTED_TYPES}"
                )
            block, block_bytes = GGML_BLOCKS[ggml_type]
            elements = math.prod(shape)
            if shape[-1] % block or offset % alignment:
                raise self._damaged(f"tensor {name} has shape {list(shape)} and offset {offset}")
            tensor = GGUFTensor(name, shape, ggml_type, base + offset, elements // block * block_bytes)
            end = tensor.start + tensor.num_bytes
            if end > self.size:
                raise ModelError(
                    f"{self.path} is truncated: tensor {name} ends at byte {end}, but the file has {self.size}; "
                    "download it again"
                )
            if name in self.tensors:
                raise self._damaged(f"tensor {name} appears twice")
            self.tensors[name] = tensor

    def _tensor_header(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dims = self._scalar("I")
        if not 1 <= dims <= 4:
            raise self._damaged(f"tensor {name!r} has {dims} dimensions")
        shape = tuple(self._scalar("Q") for _ in range(dims))
        if math.prod(shape) > 1 << 44 or 0 in shape:
            raise self._damaged(f"tensor {name!r} has shape {list(shape)}")
        return name, shape[::-1], self._scalar("I"), self._scalar("Q")

    def _scalar(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        if self._at + size > self.size:
            raise self._cut()
        (value,) = struct.unpack_from("<" + code, self._map, self._at)
        self._at += size
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        if self._at + length > self.size:
            raise self._cut()
        raw = self._map[self._at : self._at + length]
        self._at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged(f"a string before byte {self._at} is not UTF-8") from None

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY or depth >= MAX_NESTING:
            raise self._damaged(f"unknown value type {kind} before byte {self._at}")
        item, length = self._scalar("I"), self._scalar("Q")
        if item in _SCALARS:
            return self._scalars(_SCALARS[item], length)
        if length > self.size - self._at:
            raise self._cut()
        if item == _STRING:
            return self._strings(length)
        return [self._value(item, depth + 1) for _ in range(length)]

    def _scalars(self, code: str, length: int) -> list[Any]:
        size = struct.calcsize("<" + code) * length
        if self._at + size > self.size:
            raise self._cut()
        values = list(struct.unpack_from(f"<{length}{code}", self._map, self._at))
        self._at += size
        return values

    def _strings(self, length: int) -> list[str]:
        """Many strings at once: vocabularies have 100 000, so this loop is written for speed."""
        at, size, data, read = self._at, self.size, self._map, struct.Struct("<Q").unpack_from
        strings: list[str] = []
        for _ in range(length):
            if at + 8 > size:
                raise self._cut()
            end = at + 8 + read(data, at)[0]
            if end > size:
                raise self._cut()
            try:
                strings.append(data[at + 8 : end].decode())
            except UnicodeDecodeError:
                raise self._damaged(f"a string before byte {end} is not UTF-8") from None
            at = end
        self._at = at
        return strings

    def _cut(self) -> ModelError:
        return ModelError(
            f"{self.path} is truncated or damaged: its header goes on past the end of the file at byte {self.size}; "
            "download it again"
        )

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{self.path} is damaged: {what}; download it again")
