"""The torch executor: a description's computation over a flattened batch, with the kernels of `quire_kernels.ops`.

Reference on the CPU and the executor of every other device. Weights that read the same input are one matrix (q, k and v;
gate and up). Keys and values of the whole batch are written before attention reads, layer by layer: sequences of one
step may therefore share blocks that are filled in that very step. Nothing here knows requests or scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from quire.models import rope
from quire.models.description import DecoderDescription
from quire.models.executor import Batch, KVPool
from quire.models.linear import Linear, pack
from quire_kernels import ops


@dataclass(frozen=True, slots=True)
class _Layer:
    attn_norm: Tensor
    qkv: Linear
    o: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class Decoder:
    """A model's weights and forward pass.

    Use: create, fill the tensors of `targets()` (a loader does), call `finish()`, then `forward` at will.
    """

    def __init__(self, description: DecoderDescription, dtype: torch.dtype, device: torch.device) -> None:
        self.description = description
        self.dtype = dtype
        self.device = device
        self._targets: dict[str, Tensor] = {}
        self._fused: list[dict[str, Tensor]] = []
        self._layers: list[_Layer] = []
        self._allocate()

    def targets(self) -> dict[str, Tensor]:
        """Parameter name to the tensor to fill; valid until `finish`."""
        return self._targets

    def finish(self, num_positions: int) -> None:
        """Put the filled weights in their fastest layout and make the position tables."""
        for weights in self._fused:
            self._layers.append(
                _Layer(
                    attn_norm=weights["attn_norm"],
                    qkv=pack(weights.pop("qkv"), weights.get("qkv_bias")),
                    o=pack(weights.pop("o"), weights.get("o_bias")),
                    mlp_norm=weights["mlp_norm"],
                    gate_up=pack(weights.pop("gate_up"), weights.get("gate_up_bias")),
                    down=pack(weights.pop("down"), weights.get("down_bias")),
                )
            )
        self._embed = self._targets["embed"]
        self._norm = self._targets["norm"]
        self._head = pack(self._targets.get("head", self._embed))
        self._cos, self._sin = rope.tables(self.description.rope, num_positions, self.device)
        self._targets = {}
        self._fused = []

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: KVPool) -> Tensor:
        """Hidden states [R, H] of the rows asked for, ready for `logits`; writes the batch's keys and values."""
        d = self.description
        eps, q_size, kv_size = d.norm_eps, d.q_size, d.kv_size
        num_tokens = batch.token_ids.shape[0]
        residual = functional.embedding(batch.token_ids, self._embed)
        hidden = ops.rms_norm(residual, self._layers[0].attn_norm, eps)
        attended = torch.empty(num_tokens, d.num_heads, d.head_size, dtype=self.dtype, device=self.device)
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(hidden)
            query = qkv[:, :q_size].view(num_tokens, d.num_heads, d.head_size)
            key = qkv[:, q_size : q_size + kv_size].view(num_tokens, d.num_kv_heads, d.head_size)
            value = qkv[:, q_size + kv_size :].view(num_tokens, d.num_kv_heads, d.head_size)
            ops.rope(query, key, batch.positions, self._cos, self._sin)
            keys, values = kv.keys[index], kv.values[index]
            ops.write_kv(key, value, keys, values, batch.slot_mapping)
            ops.paged_attention(
                query,
                keys,
                values,
                batch.block_tables,
                batch.query_start,
                batch.context_lens,
                d.attention_scale,
                out=attended,
            )
            hidden = layer.o(attended.view(num_tokens, q_size))
            hidden = ops.fused_add_rms_norm(hidden, residual, layer.mlp_norm, eps, out=hidden)
            hidden = layer.down(ops.silu_mul(layer.gate_up(hidden)))
            if index != last:
                hidden = ops.fused_add_rms_norm(hidden, residual, self._layers[index + 1].attn_norm, eps, out=hidden)
        rows = batch.logit_rows
        wanted, residual = hidden.index_select(0, rows), residual.index_select(0, rows)
        return ops.fused_add_rms_norm(wanted, residual, self._norm, eps, out=wanted)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, vocab] of hidden states [R, H]."""
        return self._head(hidden)

    def _allocate(self) -> None:
        d = self.description

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=self.dtype, device=self.device)

        for name, shape in d.parameters().items():
            if not name.startswith("layers."):
                self._targets[name] = empty(*shape)
        for index in range(d.num_layers):
            shapes = d.layer_parameters()
            weights: dict[str, Tensor] = {}
            for fused, parts in _FUSED.items():
                if parts[0] not in shapes:
                    continue
                rows = [shapes[part][0] for part in parts]
                weights[fused] = empty(sum(rows), *shapes[parts[0]][1:])
                for part, view in zip(parts, torch.split(weights[fused], rows), strict=True):
                    self._targets[f"layers.{index}.{part}"] = view
            self._fused.append(weights)


_FUSED: dict[str, tuple[str, ...]] = {
    "attn_norm": ("attn_norm",),
    "qkv": ("q", "k", "v"),
    "qkv_bias": ("q_bias", "k_bias", "v_bias"),
    "o": ("o",),
    "o_bias": ("o_bias",),
    "mlp_norm": ("mlp_norm",),
    "gate_up": ("gate", "up"),
    "gate_up_bias": ("gate_bias", "up_bias"),
    "down": ("down",),
    "down_bias": ("down_bias",),
}
"""Stored matrix to the parameters whose rows it stacks."""
