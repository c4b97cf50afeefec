"""A decoder-only model on the CPU as one plan: built once from packed weights, then one C++ call for a forward pass.

Letters as in `quire_kernels.ops`, and L layers, R rows that are asked for, V tokens of the vocabulary. All arithmetic between
the products is float32, and so are the hidden states and logits; what a product makes of its input depends on the weight's format
(`ops.packed_linear`). The KV cache has any floating type. A sequence's results are the
same bit for bit whatever else is in the batch, however its prompt was chunked and with any number of threads, and a row of
numbers that are not finite spoils no other row. Threads are those of `ops.set_num_threads`; between calls they sleep.

There is no torch reference: tests compare with the runtime's torch modules, and those with transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire_kernels.dispatch import PackedWeight, select
from quire_kernels.formats import GgmlType, packed_format

__all__ = ["DecoderPlan", "Expert", "Layer", "Model", "record_bytes", "step_bytes", "unavailable"]


@dataclass(frozen=True, slots=True)
class Expert:
    """One MLP of several: gate_up [2I, H], down [H, I], packed; those of a layer read their input in one form."""

    gate_up: PackedWeight
    down: PackedWeight
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """A block: grouped-query attention and a gated MLP, or experts in its place. With E = (Hq + 2 Hkv) * D:

    qkv [E, H], o [H, Hq * D], gate_up [2I, H], down [H, I]  packed weights; *_bias [outputs] float32
    router                       [experts, H] packed as f32 or f16; there with `experts`, in place of gate_up, down and their biases
    attn_norm, mlp_norm          [H] float32, of the input of each half; None: the half reads the residual as it is
    attn_out_norm, mlp_out_norm  [H] float32, of what each half answers, before it is added to the residual
    q_norm, k_norm               [D] or [Hq * D] and [Hkv * D] float32, as `Model.qk_norm` says; None where that is none
    cos, sin                     [P, rotated / 2] float32, contiguous, see `ops.rope`; None: this layer rotates nothing
    window                       see `ops.paged_attention`
    """

    qkv: PackedWeight
    o: PackedWeight
    gate_up: PackedWeight | None = None
    down: PackedWeight | None = None
    router: PackedWeight | None = None
    experts: Sequence[Expert] = ()
    qkv_bias: Tensor | None = None
    o_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    attn_norm: Tensor | None = None
    attn_out_norm: Tensor | None = None
    mlp_norm: Tensor | None = None
    mlp_out_norm: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    cos: Tensor | None = None
    sin: Tensor | None = None
    window: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """Numbers and weights of a decoder.

    embed, head        [V, H]; may be one object (tied)
    norm               [H] float32
    norm_offset        added to all norm weights, see `ops.rms_norm`
    qk_norm            norm of queries and keys before the rotation: none, of each head, or of all heads as one vector (whole)
    activation         silu or gelu_tanh
    attention_softcap  see `ops.paged_attention`; logit_softcap: logits x become cap * tanh(x / cap); 0: they stay
    embedding_scale    factor of the token embeddings
    experts_per_token  of the layers' experts (as many in each): those with the largest softmax of the router; their answers are
                       added up with these shares, which normalise_experts makes sum up to 1. 0 where there are no experts
    """

    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    norm_eps: float
    attention_scale: float
    layers: Sequence[Layer]
    embed: PackedWeight
    head: PackedWeight
    norm: Tensor
    norm_offset: float = 0.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    qk_norm: str = "none"
    activation: str = "silu"
    experts_per_token: int = 0
    normalise_experts: bool = True


def unavailable() -> str:
    """Why there can be no plan in this process; empty where there can."""
    selection = select("cpu")
    if selection.kernels.NAME == "cpu":
        return ""
    return selection.reason or "QUIRE_KERNELS asks for the torch reference"


def record_bytes(kind: GgmlType | str, columns: int) -> int:
    """What a step keeps of each row that is multiplied with a weight of such a format or GGUF type and K = columns, beside the row:
    0 where the instruction set in use multiplies it as it is."""
    from quire_kernels import _cpu

    return _cpu.record_bytes(packed_format(kind), columns)


def step_bytes(num_heads: int, num_kv_heads: int, head_size: int, num_experts: int, longest: int) -> int:
    """The most that steps take whatever their tokens, on the threads that there are now and for contexts of up to `longest`
    tokens: each thread's scratch, partial results of attention, lists of experts."""
    from quire_kernels import _cpu

    return _cpu.step_bytes(num_heads, num_kv_heads, head_size, num_experts, longest)


class DecoderPlan:
    """See the module. The plan keeps the model's packed weights and tables alive; norms and biases are copied.

    Calls from several threads take turns. Raises ArgumentError where parts do not fit together.
    """

    def __init__(self, model: Model) -> None:
        from quire_kernels import _cpu  # only here: it may not be built

        self._plan = _cpu.DecoderPlan(model)
        self.hidden_size = model.hidden_size
        self.vocab_size = model.vocab_size

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        block_tables: Tensor,
        query_start: Tensor,
        context_lens: Tensor,
        logit_rows: Tensor,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
    ) -> Tensor:
        """Hidden states [R, H] float32 after the last norm; writes keys and values of all T tokens.

        token_ids, positions      [T] int64, 0 <= token < V, 0 <= position < P
        slot_mapping              [T] int64, see `ops.write_kv`
        block_tables, query_start, context_lens  see `ops.paged_attention`; query_start ends at T
        logit_rows                [R] int64, rows of the batch in any order, repeated or not; only these pass the last layer
        keys, values              L tensors [N, B, Hkv, D] of one floating type, contiguous in their last two dimensions

        Keys and values of the whole batch are written before attention reads them, layer by layer.
        """
        hidden = torch.empty(logit_rows.shape[0], self.hidden_size)
        self._plan.forward(
            token_ids,
            positions,
            slot_mapping,
            block_tables,
            query_start,
            context_lens,
            logit_rows,
            keys,
            values,
            hidden,
        )
        return hidden

    @property
    def workspace_bytes(self) -> int:
        """Of the memory that its steps work in: as much as the largest of them so far took."""
        return self._plan.workspace_bytes

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, V] float32 of hidden states [R, H] float32."""
        out = torch.empty(hidden.shape[0], self.vocab_size)
        self._plan.logits(hidden, out)
        return out
