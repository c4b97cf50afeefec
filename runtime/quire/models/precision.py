"""In which numbers a model computes where nobody says it: by device, checkpoint and executor."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Precision:
    """How a model's numbers are held.

    dtype     of weights that are plain numbers
    kv_dtype  of the KV cache where nobody says it
    stored    matrices that a file holds as blocks of quantised numbers are computed as they are
    """

    dtype: torch.dtype
    kv_dtype: torch.dtype
    stored: bool = False

    @classmethod
    def of(cls, dtype: torch.dtype) -> Precision:
        return cls(dtype, dtype)


def of_modules(checkpoint_dtype: str, device: torch.device) -> Precision:
    """For torch modules. On a CPU bfloat16 only where the CPU multiplies it natively; without that it is slower than float32."""
    if device.type == "cpu":
        return Precision.of(torch.bfloat16 if native_bfloat16() else torch.float32)
    return Precision.of(DTYPES[checkpoint_dtype] if checkpoint_dtype in ("bfloat16", "float16") else torch.bfloat16)


def of_plan(checkpoint_dtype: str) -> Precision:
    """For the CPU plan and weights that are plain numbers: as the checkpoint has them, so that none is rounded."""
    return Precision.of(DTYPES.get(checkpoint_dtype, torch.float32))


def as_stored() -> Precision:
    """A quantised file as it is, with keys and values in bfloat16. No default yet: inputs of products are rounded to 8 bits, which
    on SmolLM2 moves next-token distributions by 0.007 nats on average, and a near tie in its first example the other way."""
    return Precision(torch.float32, torch.bfloat16, stored=True)


def native_bfloat16() -> bool:
    """True where the CPU has bfloat16 dot products (AVX512_BF16 or AMX)."""
    capabilities = torch.cpu.get_capabilities()
    return any(bool(capabilities.get(name)) for name in ("avx512_bf16", "amx_bf16", "amx_tile"))
