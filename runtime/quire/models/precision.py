"""In which numbers a model computes: what `--dtype` and `--quantization` say, and by device, files and executor what they leave open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from quire.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
AUTO = "auto"
Quantization = Literal["none", "stored", "int8", "int4"]
AT_LOAD: dict[str, Quantization] = {"int8": "int8", "int4": "int4"}
"""Quantisations that are made while weights are loaded."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How a model's numbers are held.

    dtype         of matrices that are plain numbers
    kv_dtype      of the KV cache where nobody says it
    quantization  of matrices. none: they are plain numbers; stored: as the file has them, blocks of quantised numbers included;
                  int8, int4: plain numbers are quantised as they are loaded
    """

    dtype: torch.dtype
    kv_dtype: torch.dtype
    quantization: Quantization = "none"

    @classmethod
    def of(cls, dtype: torch.dtype) -> Precision:
        """Plain numbers."""
        return cls(dtype, dtype)

    def kv_cache(self, dtype: str) -> torch.dtype:
        """What the KV cache holds, where `--kv-cache-dtype` says that."""
        return self.kv_dtype if dtype == AUTO else DTYPES[dtype]

    @property
    def rounded_to(self) -> torch.dtype:
        """Type of what is not held as a file stores it: norm weights, biases, and matrices that are stacked of several types. Beside
        stored ones it is float32, which changes none of a file's numbers."""
        return torch.float32 if self.quantization == "stored" else self.dtype


def of_modules(
    checkpoint_dtype: str, device: torch.device, reason: str, *, dtype: str = AUTO, quantization: str = AUTO
) -> Precision:
    """For torch modules, which compute with plain numbers; a quantised file is expanded. reason: why it is they that compute.

    On a CPU bfloat16 only where the CPU multiplies it natively; without that it is slower than float32. Raises ConfigError where
    weights were to be quantised.
    """
    if quantization in AT_LOAD:
        raise ConfigError(
            f"--quantization {quantization} needs the CPU plan, but {reason}; leave it out, or say auto or none"
        )
    if dtype != AUTO:
        return Precision.of(DTYPES[dtype])
    if device.type == "cpu":
        return Precision.of(torch.bfloat16 if native_bfloat16() else torch.float32)
    return Precision.of(DTYPES[checkpoint_dtype] if checkpoint_dtype in ("bfloat16", "float16") else torch.bfloat16)


def of_plan(
    checkpoint_dtype: str, held: str, *, blocks: bool, dtype: str = AUTO, quantization: str = AUTO
) -> Precision:
    """For the CPU plan: as the files have the weights, where nobody says otherwise. A type, or `none`, expands a quantised file.

    checkpoint_dtype: of its plain matrices, most of them. held: in which blocks a file holds its matrices, `none` where they are plain
    numbers. blocks: it is a kind of file that may hold some. Quantised weights leave keys and values in 16 bits, where nobody
    says otherwise. Raises ConfigError where a quantised file was to be quantised again, which would lose twice.
    """
    quantised = held != "none"
    plain = DTYPES.get(checkpoint_dtype if dtype == AUTO else dtype, torch.float32)
    if (made := AT_LOAD.get(quantization)) is not None:
        if quantised:
            raise ConfigError(
                f"--quantization {quantization}: the file is quantised already ({held}); leave it out, or take the model's "
                "unquantised weights"
            )
        return Precision(plain, torch.bfloat16 if dtype == AUTO and plain == torch.float32 else plain, made)
    if blocks and dtype == AUTO and quantization == AUTO:
        return Precision(plain, torch.bfloat16 if quantised else plain, "stored")
    if quantised and dtype == AUTO:
        return Precision.of(torch.bfloat16 if native_bfloat16() else torch.float32)
    return Precision.of(plain)


def native_bfloat16() -> bool:
    """True where the CPU has bfloat16 dot products (AVX512_BF16 or AMX)."""
    capabilities = torch.cpu.get_capabilities()
    return any(bool(capabilities.get(name)) for name in ("avx512_bf16", "amx_bf16", "amx_tile"))
