"""One matrix product with a constant weight, in the layout that is fastest for its type and device.

On a CPU oneDNN keeps its own blocked copy of the weight, which replaces the plain one. `pack` decides once at load;
calls decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

BATCH_HINT = 32
"""Rows for which oneDNN chooses the layout; with 1 instead, products of 32 rows lose 15 %, single rows win nothing."""


class Linear(Protocol):
    """x [T, in] to [T, out]."""

    def __call__(self, x: Tensor) -> Tensor: ...


Pack = Callable[[Tensor, Tensor | None], Linear]
"""`pack`, or what takes its place."""


class PlainLinear:
    """`torch.nn.functional.linear` on the weight as it is, [out, in]."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class PackedLinear:
    """oneDNN's product with a weight that it has laid out in blocks once."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        with torch.inference_mode():
            self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, BATCH_HINT)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return result


def pack(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest form of a weight [out, in]; the caller drops its own reference to the plain one."""
    if weight.device.type == "cpu" and _can_pack(weight.dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def _can_pack(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32
