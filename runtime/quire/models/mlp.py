"""One layer's gated MLP."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from quire.models import linear
from quire.models.description import DecoderDescription
from quire.models.linear import Pack
from quire_kernels import ops


def activation(description: DecoderDescription) -> Callable[[Tensor], Tensor]:
    """gates and ups [T, 2I] to [T, I]."""
    return {"silu": ops.silu_mul, "gelu_tanh": ops.gelu_tanh_mul}[description.activation]


class GatedMLP:
    """down(activation(gate(x)) * up(x)) (arXiv:2002.05202)."""

    def __init__(self, description: DecoderDescription, weights: dict[str, Tensor], pack: Pack = linear.pack) -> None:
        """weights: the layer's, fused (see `description.STACKED`); what is packed is taken out."""
        self._gate_up = pack(weights.pop("gate_up"), weights.get("gate_up_bias"))
        self._down = pack(weights.pop("down"), weights.get("down_bias"))
        self._activate = activation(description)

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden [T, H] to [T, H]."""
        return self._down(self._activate(self._gate_up(hidden)))
