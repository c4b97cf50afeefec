"""The CPU executor: a description and packed weights as one C++ plan, a call a step (`quire_kernels.decoder`).

What it computes is what `decoder.Decoder` computes, the torch modules that stay the reference; weights are read and packed one
matrix at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quire.errors import ModelError
from quire.models import calibration as calibrating
from quire.models.calibration import Calibration
from quire.models.checkpoint import Checkpoint, GGUFCheckpoint, fill
from quire.models.decoder import STACKED
from quire.models.description import DecoderDescription, Rope
from quire.models.executor import Batch, Footprint, KVPool
from quire.models.precision import Precision, of_plan
from quire.models.rope import Tables, make_tables
from quire_kernels import decoder as kernels
from quire_kernels import ops
from quire_kernels.ops import GgmlType, PackedWeight

FORMATS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_CPU = torch.device("cpu")
_HUGE_PAGE = 2 << 20
WIDE = ("embed", "head", "v", "down")
"""What `int4` gives 8 bits (docs/adr/010-four-bits.md)."""


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
        """The work space of a step is that of kernels/csrc/decoder/workspace.cpp."""
        d = self._description
        reader, shapes = _Reader(self._checkpoint, precision, d), d.parameters()
        small = [4 * shape[0] for shape in shapes.values() if len(shape) == 1]
        small += [ops.packed_bytes("f32", *shapes[name]) for name in _routers(d)]
        slots = d.experts_per_token if d.num_experts else 1  # rows of the MLP for each token
        weights, peak, records = sum(small), 0, 0
        for matrix in _matrices(d):
            size = reader.num_bytes(*matrix)
            weights += size if size < _HUGE_PAGE else -(-size // _HUGE_PAGE) * _HUGE_PAGE
            peak = max(peak, weights + reader.reading_bytes(*matrix))
            records = max(records, (slots if ".experts." in matrix[0] else 1) * reader.record_bytes(*matrix))
        if calibrating.applies(d, precision):
            peak = max(peak, weights + calibrating.reading_bytes(d, self._checkpoint))
        inner = slots * d.intermediate_size
        wide = max(d.q_size + 2 * d.kv_size, 2 * inner, d.num_experts)
        rows = 3 * d.hidden_size + wide + max(d.q_size, inner)
        routing = slots * (d.hidden_size + 4) if d.num_experts else 0
        beside = kernels.step_bytes(d.num_heads, d.num_kv_heads, d.head_size, d.num_experts, d.max_model_len)
        return Footprint(weights, 4 * (rows + routing) + records, 4, max(peak - weights, 0), beside)

    def load(
        self, precision: Precision, num_positions: int, calibration: Callable[[], Sequence[int]] = tuple
    ) -> CPUDecoder:
        return CPUDecoder(self._description, self._checkpoint, precision, num_positions, calibration)


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
    ) -> None:
        """See `loader.Builder.load`."""
        d = description
        reader = _Reader(checkpoint, precision, d)
        tables: dict[Rope, Tables] = {rope: make_tables(rope, num_positions, _CPU) for rope in d.ropes()}
        embed = reader.matrix("embed")
        tokens = calibration() if calibrating.applies(d, precision) else ()
        watched = Calibration(d, checkpoint, tokens) if tokens else None
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
                layers=[_layer(d, layer, reader, tables, watched) for layer in range(d.num_layers)],
                embed=embed,
                head=embed if d.tie_embeddings else reader.matrix("head"),
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


class _Reader:
    """Parameters in the form in which the plan takes them."""

    def __init__(self, checkpoint: Checkpoint, precision: Precision, description: DecoderDescription) -> None:
        self._checkpoint = checkpoint
        self._shapes = description.parameters()
        self._precision = precision
        self._stored = (
            checkpoint if isinstance(checkpoint, GGUFCheckpoint) and precision.quantization == "stored" else None
        )

    def matrix(self, *parameters: str, importance: Tensor | None = None) -> PackedWeight:
        """Matrices that read the same input, as one. importance: see `ops.pack_weights`."""
        types = self._types(parameters)
        if self._stored is not None and types:
            rows = [self._stored.blocks(parameter) for parameter in parameters]
            cols = rows[0].shape[1] // ops.GGML_BLOCKS[types[0]][1] * ops.GGML_BLOCKS[types[0]][0]
            return ops.pack_gguf(
                [(part.flatten(), kind, part.shape[0]) for part, kind in zip(rows, types, strict=True)], cols
            )
        formats = self._formats(parameters)
        if formats[0] not in FORMATS.values():
            return self._quantised(parameters, formats, importance)
        return ops.pack_weight(self._read(parameters, self._precision.rounded_to), formats[0])

    def floats(self, parameter: str) -> PackedWeight:
        """A matrix in float32, whatever the others are: a router, whose answers decide."""
        return ops.pack_weight(self._read((parameter,), self._precision.rounded_to).float(), "f32")

    def num_bytes(self, *parameters: str) -> int:
        """Of such a matrix once it is packed."""
        if types := self._types(parameters):
            return sum(
                ops.packed_bytes(kind, *self._shapes[name]) for kind, name in zip(types, parameters, strict=True)
            )
        formats = self._formats(parameters)
        if len(set(formats)) == 1:
            return ops.packed_bytes(formats[0], *self._stacked(parameters))
        return sum(ops.packed_bytes(kind, *self._shapes[name]) for kind, name in zip(formats, parameters, strict=True))

    def record_bytes(self, *parameters: str) -> int:
        """Of each row that is multiplied with such a matrix, beside the row."""
        types = self._types(parameters)
        return kernels.record_bytes(types[0] if types else self._formats(parameters)[0], self._stacked(parameters)[1])

    def reading_bytes(self, *parameters: str) -> int:
        """Memory that is held beside such a matrix while it is packed."""
        if self._stored is not None and self._types(parameters):
            return sum(self._stored.blocks_bytes(name) for name in parameters)
        dtype = self._dtype_read(parameters)
        part = max(self._checkpoint.reading_bytes(name, dtype) for name in parameters)
        whole = math.prod(self._stacked(parameters)) * dtype.itemsize
        return part + (whole if len(parameters) > 1 else 0)

    def vector(self, *parameters: str) -> Tensor:
        """Norm weights and biases, [n] float32, rounded to the model's type as in the torch modules."""
        return self._read(parameters, self._precision.rounded_to).float()

    def _formats(self, parameters: Sequence[str]) -> list[str]:
        """Of matrices that are not computed as they are stored."""
        quantization = self._precision.quantization
        if quantization == "int8":
            return ["q8"] * len(parameters)
        if quantization == "int4":
            return ["q8" if name.rpartition(".")[2] in WIDE else "q4" for name in parameters]
        return [FORMATS[self._precision.rounded_to]] * len(parameters)

    def _quantised(self, parameters: Sequence[str], formats: list[str], importance: Tensor | None) -> PackedWeight:
        """Quantised from the numbers of the file, not from what the model's type makes of them."""
        values = self._read(parameters, self._dtype_read(parameters))
        parts = [(values, formats[0])]
        if len(set(formats)) > 1:
            rows = torch.split(values, [self._shapes[name][0] for name in parameters])
            parts = list(zip(rows, formats, strict=True))
        try:
            return ops.pack_weights(parts, importance)
        except ops.ArgumentError as exc:
            raise ModelError(f"{parameters[0]} cannot be quantised: {exc}; leave out --quantization") from exc

    def _dtype_read(self, parameters: Sequence[str]) -> torch.dtype:
        """In which type a matrix is read that is packed from plain numbers."""
        if self._formats(parameters)[0] in FORMATS.values():
            return self._precision.rounded_to
        held = {self._checkpoint.dtype_of(name) for name in parameters}
        return held.pop() if len(held) == 1 else torch.float32

    def _read(self, parameters: Sequence[str], dtype: torch.dtype) -> Tensor:
        """Stacked, in that type."""
        if len(parameters) == 1:
            values = self._checkpoint.read(parameters[0], dtype)
            self._checkpoint.check_finite(parameters[0], values)
            return values
        stack = torch.empty(self._stacked(parameters), dtype=dtype)
        rows = torch.split(stack, [self._shapes[parameter][0] for parameter in parameters])
        fill(self._checkpoint, dict(zip(parameters, rows, strict=True)))
        return stack

    def _stacked(self, parameters: Sequence[str]) -> tuple[int, ...]:
        """Shape of their rows in one matrix, or one vector."""
        return (sum(self._shapes[name][0] for name in parameters), *self._shapes[parameters[0]][1:])

    def _types(self, parameters: Sequence[str]) -> list[GgmlType]:
        """The types of matrices that are computed as they are stored; none where they are not, or not together."""
        if self._stored is None:
            return []
        types = [self._stored.ggml_type(parameter) for parameter in parameters]
        plain = [kind for kind in types if kind in (GgmlType.F32, GgmlType.F16, GgmlType.BF16)]
        return types if not plain or len(set(types)) == 1 else []


