"""Which implementation serves a device: the C++ extension for CPU tensors, the torch reference for the rest.

`QUIRE_KERNELS=ref|cpu` chooses for the whole process; a choice that cannot run fails with the reason and never falls
back. Without it the best implementation is taken, and a fallback is logged once and kept in `Selection.reason`, so
that the engine can show it in `/metrics`. Nothing but this module decides; `ops` asks once per device type.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from dataclasses import dataclass
from typing import Protocol, cast

from torch import Tensor

from quire_kernels import ref
from quire_kernels.errors import UnavailableError

CHOICE_VARIABLE = "QUIRE_KERNELS"

_log = logging.getLogger(__name__)


class PackedWeight(Protocol):
    """A weight [N, K] in the layout of the implementation that packed it; constant."""

    @property
    def format(self) -> str:
        """`f32`, `f16`, `bf16`, `q8`, `q4`, or several with `+` where the rows of a stack differ."""

    @property
    def shape(self) -> tuple[int, int]:
        """N, K."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory it holds."""


class Kernels(Protocol):
    """What an implementation offers; `quire_kernels.ops` says what it means. It checks its arguments, and allocates none."""

    NAME: str

    def set_num_threads(self, num_threads: int) -> None: ...

    def num_threads(self) -> int: ...

    def paged_attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_tables: Tensor,
        query_start: Tensor,
        context_lens: Tensor,
        scale: float,
        out: Tensor,
        window: int,
        softcap: float,
    ) -> None: ...

    def write_kv(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
    ) -> None: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float, out: Tensor) -> None: ...

    def fused_add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float, out: Tensor
    ) -> None: ...

    def head_rms_norm(
        self, query: Tensor, key: Tensor, query_weight: Tensor, key_weight: Tensor, eps: float, offset: float
    ) -> None: ...

    def rope(self, query: Tensor, key: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> None: ...

    def silu_mul(self, gate_up: Tensor, out: Tensor) -> None: ...

    def gelu_tanh_mul(self, gate_up: Tensor, out: Tensor) -> None: ...

    def dequantize_gguf(
        self, raw: Tensor, ggml_type: int, block_elements: int, block_bytes: int, out: Tensor
    ) -> None: ...

    def pack_weights(self, parts: list[tuple[Tensor, str]], importance: Tensor | None) -> PackedWeight: ...

    def pack_gguf(self, parts: list[tuple[Tensor, int, int, int]], cols: int) -> PackedWeight: ...

    def packed_linear(self, x: Tensor, packed: object, bias: Tensor | None, out: Tensor) -> None: ...

    def unpack_weight(self, packed: object, out: Tensor) -> None: ...


@dataclass(frozen=True)
class Selection:
    """The implementation that serves a device type. `reason` is empty unless it, or its instruction set, is a fallback."""

    kernels: Kernels
    reason: str = ""


@functools.cache
def select(device_type: str) -> Selection:
    """The implementation for `cpu`, `cuda`, …; decided once per process. Raises UnavailableError for an explicit choice."""
    choice = os.environ.get(CHOICE_VARIABLE, "")
    if choice == "ref":
        return Selection(cast(Kernels, ref))
    if choice == "cpu":
        if device_type != "cpu":
            raise UnavailableError(
                f"{CHOICE_VARIABLE}=cpu cannot serve tensors on {device_type}; unset it or move them"
            )
        try:
            return _load_cpu()
        except ImportError as error:
            raise UnavailableError(f"{CHOICE_VARIABLE}=cpu: {_unbuilt(error)}") from error
    if choice:
        raise UnavailableError(f"{CHOICE_VARIABLE} must be ref or cpu, got {choice!r}")
    if device_type == "cpu":
        try:
            return _load_cpu()
        except ImportError as error:
            return _fall_back(_unbuilt(error))
    return _fall_back(f"there are no kernels for {device_type} yet")


def _load_cpu() -> Selection:
    module = importlib.import_module("quire_kernels.cpu")
    return Selection(cast(Kernels, module), module.FALLBACK)


def _unbuilt(error: ImportError) -> str:
    return f"the C++ extension cannot be loaded ({error}); build it with `pip install -e ./kernels`"


def _fall_back(reason: str) -> Selection:
    _log.warning("kernels: using the slow torch reference, because %s", reason)
    return Selection(cast(Kernels, ref), reason)
