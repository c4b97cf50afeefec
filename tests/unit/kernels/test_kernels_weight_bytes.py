"""Packed weights as bytes: the same weight again wherever they lie, refused where they cannot be one, and always the same bytes."""

from __future__ import annotations

import gc
import hashlib
import mmap
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quire_kernels import ops
from quire_kernels.formats import GGML_BLOCKS
from quire_kernels.ops import GgmlType, PackedWeight
from quire_kernels.weight_bytes import ALIGNMENT, PACKING, borrow, bytes_of

KINDS: list[GgmlType | str] = [*ops.PACKED_FORMATS, *GgmlType]
FLOATS = {GgmlType.F32: torch.float32, GgmlType.F16: torch.float16, GgmlType.BF16: torch.bfloat16}
SCALES = dict.fromkeys((GgmlType.Q4_1, GgmlType.Q5_1, GgmlType.Q4_K, GgmlType.Q5_K), (1, 3)) | {GgmlType.Q6_K: (209,)}
"""Where the upper bytes of float16 scales and minima are in a block, if not at 1."""
SHAPES = [(16, 256), (33, 256), (7, 512)]


def noise(count: int) -> Tensor:
    """Bytes in no order, always the same."""
    index = torch.arange(count)
    return ((index * index * 40_503 + index * 2_654_435_761) >> 15 & 255).to(torch.uint8)


def numbers(rows: int, cols: int) -> Tensor:
    """Exact in every type of number."""
    return (noise(rows * cols).float() - 128).div_(256).view(rows, cols)


