"""Plans of one model's memory, and what they are refused with."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from quire.config import EngineConfig
from quire.engine.advice import Alternative, plan_or_advise
from quire.engine.budget import GPUBudget, HostBudget
from quire.engine.host import HostMemory
from quire.engine.memory import MemoryPlan
from quire.engine.need import Need
from quire.errors import ModelError
from quire.models import decoder
from quire.models.description import DecoderDescription, Rope

MIB = 1 << 20
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SMOL = DecoderDescription(
    architecture="llama",
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_size=64,
    vocab_size=49152,
    max_model_len=8192,
    norm_eps=1e-5,
    rope=Rope(theta=100_000.0, dim=64),
    tie_embeddings=True,
)


def planned(
    mib: int,
    *,
    limited: bool = True,
    apart_mib: int | None = None,
    gpu: GPUBudget | None = None,
    model: DecoderDescription = SMOL,
    loading_mib: int = 0,
    dtype: str = "float32",
    others: bool = True,
    **config: object,
) -> MemoryPlan:
    """In main memory of `mib` MiB, or on a GPU. loading_mib: taken while weights are read, in float32. others: --dtype bfloat16 may be
    advised."""
    apart_mib = 64_000 if gpu is not None and apart_mib is None else apart_mib
    memory = HostMemory(available=mib * MIB, limited=limited, limit=(mib + 300) * MIB)
    apart = None if apart_mib is None else HostMemory(available=apart_mib * MIB, limited=False, limit=apart_mib * MIB)
    settings = EngineConfig(model="smol", **config)  # type: ignore[arg-type]

    def need(held: torch.dtype) -> Need:
        found = replace(decoder.footprint(model, held), loading=loading_mib * MIB * held.itemsize // 4)
        return Need(model, settings, found, kv_dtype_bytes=held.itemsize)

    return plan_or_advise(
        need(DTYPES[dtype]),
        [Alternative("--dtype bfloat16", need(torch.bfloat16))] if others else [],
        gpu or HostBudget(memory),
        None if apart is None else HostBudget(apart),
    )


def refused(mib: int, **how: Any) -> str:
    with pytest.raises(ModelError) as caught:
        planned(mib, **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def number(pattern: str, message: str) -> int:
    """What the pattern's group has found."""
    found = re.search(pattern, message)
    assert found, message
    return int(found.group(1).replace(",", ""))


def tried(mib: int, **how: Any) -> str:
    """What a start is refused with; empty where it is not."""
    try:
        planned(mib, **how)
    except ModelError as exc:
        return str(exc)
    return ""
