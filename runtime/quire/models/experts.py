"""One layer's mixture of experts in place of its MLP.

Tokens are sorted by expert, and each expert multiplies its tokens at once: nothing loops over tokens, nothing is computed for
an expert that nobody chose, and no capacity drops a token.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from quire.models.description import DecoderDescription
from quire.models.mlp import activation


class Experts:
    """Sum of the chosen experts' gated MLPs, weighted by the router (arXiv:2101.03961; k of them: arXiv:2401.04088)."""

    def __init__(self, description: DecoderDescription, weights: dict[str, Tensor]) -> None:
        """weights: the layer's; `router` [E, H], `experts.gate_up` [E, 2I, H] and `experts.down` [E, H, I] are taken out."""
        self._router = weights.pop("router")
        self._gate_up = weights.pop("experts.gate_up")
        self._down = weights.pop("experts.down")
        self._chosen = description.experts_per_token
        self._normalise = description.normalise_experts
        self._activate = activation(description)

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden [T, H] to [T, H]."""
        shares, experts = self._route(hidden)
        order = experts.flatten().argsort(stable=True)
        ends = experts.flatten().bincount(minlength=self._router.shape[0]).cumsum(0).to(torch.int32)
        rows = hidden.index_select(0, order // self._chosen)
        rows = self._activate(_grouped(rows, self._gate_up, ends))
        rows = _grouped(rows, self._down, ends)
        answers = torch.empty_like(rows).index_copy_(0, order, rows).view(*experts.shape, -1)
        return torch.einsum("tk,tkh->th", shares, answers)

    def _route(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Shares and numbers [T, k] of each token's experts."""
        likely = functional.linear(hidden, self._router).softmax(dim=-1, dtype=torch.float32)
        shares, experts = likely.topk(self._chosen, dim=-1)
        if self._normalise:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        return shares.to(hidden.dtype), experts


def _grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """rows [S, in], sorted by group, to [S, out]; weights [E, out, in], ends [E] int32: where each group ends."""
    return functional.grouped_mm(rows, weights.transpose(1, 2), offs=ends)


def allocate(
    description: DecoderDescription, empty: Callable[..., Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A layer's stored weights as `Experts` takes them, and its parameters (`experts.<e>.<name>`) as views of them."""
    d, inner = description, description.intermediate_size
    gate_up = empty(d.num_experts, 2 * inner, d.hidden_size)
    down = empty(d.num_experts, d.hidden_size, inner)
    parts = {"gate": gate_up[:, :inner], "up": gate_up[:, inner:], "down": down}
    views = {f"experts.{e}.{name}": part[e] for e in range(d.num_experts) for name, part in parts.items()}
    return {"experts.gate_up": gate_up, "experts.down": down}, views
