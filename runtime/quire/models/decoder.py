"""The torch executor: a description's computation over a flattened batch, with the kernels of `quire_kernels.ops`.

Reference on the CPU and the executor of every other device. Weights that read the same input are one matrix (q, k and v;
gate and up). Nothing here knows requests or scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from quire.models import experts
from quire.models.attention import Attention
from quire.models.checkpoint import Checkpoint, fill
from quire.models.description import STACKED, DecoderDescription, Rope
from quire.models.executor import SMALL_CHUNK, Batch, Footprint, KVPool
from quire.models.experts import Experts
from quire.models.linear import pack
from quire.models.mlp import GatedMLP
from quire.models.norm import Norm, make_norm
from quire.models.precision import Precision, of_modules
from quire.models.rope import Tables, make_tables

if TYPE_CHECKING:
    from quire.models.packed_cache import PackedCache


class ModulesBuilder:
    """See `loader.Builder`. reason: why torch modules compute, and not the CPU plan."""

    def __init__(
        self, description: DecoderDescription, checkpoint: Checkpoint, device: torch.device, reason: str
    ) -> None:
        self._description = description
        self._checkpoint = checkpoint
        self._device = device
        self._reason = reason

    def precision(self, dtype: str = "auto", quantization: str = "auto") -> Precision:
        held = self._description.checkpoint_dtype
        return of_modules(held, self._device, self._reason, dtype=dtype, quantization=quantization)

    def footprint(self, precision: Precision) -> Footprint:
        found = footprint(self._description, precision.dtype)
        if self._device.type != "cpu":
            return replace(found, loading=0)  # files are read into the host's memory, and nothing is packed
        parameters = self._description.parameters()
        reading = max(self._checkpoint.reading_bytes(name, precision.dtype) for name in parameters)
        return replace(found, loading=max(found.loading, reading))

    def load(
        self,
        precision: Precision,
        num_positions: int,
        calibration: Callable[[], Sequence[int]] = tuple,
        cache: PackedCache | None = None,
    ) -> Decoder:
        modules = Decoder(self._description, precision.dtype, self._device)
        fill(self._checkpoint, modules.targets())
        modules.finish(num_positions)
        return modules


def footprint(d: DecoderDescription, dtype: torch.dtype) -> Footprint:
    """What a `Decoder` holds. A tied head packed for the CPU is a second copy of the embedding, and a packed matrix one of the
    plain one until that is dropped; what reading the files takes is not counted."""
    weights = d.num_parameters() + (d.vocab_size * d.hidden_size if d.tie_embeddings else 0)
    activations = 3 * d.hidden_size + 2 * d.q_size + 2 * d.kv_size
    if d.num_experts:
        each = 3 * d.intermediate_size + 3 * d.hidden_size  # its row sorted in, its answer sorted and back
        activations += 2 * d.num_experts + d.experts_per_token * each
    else:
        activations += 3 * d.intermediate_size
    rows = [d.q_size + 2 * d.kv_size, 0 if d.tie_embeddings else d.vocab_size]
    rows.append(0 if d.num_experts else 2 * d.intermediate_size)
    packed = max(rows) * d.hidden_size
    return Footprint(weights * dtype.itemsize, activations * dtype.itemsize, dtype.itemsize, packed * dtype.itemsize)


@dataclass(frozen=True, slots=True)
class _Layer:
    attn_norm: Norm
    attention: Attention
    attn_out_norm: Norm
    mlp_norm: Norm
    mlp: GatedMLP | Experts
    mlp_out_norm: Norm


class Decoder:
    """A model's weights and forward pass.

    Use: create, fill the tensors of `targets()` (a loader does), call `finish()`, then `forward` at will.
    """

    name = "torch"
    batch_invariant = False  # products of libraries sum up in another order for other numbers of rows
    small_chunk = SMALL_CHUNK

    def __init__(self, description: DecoderDescription, dtype: torch.dtype, device: torch.device) -> None:
        self.description = description
        self.dtype = dtype
        self.device = device
        self._targets: dict[str, Tensor] = {}
        self._stored: list[dict[str, Tensor]] = []
        self._layers: list[_Layer] = []
        self._allocate()

    def targets(self) -> dict[str, Tensor]:
        """Parameter name to the tensor to fill; valid until `finish`."""
        return self._targets

    def finish(self, num_positions: int) -> None:
        """Put the filled weights in their fastest layout and make the position tables."""
        d = self.description
        tables: dict[Rope | None, Tables | None] = {None: None}
        tables |= {rope: make_tables(rope, num_positions, self.device) for rope in d.ropes()}
        embed = self._targets["embed"]
        self._embed = embed
        self._norm = make_norm(d, self._targets["norm"])
        self._head = pack(self._targets.get("head", embed))
        self._scale = None if d.embedding_scale == 1.0 else embed.new_tensor(d.embedding_scale)
        self._targets = {}
        for layer, weights in enumerate(self._stored):
            self._layers.append(
                _Layer(
                    attn_norm=make_norm(d, weights.get("attn_norm")),
                    attention=Attention(d, layer, weights, tables[d.rope_of(layer)]),
                    attn_out_norm=make_norm(d, weights.get("attn_out_norm")),
                    mlp_norm=make_norm(d, weights.get("mlp_norm")),
                    mlp=Experts(d, weights) if d.num_experts else GatedMLP(d, weights),
                    mlp_out_norm=make_norm(d, weights.get("mlp_out_norm")),
                )
            )
        self._stored = []

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: KVPool) -> Tensor:
        """Hidden states [R, H] of the rows asked for, ready for `logits`; writes the batch's keys and values."""
        layers = self._layers
        residual = functional.embedding(batch.token_ids, self._embed)
        if self._scale is not None:
            residual *= self._scale
        hidden = layers[0].attn_norm(residual)
        for layer, following, keys, values in zip(layers, [*layers[1:], None], kv.keys, kv.values, strict=True):
            hidden = layer.attention(hidden, batch, keys, values)
            hidden = layer.attn_out_norm(hidden, out=hidden)
            hidden = layer.mlp(layer.mlp_norm.add(hidden, residual))
            hidden = layer.mlp_out_norm(hidden, out=hidden)
            if following is not None:
                hidden = following.attn_norm.add(hidden, residual)
        rows = batch.logit_rows
        return self._norm.add(hidden.index_select(0, rows), residual.index_select(0, rows))

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, vocab] of hidden states [R, H]."""
        logits, cap = self._head(hidden), self.description.logit_softcap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits

    def _allocate(self) -> None:
        d = self.description
        for name, shape in d.parameters().items():
            if not name.startswith("layers."):
                self._targets[name] = self._empty(*shape)
        for layer in range(d.num_layers):
            shapes = d.layer_parameters()
            weights: dict[str, Tensor] = {}
            for stored, parts in STACKED.items():
                if parts[0] not in shapes:
                    continue
                rows = [shapes[part][0] for part in parts]
                weights[stored] = self._empty(sum(rows), *shapes[parts[0]][1:])
                for part, view in zip(parts, torch.split(weights[stored], rows), strict=True):
                    self._targets[f"layers.{layer}.{part}"] = view
                    del shapes[part]
            if d.num_experts:
                stored_experts, views = experts.allocate(d, self._empty)
                weights |= stored_experts
                for name, view in views.items():
                    self._targets[f"layers.{layer}.{name}"] = view
                    del shapes[name]
            for name, shape in shapes.items():
                weights[name] = self._targets[f"layers.{layer}.{name}"] = self._empty(*shape)
            self._stored.append(weights)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)
