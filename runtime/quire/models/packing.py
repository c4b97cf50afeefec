"""A model's matrices in packed form: which there are, what is stacked in each, and how it is packed from the files.

Read and packed one at a time, so that a load never needs the model twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.errors import ModelError
from quire.models.calibration import Calibration
from quire.models.checkpoint import Checkpoint, GGUFCheckpoint, fill
from quire.models.description import STACKED, DecoderDescription
from quire.models.precision import Precision
from quire_kernels import decoder as kernels
from quire_kernels import ops
from quire_kernels.ops import GgmlType, PackedWeight

FORMATS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
WIDE = ("embed", "head", "v", "down")
"""What `int4` gives 8 bits (docs/adr/010-four-bits.md)."""
ROUTER = "router"


@dataclass(frozen=True)
class Matrix:
    """A packed matrix: parameters that read the same input, one after the other.

    layer, stored  where it belongs, and how `description.STACKED` calls it there, experts with `experts.<e>.` before it; layer is None
                   for `embed` and `head`
    parts          of its rows in turn: what they are packed to (a format) or from (a type of GGUF), and how many they are
    cols           inputs
    """

    layer: int | None
    stored: str
    parameters: tuple[str, ...]
    parts: tuple[tuple[GgmlType | str, int], ...]
    cols: int

    @property
    def name(self) -> str:
        return name_of(self.layer, self.stored)

    @property
    def num_bytes(self) -> int:
        """Once it is packed."""
        return sum(ops.packed_bytes(kind, rows, self.cols) for kind, rows in self.parts)

    @property
    def record_bytes(self) -> int:
        """Of each row that is multiplied with it, beside the row."""
        return kernels.record_bytes(self.parts[0][0], self.cols)


def name_of(layer: int | None, stored: str) -> str:
    """What a packed matrix is called."""
    return stored if layer is None else f"layers.{layer}.{stored}"


def stacked_in(layer: int, stored: str) -> tuple[str, ...]:
    """The parameters that are stacked in what a layer stores, or one of its experts (`experts.<e>.<name>`)."""
    expert, dot, name = stored.rpartition(".")
    return tuple(f"layers.{layer}.{expert}{dot}{part}" for part in STACKED.get(name, (name,)))


class Reader:
    """Parameters in the form in which the CPU plan takes them."""

    def __init__(self, checkpoint: Checkpoint, precision: Precision, description: DecoderDescription) -> None:
        self._checkpoint = checkpoint
        self._description = description
        self._shapes = description.parameters()
        self._precision = precision
        self._stored = (
            checkpoint if isinstance(checkpoint, GGUFCheckpoint) and precision.quantization == "stored" else None
        )

    def matrices(self) -> list[Matrix]:
        """All that are packed, in the order in which they are read."""
        d = self._description
        mlps = [f"experts.{expert}." for expert in range(d.num_experts)] or [""]
        stored = ["qkv", "o", *([ROUTER] if d.num_experts else [])]
        stored += [mlp + name for mlp in mlps for name in ("gate_up", "down")]
        layers = [self._matrix(layer, name) for layer in range(d.num_layers) for name in stored]
        return [self._matrix(None, "embed"), *layers] + ([] if d.tie_embeddings else [self._matrix(None, "head")])

    def pack(self, watched: Calibration | None) -> Iterator[tuple[Matrix, PackedWeight]]:
        """All of them. watched: tells what matters to their products where they get 4 bits; None, and all inputs are alike."""
        at, importance = -1, dict[str, Tensor]()
        for matrix in self.matrices():
            if watched is not None and matrix.layer is not None and matrix.layer != at:
                at, importance = matrix.layer, watched.layer(matrix.layer)
            yield matrix, self._pack(matrix, None if matrix.layer is None else importance.get(matrix.stored))

    def reading_bytes(self, matrix: Matrix) -> int:
        """Memory that is held beside such a matrix while it is packed."""
        if self._stored is not None and self._types(matrix.parameters):
            return sum(self._stored.blocks_bytes(name) for name in matrix.parameters)
        router = matrix.stored == ROUTER
        dtype = self._precision.rounded_to if router else self._dtype_read(matrix.parameters)
        part = max(self._checkpoint.reading_bytes(name, dtype) for name in matrix.parameters)
        whole = math.prod(self._stacked(matrix.parameters)) * (4 if router else dtype.itemsize)
        return part + (whole if router or len(matrix.parameters) > 1 else 0)

    def vector(self, *parameters: str) -> Tensor:
        """Norm weights and biases, [n] float32, rounded to the model's type as in the torch modules."""
        return self._read(parameters, self._precision.rounded_to).float()

    def _matrix(self, layer: int | None, stored: str) -> Matrix:
        parameters = (stored,) if layer is None else stacked_in(layer, stored)
        rows, cols = self._stacked(parameters)
        if stored == ROUTER:  # in float32, whatever the others are: its answers decide
            return Matrix(layer, stored, parameters, (("f32", rows),), cols)
        kinds: Sequence[GgmlType | str] = self._types(parameters) or self._formats(parameters)
        if len(set(kinds)) == 1 and isinstance(kinds[0], str):
            return Matrix(layer, stored, parameters, ((kinds[0], rows),), cols)
        parts = tuple((kind, self._shapes[name][0]) for kind, name in zip(kinds, parameters, strict=True))
        return Matrix(layer, stored, parameters, parts, cols)

    def _pack(self, matrix: Matrix, importance: Tensor | None) -> PackedWeight:
        parameters = matrix.parameters
        if matrix.stored == ROUTER:
            return ops.pack_weight(self._read(parameters, self._precision.rounded_to).float(), "f32")
        types = self._types(parameters)
        if self._stored is not None and types:
            rows = [self._stored.blocks(parameter) for parameter in parameters]
            raw = [(part.flatten(), kind, part.shape[0]) for part, kind in zip(rows, types, strict=True)]
            return ops.pack_gguf(raw, matrix.cols)
        formats = self._formats(parameters)
        if formats[0] not in FORMATS.values():
            return self._quantised(parameters, formats, importance)
        return ops.pack_weight(self._read(parameters, self._precision.rounded_to), formats[0])

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
