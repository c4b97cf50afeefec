"""The file that keeps packed weights: a header, then the bytes of each matrix as `weight_bytes.bytes_of` gives them.

    8 bytes    magic, with the version
    8 bytes    length of the header, little-endian
    32 bytes   SHA-256 of the header
    header     JSON: the key, the matrices with their shape and place, how many bytes of numbers follow
    numbers    from the next multiple of 4096 on; each matrix at a multiple of 64

Read by mapping it: nothing is copied, and processes on one machine share it. A file that is cut, or whose header is damaged, is found by
its size and digest; of the numbers the first page of each matrix has a checksum, so that a file with holes is found too. The rest is
believed, as that of the model's own files is.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path

import msgspec

from quire.models.packing import Matrix
from quire_kernels.errors import ArgumentError
from quire_kernels.ops import GgmlType, PackedWeight
from quire_kernels.weight_bytes import ALIGNMENT, borrow, bytes_of

VERSION = 1
_MAGIC = b"QUIREPK" + bytes([VERSION])
_FIXED = len(_MAGIC) + 8 + 32
_PAGE = 4096
_LONGEST_HEADER = 1 << 28
_CHUNK = 1 << 24


class Unusable(Exception):
    """A file is not what it should be; the message says why."""


class Shape(msgspec.Struct, frozen=True):
    """A `Matrix` in words."""

    name: str
    parameters: list[str]
    kinds: list[str]
    rows: list[int]
    cols: int


class Held(msgspec.Struct, frozen=True):
    """Where a matrix is: first byte, counted from where numbers begin, and bytes; and the checksum of its first page."""

    shape: Shape
    start: int
    size: int
    checksum: int


class Header(msgspec.Struct, frozen=True):
    """What a file says of itself."""

    key: str
    matrices: list[Held]
    num_bytes: int


def shape_of(matrix: Matrix) -> Shape:
    """A matrix as a file tells it."""
    kinds = [kind.name if isinstance(kind, GgmlType) else kind for kind, _ in matrix.parts]
    return Shape(matrix.name, list(matrix.parameters), kinds, [rows for _, rows in matrix.parts], matrix.cols)


def contents(key: str, matrices: Sequence[Matrix], packed: Mapping[str, PackedWeight]) -> Iterator[memoryview]:
    """The whole file in pieces of 16 MiB at most."""
    held, at = [], 0
    for matrix in matrices:
        data = bytes_of(packed[matrix.name])
        held.append(Held(shape_of(matrix), at, len(data), _checksum(data)))
        at += -(-len(data) // ALIGNMENT) * ALIGNMENT
    header = msgspec.json.encode(Header(key, held, at))
    fixed = _MAGIC + len(header).to_bytes(8, "little") + hashlib.sha256(header).digest()
    yield memoryview((fixed + header).ljust(_begin(len(header)), b"\0"))
    for matrix in matrices:
        data = bytes_of(packed[matrix.name])
        yield from (data[first : first + _CHUNK] for first in range(0, len(data), _CHUNK))
        if rest := -len(data) % ALIGNMENT:
            yield memoryview(bytes(rest))


def map_file(path: Path, key: str, matrices: Sequence[Matrix]) -> dict[str, PackedWeight]:
    """The weights in a file, by name; they keep it mapped, also where it is removed or replaced.

    Raises FileNotFoundError where there is none, OSError where it cannot be read, and Unusable.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        header, begin = _header(file, size)
        if begin + header.num_bytes != size:
            raise Unusable(f"it has {size} bytes, and should have {begin + header.num_bytes}")
        if header.key != key or [each.shape for each in header.matrices] != [shape_of(matrix) for matrix in matrices]:
            raise Unusable("it holds other weights than its name says")
        # All pages at once, for the first request would wait for each of them.
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        numbers = memoryview(mmap.mmap(file.fileno(), size, flags=flags, prot=mmap.PROT_READ))[begin:]
    weights: dict[str, PackedWeight] = {}
    for matrix, held in zip(matrices, header.matrices, strict=True):
        data = numbers[held.start : held.start + held.size]
        if _checksum(data) != held.checksum:
            raise Unusable(f"the bytes of {matrix.name} are not those that were written")
        try:
            weights[matrix.name] = borrow(data, matrix.parts, matrix.cols)
        except ArgumentError as exc:
            raise Unusable(f"{matrix.name}: {exc}") from exc
    return weights


def _header(file: FileIO, size: int) -> tuple[Header, int]:
    """The header, and where numbers begin."""
    fixed = file.read(_FIXED)
    if len(fixed) < _FIXED or not fixed.startswith(_MAGIC):
        raise Unusable("it does not begin as such a file does")
    length = int.from_bytes(fixed[len(_MAGIC) : len(_MAGIC) + 8], "little")
    if length > min(size, _LONGEST_HEADER):
        raise Unusable(f"its header claims {length} bytes")
    header = file.read(length)
    if hashlib.sha256(header).digest() != fixed[-32:]:
        raise Unusable("its header is damaged")
    try:
        return msgspec.json.decode(header, type=Header), _begin(length)
    except msgspec.MsgspecError as exc:
        raise Unusable(f"its header says what is not known here ({exc})") from exc


def _begin(header_bytes: int) -> int:
    return -(-(_FIXED + header_bytes) // _PAGE) * _PAGE


def _checksum(data: memoryview) -> int:
    return zlib.crc32(data[:_PAGE])