def _names(layer: int, stored: str) -> list[str]:
    """The parameters that are stacked in what a layer stores, or one of its experts (`experts.<e>.<name>`)."""
    expert, dot, name = stored.rpartition(".")
    return [f"layers.{layer}.{expert}{dot}{part}" for part in STACKED.get(name, (name,))]


def _matrices(d: DecoderDescription) -> list[list[str]]:
    """Each packed matrix as the parameters that are stacked in it, in the order in which they are read; without routers."""
    mlps = [f"experts.{expert}." for expert in range(d.num_experts)] or [""]
    stored = ["qkv", "o", *(mlp + name for mlp in mlps for name in ("gate_up", "down"))]
    layers = [_names(layer, name) for layer in range(d.num_layers) for name in stored]
    return [["embed"], *layers] + ([] if d.tie_embeddings else [["head"]])


def _routers(d: DecoderDescription) -> list[str]:
    return [f"layers.{layer}.router" for layer in range(d.num_layers)] if d.num_experts else []


def _layer(
    d: DecoderDescription, layer: int, reader: _Reader, tables: dict[Rope, Tables], watched: Calibration | None
) -> kernels.Layer:
    held = d.layer_parameters()
    importance = {} if watched is None else watched.layer(layer)

    def matrix(stored: str) -> PackedWeight:
        return reader.matrix(*_names(layer, stored), importance=importance.get(stored))

    def vector(stored: str) -> Tensor | None:
        return reader.vector(*_names(layer, stored)) if STACKED.get(stored, (stored,))[0] in held else None

    rope = d.rope_of(layer)
    cos, sin = (None, None) if rope is None else tables[rope]
    return kernels.Layer(
        qkv=matrix("qkv"),
        o=matrix("o"),
        gate_up=None if d.num_experts else matrix("gate_up"),
        down=None if d.num_experts else matrix("down"),
        router=reader.floats(f"layers.{layer}.router") if d.num_experts else None,
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
