"""Starts of tiny models with a packed cache: what they pack, what they answer, what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.models import calibration, packed_file
from quire.models.calibration import Calibration
from quire.models.executor import Batch, allocate_kv_pool
from quire.models.loader import NativeModel, inspect
from quire.models.packed_cache import PackedCache
from quire.models.packing import Reader
from quire.models.precision import Precision
from quire.models.source import resolve
from quire_kernels import ops
from quire_kernels.ops import PackedWeight
from quire_kernels.weight_bytes import bytes_of

CPU = torch.device("cpu")
TOKENS = list(range(3, 48))
INT8, INT4 = (Precision(torch.float32, torch.bfloat16, name) for name in ("int8", "int4"))
EVERYTHING = 1 << 40


def native(path: Path) -> NativeModel:
    model = inspect(resolve(str(path)))
    assert isinstance(model, NativeModel)
    return model


@contextmanager
def packing() -> Iterator[list[int]]:
    """Bytes of every weight that is packed meanwhile."""
    packed: list[int] = []

    def watched(pack: Callable[..., PackedWeight]) -> Callable[..., PackedWeight]:
        def call(*arguments: Any) -> PackedWeight:
            weight = pack(*arguments)
            packed.append(weight.nbytes)
            return weight

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "pack_weights", watched(ops.pack_weights))
        patch.setattr(ops, "pack_gguf", watched(ops.pack_gguf))
        yield packed


def start(
    model: NativeModel, precision: Precision, cache: PackedCache, tokens: list[int] = TOKENS
) -> tuple[int, Tensor]:
    """How many weights a start packs, and logits."""
    with packing() as packed:
        executor = model.plan().load(precision, 16, lambda: tokens, cache)
    cache.wait()
    return len(packed), logits(model, executor)


def logits(model: NativeModel, executor: Any) -> Tensor:
    at = torch.arange(8)
    pool = allocate_kv_pool(model.description, 1, 8, torch.float32, CPU)
    batch = Batch(
        token_ids=at + 5,
        positions=at,
        slot_mapping=at,
        block_tables=torch.zeros(1, 1, dtype=torch.int32),
        query_start=torch.tensor([0, 8], dtype=torch.int32),
        context_lens=torch.tensor([8], dtype=torch.int32),
        logit_rows=at,
    )
    result: Tensor = executor.logits(executor.forward(batch, pool))
    return result


def fresh(model: NativeModel, precision: Precision) -> dict[str, bytes]:
    """The bytes of all weights, packed."""
    d, files = model.description, model._open()
    watched = Calibration(d, files, TOKENS) if calibration.applies(d, precision) else None
    return {matrix.name: bytes(bytes_of(weight)) for matrix, weight in Reader(files, precision, d).pack(watched)}


def held(cache: PackedCache) -> list[Path]:
    return sorted(cache.folder.glob("*"))


def mapped(cache: PackedCache, model: NativeModel, precision: Precision) -> Mapping[str, PackedWeight]:
    """What the only file of a cache holds."""
    [path] = held(cache)
    matrices = Reader(model._open(), precision, model.description).matrices()
    return packed_file.map_file(path, path.stem, matrices)
