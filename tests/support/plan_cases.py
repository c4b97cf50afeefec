"""Small decoder plans with random weights, and ragged batches for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire_kernels import ops
from quire_kernels.decoder import DecoderPlan, Expert, Layer, Model

VOCAB, POSITIONS, BLOCK = 61, 200, 8


@dataclass(frozen=True)
class Shape:
    """Of a model and of the blocks of its caches."""

    hidden: int = 48
    heads: int = 6
    kv_heads: int = 2
    head_size: int = 8
    inner: int = 40
    block: int = BLOCK
    experts: int = 0
    chosen: int = 2


def model(format: str = "f32", shape: Shape = Shape(), seed: int = 3, **changes: Any) -> Model:
    """Two layers of grouped-query attention with biases, the second with a window; an MLP in each, or experts."""
    generator = torch.Generator().manual_seed(seed)
    hidden, heads, kv_heads, head_size, inner = shape.hidden, shape.heads, shape.kv_heads, shape.head_size, shape.inner
    angles = torch.outer(torch.arange(float(POSITIONS)), 0.5 ** torch.arange(4.0))
    wide = (heads + 2 * kv_heads) * head_size

    def randn(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    def norm() -> Tensor:
        return torch.rand(hidden, generator=generator) + 0.5

    def matrix(rows: int, cols: int) -> Any:
        return ops.pack_weight(randn(rows, cols) / cols**0.5, format)

    def mlp() -> dict[str, Any]:
        return {"gate_up": matrix(2 * inner, hidden), "down": matrix(hidden, inner)}

    def half() -> dict[str, Any]:
        if not shape.experts:
            return mlp()
        router = ops.pack_weight(randn(shape.experts, hidden), "f32")
        return {"router": router, "experts": [Expert(**mlp()) for _ in range(shape.experts)]}

    layers = [
        Layer(
            qkv=matrix(wide, hidden),
            o=matrix(hidden, heads * head_size),
            **half(),
            qkv_bias=randn(wide),
            attn_norm=norm(),
            mlp_norm=norm(),
            cos=angles.cos(),
            sin=angles.sin(),
            window=window,
        )
        for window in (0, 11)
    ]
    embed = matrix(VOCAB, hidden)
    settings: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "vocab_size": VOCAB,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_size": head_size,
        "norm_eps": 1e-5,
        "attention_scale": head_size**-0.5,
        "layers": layers,
        "embed": embed,
        "head": embed,
        "norm": norm(),
        "logit_softcap": 5.0,
        "experts_per_token": shape.chosen if shape.experts else 0,
        **changes,
    }
    return Model(**settings)


@dataclass
class Pool:
    """Caches, and the blocks of each sequence; slots that nobody wrote are NaN."""

    keys: list[Tensor]
    values: list[Tensor]
    tables: Tensor
    block: int

    @classmethod
    def make(cls, sequences: int, dtype: torch.dtype = torch.float32, shape: Shape = Shape()) -> Pool:
        columns = -(-POSITIONS // shape.block)
        size = (sequences * columns, shape.block, shape.kv_heads, shape.head_size)
        caches = [[torch.full(size, float("nan"), dtype=dtype) for _ in range(2)] for _ in range(2)]
        order = torch.randperm(size[0], generator=torch.Generator().manual_seed(1))
        return cls(caches[0], caches[1], order.int().view(sequences, columns), shape.block)

    def arguments(self, tokens: Sequence[Sequence[int]], spans: Sequence[range], rows: Sequence[int]) -> dict[str, Any]:
        """Arguments of `DecoderPlan.forward` for a part of each sequence; empty spans are left out, and columns of the block
        table that no sequence needs."""
        active = [index for index, span in enumerate(spans) if span]
        positions = torch.tensor([p for index in active for p in spans[index]], dtype=torch.int64)
        columns = max((-(-spans[index].stop // self.block) for index in active), default=0)
        owner = torch.tensor([index for index in active for _ in spans[index]], dtype=torch.int64)
        return {
            "token_ids": torch.tensor([tokens[index][p] for index in active for p in spans[index]], dtype=torch.int64),
            "positions": positions,
            "slot_mapping": self.tables[owner, positions // self.block].long() * self.block + positions % self.block,
            "block_tables": self.tables[active, :columns].clone(),
            "query_start": torch.tensor([0, *(len(spans[i]) for i in active)]).cumsum(0).int(),
            "context_lens": torch.tensor([spans[i].stop for i in active], dtype=torch.int32),
            "logit_rows": torch.tensor(rows, dtype=torch.int64),
            "keys": self.keys,
            "values": self.values,
        }


def run(
    plan: DecoderPlan,
    tokens: Sequence[Sequence[int]],
    cuts: Sequence[Sequence[int]],
    dtype: torch.dtype = torch.float32,
    shape: Shape = Shape(),
) -> list[Tensor]:
    """Hidden states [T, H] of each sequence, computed side by side in steps that end at the cuts of each sequence."""
    pool = Pool.make(len(tokens), dtype, shape)
    done, results = [0] * len(tokens), [torch.empty(0, plan.hidden_size) for _ in tokens]
    for step in range(max(map(len, cuts))):
        spans = [range(at, each[step] if step < len(each) else at) for at, each in zip(done, cuts, strict=True)]
        count = sum(map(len, spans))
        hidden = plan.forward(**pool.arguments(tokens, spans, range(count)))
        for index, part in enumerate(hidden.split([len(span) for span in spans])):
            results[index] = torch.cat([results[index], part])
        done = [span.stop for span in spans]
    return results