def packed(kind: GgmlType | str, rows: int, cols: int) -> PackedWeight:
    if not isinstance(kind, GgmlType):
        return ops.pack_weight(numbers(rows, cols), kind)
    if kind in FLOATS:
        raw = numbers(rows, cols).to(FLOATS[kind]).view(torch.uint8).flatten()
    else:
        elements, size = GGML_BLOCKS[kind]
        blocks = noise(rows * cols // elements * size).view(-1, size)
        for at in SCALES.get(kind, (1,)):
            blocks[:, at] &= 0xBF  # finite
        raw = blocks.flatten()
    return ops.pack_gguf([(raw, kind, rows)], cols)


def elsewhere(data: memoryview, place: Path) -> memoryview:
    """In a file, mapped read-only; the map lives as long as what reads it."""
    place.write_bytes(data)
    with place.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_same_weight_again(cpu_implementation: str, kind: GgmlType | str, tmp_path: Path) -> None:
    for rows, cols in SHAPES:
        original = packed(kind, rows, cols)
        assert bytes_of(original).readonly
        assert len(bytes_of(original)) == original.nbytes
        again = borrow(elsewhere(bytes_of(original), tmp_path / str(rows)), [(kind, rows)], cols)
        assert (again.format, again.shape, again.nbytes) == (original.format, original.shape, original.nbytes)
        assert bytes_of(again) == bytes_of(original)
        x = numbers(5, cols)
        assert torch.equal(ops.packed_linear(x, again), ops.packed_linear(x, original))
        assert torch.equal(ops.unpack_weight(again), ops.unpack_weight(original))


@pytest.mark.parametrize("cols", [31, 64, 75])
def test_a_stack_of_parts(cpu_implementation: str, cols: int, tmp_path: Path) -> None:
    for formats in (("q4", "q8", "q4"), ("f16", "f32", "f16"), ("bf16", "bf16")):
        parts = [(numbers(5 + 20 * index, cols), format) for index, format in enumerate(formats)]
        original = ops.pack_weights(parts)
        shapes: list[tuple[GgmlType | str, int]] = [(format, len(weight)) for weight, format in parts]
        again = borrow(elsewhere(bytes_of(original), tmp_path / formats[0]), shapes, cols)
        assert (again.format, again.shape) == (original.format, original.shape)
        assert torch.equal(ops.packed_linear(numbers(3, cols), again), ops.packed_linear(numbers(3, cols), original))


def test_bytes_between_parts_are_zero(cpu_implementation: str) -> None:
    """They go to files, where nothing of this process' memory belongs. One column of float16 in a panel is half a line of 64 bytes."""
    for _ in range(50):
        dirty = torch.full((64,), float("nan"))  # of the size that the next allocation may get
        del dirty
        data = bytes_of(ops.pack_weights([(torch.ones(16, 1), "f16"), (torch.ones(16, 1), "f16")]))
        assert data[:32] == data[64:96] == b"\x00\x3c" * 16
        assert not any(data[32:64]) and not any(data[96:])


class Owner(bytearray):
    """Memory that can be watched."""


def aligned(size: int) -> tuple[Owner, memoryview]:
    owner = Owner(size + ALIGNMENT)
    at = -np.frombuffer(owner, dtype=np.uint8).ctypes.data % ALIGNMENT
    return owner, memoryview(owner)[at : at + size]


def test_the_owner_lives_as_long_as_the_weight(cpu_implementation: str) -> None:
    original = packed("q4", 33, 256)
    owner, room = aligned(original.nbytes)
    room[:] = bytes_of(original)
    weight = borrow(room.toreadonly(), [("q4", 33)], 256)
    alive = weakref.ref(owner)
    with pytest.raises(BufferError):
        owner.clear()  # nor may it move
    view = bytes_of(weight)
    del owner, room, weight
    gc.collect()
    assert view == bytes_of(original)
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


def bad(size: int, kind: Any, rows: int, cols: int, *, off: int = 0) -> Callable[[], object]:
    def call() -> object:
        _, room = aligned(size + off)
        return borrow(room[off:], [(kind, rows)], cols)

    return call


Q8 = 2 * 8 * 544
"""Bytes of 33 rows of 256 columns, but for the third panel."""

REFUSED: list[tuple[Callable[[], object], str]] = [
    (bad(Q8, "q8", 33, 256), r"a part of 33 rows and 256 columns is more than data's 8704 bytes"),
    (bad(Q8 + 64, "q8", 32, 256), "data must have 8704 bytes, got 8768"),
    (bad(Q8, "q8", 16, 256), "data must have 4352 bytes, got 8704"),
    (bad(Q8, "q8", 32, 256, off=32), "data must begin at a multiple of 64 bytes of memory"),
    (bad(Q8, "q8", 0, 256), "at least one row and one column, got 0 and 256"),
    (bad(Q8, "q8", -32, 256), "at least one row and one column, got -32 and 256"),
    (bad(Q8, "q8", 32, 0), "at least one row and one column, got 32 and 0"),
    (bad(Q8, "q8", 2**62, 2**62), "is more than data's 8704 bytes"),
    (bad(Q8, "f32", 2**63 - 1, 1), "is more than data's 8704 bytes"),
    (bad(Q8, "f32", 1, 2**63 - 1), "is more than data's 8704 bytes"),
    (bad(0, "f32", 1, 1), "is more than data's 0 bytes"),
    (bad(Q8, "q5", 32, 256), "a part must be f32, f16, bf16, q8, q4 or a GgmlType, got 'q5'"),
    (bad(Q8, 8, 32, 256), "a part must be f32, f16, bf16, q8, q4 or a GgmlType, got 8"),
    (lambda: borrow(aligned(Q8)[1], [], 256), "a packed weight needs at least one part"),
    (
        lambda: borrow(aligned(2 * Q8)[1], [("q8", 32), ("f32", 8)], 256),
        "parts that read their input in different forms",
    ),
    (lambda: borrow(aligned(2 * Q8)[1][::2], [("q8", 32)], 256), "data must be contiguous"),
    (lambda: bytes_of(torch.zeros(3)), "packed must be a weight of the C\\+\\+ extension, got Tensor"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_does_not_fit_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ops.ArgumentError, match=message):
        call()


def test_what_cannot_be_read_is_not_looked_at() -> None:
    """Sizes are compared before a byte is read: nobody may read these."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    pages = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(pages)), 0) == 0
    try:
        for rows in (1, 33, 10**6):
            with pytest.raises(ops.ArgumentError, match="bytes"):
                borrow(memoryview(pages), [("q8", rows)], 256)
        assert borrow(memoryview(pages), [("f32", 64)], 64).shape == (64, 64)  # fits, and is not looked at either
    finally:
        assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(pages)), 3) == 0


DIGESTS: dict[int, dict[str, str]] = {
    1: {
        "f32": "aa2c7bdd69f35207",
        "f16": "15fa30a049fea094",
        "bf16": "069fbf060a91e8f7",
        "q8": "221d77d8f3ee160d",
        "q4": "0a275f5235900bef",
        "F32": "aa2c7bdd69f35207",
        "F16": "15fa30a049fea094",
        "Q4_0": "bc4118dd6a226af4",
        "Q4_1": "7f239d605b58c07d",
        "Q5_0": "8b66227b1e39c691",
        "Q5_1": "d4f3f0883ce85d45",
        "Q8_0": "900626223287aca9",
        "Q4_K": "955db1b7c7018252",
        "Q5_K": "62db177b581b3cdf",
        "Q6_K": "2e2d7cb0ef420fd5",
        "BF16": "069fbf060a91e8f7",
    },
}
"""Of what is packed from the same numbers, by PACKING. Where one of them changes, so do weights: raise PACKING, and write down the new ones."""


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_bytes_of_this_version(kind: GgmlType | str) -> None:
    name = kind.name if isinstance(kind, GgmlType) else kind
    digest = hashlib.sha256()
    for rows, cols in SHAPES:
        digest.update(bytes_of(packed(kind, rows, cols)))
    if name == "q4":
        importance = numbers(1, 256)[0].abs()
        digest.update(bytes_of(ops.pack_weights([(numbers(20, 256), "q4")], importance)))
    assert DIGESTS[PACKING][name] == digest.hexdigest()[:16], (
        "packing makes other bytes than before: raise PACKING in quire_kernels/weight_bytes.py and write the digests down"
    )
