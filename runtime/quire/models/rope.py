"""Cosine and sine tables of rotary positions, float32, made once per model."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.models.description import Rope

Tables = tuple[Tensor, Tensor]
"""cos and sin [num_positions, dim/2]."""


def make_tables(rope: Rope, num_positions: int, device: torch.device) -> Tables:
    """cos and sin as `quire_kernels.ops.rope` reads them.

    Angles are float32 products as in transformers: with another rounding, greedy answers could part from its.
    """
    rope = rope.at(num_positions)
    # ints to float32 first, then one power: transformers' order of operations
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.int64).to(torch.float32) / rope.dim
    inverse = 1.0 / (rope.theta**exponents) / rope.scale
    if rope.factors:
        inverse = inverse / torch.tensor(rope.factors, dtype=torch.float32)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inverse)
    return (angles.cos() * rope.attention_factor).to(device), (angles.sin() * rope.attention_factor).to(device)
