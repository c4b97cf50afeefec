"""The CPU executor: a description and packed weights as one C++ plan, a call a step (`quire_kernels.decoder`).

What it computes is what `decoder.Decoder` computes, the torch modules that stay the reference. Weights are read and packed one
matrix at a time, or mapped from what an earlier start kept (`packed_cache`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from quire.models import calibration as calibrating
from quire.models.calibration import Calibration
from quire.models.checkpoint import Checkpoint, GGUFCheckpoint
from quire.models.description import STACKED, DecoderDescription, Rope
from quire.models.executor import Batch, Footprint, KVPool
from quire.models.packed_cache import PackedCache
from quire.models.packed_key import key_of
from quire.models.packing import ROUTER, Reader, name_of, stacked_in
from quire.models.precision import Precision, of_plan
from quire.models.rope import Tables, make_tables
from quire_kernels import decoder as kernels
from quire_kernels.ops import PackedWeight

_CPU = torch.device("cpu")
_HUGE_PAGE = 2 << 20


def unsupported(description: DecoderDescription) -> str:
    """Why this model cannot be a plan here; empty where it can."""
    return kernels.unavailable()


class PlanBuilder:
    """See `loader.Builder`."""

    def __init__(self, description: DecoderDescription, checkpoint: Checkpoint) -> None:
        self._description = description
        self._checkpoint = checkpoint

    def precision(self, dtype: str = "auto", quantization: str = "auto") -> Precision:
        d, blocks = self._description, isinstance(self._checkpoint, GGUFCheckpoint)
        return of_plan(d.checkpoint_dtype, d.quantization, blocks=blocks, dtype=dtype, quantization=quantization)

    def footprint(self, precision: Precision) -> Footprint:
        """The work space of a step is that of kernels/csrc/decoder/workspace.cpp. Weights that are mapped count as if they were packed: each
        step reads all of them, and what is kept may turn out not to be of use."""
        d = self._description
        reader = Reader(self._checkpoint, precision, d)
        slots = d.experts_per_token if d.num_experts else 1  # rows of the MLP for each token
        weights = sum(4 * shape[0] for shape in d.parameters().values() if len(shape) == 1)
        peak = records = 0
        for matrix in reader.matrices():
            size = matrix.num_bytes
            weights += size if size < _HUGE_PAGE else -(-size // _HUGE_PAGE) * _HUGE_PAGE
            peak = max(peak, weights + reader.reading_bytes(matrix))
            records = max(records, (slots if matrix.stored.startswith("experts.") else 1) * matrix.record_bytes)
        if calibrating.applies(d, precision):
            peak = max(peak, weights + calibrating.reading_bytes(d, self._checkpoint))
        inner = slots * d.intermediate_size
        wide = max(d.q_size + 2 * d.kv_size, 2 * inner, d.num_experts)
        rows = 3 * d.hidden_size + wide + max(d.q_size, inner)
        routing = slots * (d.hidden_size + 4) if d.num_experts else 0
        beside = kernels.step_bytes(d.num_heads, d.num_kv_heads, d.head_size, d.num_experts, d.max_model_len)
        return Footprint(weights, 4 * (rows + routing) + records, 4, max(peak - weights, 0), beside)

    def load(
        self,
        precision: Precision,
        num_positions: int,
        calibration: Callable[[], Sequence[int]] = tuple,
        cache: PackedCache | None = None,
    ) -> CPUDecoder:
        return CPUDecoder(self._description, self._checkpoint, precision, num_positions, calibration, cache)


class CPUDecoder:
    """See `executor.Executor`. Hidden states and logits are float32, whatever the weights."""

    name = "plan"
    device = _CPU
    dtype = torch.float32
    batch_invariant = True
    small_chunk = 64  # the packed products take the same time a row from some 16 rows on

    def __init__(
        self,
        description: DecoderDescription,
        checkpoint: Checkpoint,
        precision: Precision,
        num_positions: int,
        calibration: Callable[[], Sequence[int]] = tuple,
        cache: PackedCache | None = None,
    ) -> None:
        """See `loader.Builder.load`."""
        d = description
        reader = Reader(checkpoint, precision, d)
        tables: dict[Rope, Tables] = {rope: make_tables(rope, num_positions, _CPU) for rope in d.ropes()}
        packed = _weights(d, checkpoint, reader, precision, calibration, cache)
        self._plan = kernels.DecoderPlan(
            kernels.Model(
                hidden_size=d.hidden_size,
                intermediate_size=d.intermediate_size,
                vocab_size=d.vocab_size,
                num_heads=d.num_heads,
                num_kv_heads=d.num_kv_heads,
                head_size=d.head_size,
                norm_eps=d.norm_eps,
                norm_offset=d.norm_offset,
                attention_scale=d.attention_scale,
                attention_softcap=d.attention_softcap,
                logit_softcap=d.logit_softcap,
                embedding_scale=torch.tensor(d.embedding_scale, dtype=precision.rounded_to).item(),
                qk_norm=d.qk_norm,
                activation=d.activation,
                experts_per_token=d.experts_per_token if d.num_experts else 0,
                normalise_experts=d.normalise_experts,
                layers=[_layer(d, layer, reader, tables, packed) for layer in range(d.num_layers)],
                embed=packed["embed"],
                head=packed["embed" if d.tie_embeddings else "head"],
                norm=reader.vector("norm"),
            )
        )

    def forward(self, batch: Batch, kv: KVPool) -> Tensor:
        """Hidden states [R, H] of the rows asked for, ready for `logits`; writes the batch's keys and values."""
        return self._plan.forward(
            batch.token_ids,
            batch.positions,
            batch.slot_mapping,
            batch.block_tables,
            batch.query_start,
            batch.context_lens,
            batch.logit_rows,
            kv.keys,
            kv.values,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, vocab] of hidden states [R, H]."""
        return self._plan.logits(hidden)


def _weights(
    d: DecoderDescription,
    checkpoint: Checkpoint,
    reader: Reader,
    precision: Precision,
    calibration: Callable[[], Sequence[int]],
    cache: PackedCache | None,
) -> Mapping[str, PackedWeight]:
    """All packed matrices by name: those that the cache has, or packed, and left to the cache for the next start."""
    tokens = calibration() if calibrating.applies(d, precision) else ()
    matrices = reader.matrices()
    entry = None
    if cache is not None and cache.is_for(precision, sum(matrix.num_bytes for matrix in matrices)):
        entry = cache.entry(lambda: key_of(checkpoint, d, precision, matrices, tokens), matrices)
    if entry is not None and (mapped := entry.load()) is not None:
        return mapped
    watched = Calibration(d, checkpoint, tokens) if tokens else None
    packed = {matrix.name: weight for matrix, weight in reader.pack(watched)}
    if entry is not None:
        entry.keep(packed)
    return packed


def _layer(
    d: DecoderDescription,
    layer: int,
    reader: Reader,
    tables: Mapping[Rope, Tables],
    packed: Mapping[str, PackedWeight],
) -> kernels.Layer:
    held = d.layer_parameters()

    def matrix(stored: str) -> PackedWeight:
        return packed[name_of(layer, stored)]

    def vector(stored: str) -> Tensor | None:
        return reader.vector(*stacked_in(layer, stored)) if STACKED.get(stored, (stored,))[0] in held else None

    rope = d.rope_of(layer)
    cos, sin = (None, None) if rope is None else tables[rope]
    return kernels.Layer(
        qkv=matrix("qkv"),
        o=matrix("o"),
        gate_up=None if d.num_experts else matrix("gate_up"),
        down=None if d.num_experts else matrix("down"),
        router=matrix(ROUTER) if d.num_experts else None,
        experts=[
            kernels.Expert(matrix(f"experts.{expert}.gate_up"), matrix(f"experts.{expert}.down"))
            for expert in range(d.num_experts)
        ],
        qkv_bias=vector("qkv_bias"),
        o_bias=vector("o_bias"),
        gate_up_bias=vector("gate_up_bias"),
        down_bias=vector("down_bias"),
        attn_norm=vector("attn_norm"),
        attn_out_norm=vector("attn_out_norm"),
        mlp_norm=vector("mlp_norm"),
        mlp_out_norm=vector("mlp_out_norm"),
        q_norm=vector("q_norm"),
        k_norm=vector("k_norm"),
        cos=cos,
        sin=sin,
        window=d.window_of(layer),
    )
