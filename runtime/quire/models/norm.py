"""The norms of a description, bound to their weights."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from quire.models.description import DecoderDescription
from quire_kernels import ops


class Norm(Protocol):
    """A norm of rows [T, H]."""

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The norm of x. out: where to put it; may be x."""

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual += x in place, and the norm of that; x is overwritten or not."""


class RMSNorm:
    """arXiv:1910.07467."""

    __slots__ = ("_eps", "_offset", "_weight")

    def __init__(self, weight: Tensor, eps: float, offset: float) -> None:
        """offset: added to the weight."""
        self._weight = weight
        self._eps = eps
        self._offset = offset

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return ops.rms_norm(x, self._weight, self._eps, out=out, offset=self._offset)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return ops.fused_add_rms_norm(x, residual, self._weight, self._eps, out=x, offset=self._offset)


class NoNorm:
    """Where a description has none."""

    __slots__ = ()

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return x

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return residual.add_(x)


def make_norm(description: DecoderDescription, weight: Tensor | None) -> Norm:
    """The norm of a weight; none where the description has no such weight."""
    return NoNorm() if weight is None else RMSNorm(weight, description.norm_eps, description.norm_offset)
