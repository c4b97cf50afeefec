"""A model's files as parameters of its description, read one at a time and strictly.

A parameter without tensor, a tensor nobody asked for, a shape that does not fit, and a file that is cut off or damaged each end
with one ModelError naming the file, what is wrong and what would help. Nothing is held but the tensor that was read last, so a
load never needs the model twice.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quire.errors import ModelError
from quire.models.description import DecoderDescription, NameMap
from quire.models.gguf_file import GGUFFile
from quire.models.source import WEIGHTS_FILE, WEIGHTS_INDEX
from quire_kernels import ops
from quire_kernels.ops import GgmlType

SLICE = 1 << 20
"""Numbers of a packed tensor that are unpacked at a time."""
_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""As safetensors and GGUF call them."""
_LARGEST_FACTOR = {GgmlType.Q4_K: 63, GgmlType.Q5_K: 63, GgmlType.Q6_K: 128}
"""Of a block's scale: integers of 6 bits, and of 8 with a sign."""
_PLAIN = {GgmlType.F32: "float32", GgmlType.F16: "float16", GgmlType.BF16: "bfloat16"}


@dataclass(frozen=True)
class TensorFile:
    """Where a file of weights has its header, which says what each tensor is, and the numbers of those that are read: first byte
    and number of bytes of each, in the order of the file."""

    path: Path
    header_bytes: int
    spans: tuple[tuple[int, int], ...]


class Described(Protocol):
    """What a model is, as far as reading its files goes."""

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name to shape of all weights."""
        ...


class Checkpoint(ABC):
    """The parameters of a model's files, which are those of its description; their rows are in the order in which
    executors want them.

    Here is what all kinds of file share: which rows of which tensor are a parameter.
    """

    def __init__(self, place: Path, description: Described, names: NameMap) -> None:
        self._place = place
        self._description = description
        self._names = names
        self._shapes = description.parameters()
        self._wanted = names.tensors(list(self._shapes))
        self._last: tuple[str, torch.dtype, Tensor] | None = None

    def check_finite(self, parameter: str, values: Tensor) -> None:
        """Raises ModelError where a number of a parameter, as it was read or after a change of type, is not finite."""
        name = self._names.tensor_name(parameter)
        check_finite(self._place_of(name), name, values)

    def read(self, parameter: str, dtype: torch.dtype) -> Tensor:
        """Its numbers in that type, rounded once."""
        name = self._names.tensor_name(parameter)
        kept, self._last = self._last, None
        if kept is None or kept[:2] != (name, dtype):
            values = self._values(name, dtype)
            self._check_shape(name, tuple(values.shape))
            kept = name, dtype, values
        if parameter != self._wanted[name][-1]:  # those that are stacked in one tensor are asked for in turn
            self._last = kept
        return self._part(name, parameter, kept[2], dtype)

    def reading_bytes(self, parameter: str, dtype: torch.dtype) -> int:
        """Memory that `read` takes at most, its answer included; what is mapped from a file is none."""
        name = self._names.tensor_name(parameter)
        part = math.prod(self._shapes[parameter]) * dtype.itemsize
        whole = sum(math.prod(self._shapes[each]) for each in self._wanted[name]) * dtype.itemsize
        return self._values_bytes(name, part, whole, dtype) + (2 * part if self._is_turned(parameter) else 0)

    @property
    def names(self) -> NameMap:
        """Which tensor holds which parameter."""
        return self._names

    @abstractmethod
    def files(self) -> list[TensorFile]:
        """What it reads from."""

    @abstractmethod
    def dtype_of(self, parameter: str) -> torch.dtype:
        """The type in which it is stored; float32 where it is quantised."""

    @abstractmethod
    def _values(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor, in that type where it must be unpacked."""

    @abstractmethod
    def _values_bytes(self, name: str, part: int, whole: int, dtype: torch.dtype) -> int:
        """Memory of `_values`, and of a part of it in that type."""

    def _place_of(self, name: str) -> Path:
        return self._place

    def _part(self, name: str, parameter: str, rows: Tensor, dtype: torch.dtype) -> Tensor:
        stacked = self._wanted[name]
        part = torch.split(rows, [self._shapes[each][0] for each in stacked])[stacked.index(parameter)].to(dtype)
        if self._is_turned(parameter):
            d = self._description
            assert isinstance(d, DecoderDescription)
            heads = d.num_heads if parameter.rpartition(".")[2].startswith("q") else d.num_kv_heads
            part = unpermute(part, heads, d.rope.dim)
        return part

    def _is_turned(self, parameter: str) -> bool:
        return parameter.rpartition(".")[2] in self._names.unpermute

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        stacked = self._wanted[name]
        expected = (sum(self._shapes[each][0] for each in stacked), *self._shapes[stacked[0]][1:])
        if shape != expected:
            raise ModelError(
                f"{self._place_of(name)}: tensor {name} has shape {list(shape)}, the configuration says {list(expected)}; "
                "weights and configuration do not belong together"
            )

    def _check_names(self, held: set[str]) -> None:
        tied = self._names.top.get("head")
        missing = [name for name in self._wanted if name not in held]
        extra = sorted(n for n in held if n not in self._wanted and n != tied and not n.endswith(self._names.ignored))
        if missing:
            also = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise ModelError(
                f"{self._place} lacks tensor {missing[0]}{also}; the download is incomplete, or it is another model"
            )
        if extra:
            also = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
            raise ModelError(
                f"{self._place} holds tensor {extra[0]}{also}, which this architecture does not know; the model needs support "
                "that is not there"
            )


class GGUFCheckpoint(Checkpoint):
    """The tensors of one GGUF file."""

    def __init__(self, file: GGUFFile, description: DecoderDescription, names: NameMap) -> None:
        super().__init__(file.path, description, names)
        self._file = file
        self._check_names(set(file.tensors))

    def files(self) -> list[TensorFile]:
        tensors = self._file.tensors.values()
        spans = sorted((tensor.start, tensor.num_bytes) for tensor in tensors if tensor.name in self._wanted)
        first = min((tensor.start for tensor in tensors), default=self._file.size)
        return [TensorFile(self._file.path, first, tuple(spans))]

    def ggml_type(self, parameter: str) -> GgmlType:
        """How the file stores it."""
        return GgmlType(self._file.tensors[self._names.tensor_name(parameter)].ggml_type)

    def blocks(self, parameter: str) -> Tensor:
        """A matrix as the file stores it: rows of bytes [outputs, bytes of a row] uint8, whose numbers are all finite."""
        name = self._names.tensor_name(parameter)
        tensor = self._file.tensors[name]
        self._check_shape(name, tensor.shape)
        raw = self._raw(name)
        check_finite(self._place, name, _scales(raw, GgmlType(tensor.ggml_type)))
        return self._part(name, parameter, raw.view(tensor.shape[0], -1), torch.uint8)

    def blocks_bytes(self, parameter: str) -> int:
        """Memory that `blocks` takes at most."""
        size = self._file.tensors[self._names.tensor_name(parameter)].num_bytes
        return size * 3 if self._is_turned(parameter) else size + size // 5  # its scales are copied to be looked at

    def dtype_of(self, parameter: str) -> torch.dtype:
        return _TYPES.get(self.ggml_type(parameter).name, torch.float32)

    def _values(self, name: str, dtype: torch.dtype) -> Tensor:
        tensor = self._file.tensors[name]
        data, (elements, size) = self._file.data(tensor), ops.GGML_BLOCKS[GgmlType(tensor.ggml_type)]
        values = torch.empty(tensor.num_elements, dtype=dtype)
        for start in range(0, tensor.num_elements, SLICE):
            count = min(SLICE, tensor.num_elements - start)
            raw = _bytes_of(data[start // elements * size : (start + count) // elements * size])
            values[start : start + count] = ops.dequantize_gguf(raw, tensor.ggml_type, count, dtype)
        return values.view(tensor.shape)

    def _values_bytes(self, name: str, part: int, whole: int, dtype: torch.dtype) -> int:
        return whole + min(whole, SLICE * dtype.itemsize)

    def _raw(self, name: str) -> Tensor:
        return _bytes_of(self._file.data(self._file.tensors[name]))


class SafetensorsCheckpoint(Checkpoint):
    """`model.safetensors`, or the shards of its index, in a folder."""

    def __init__(self, folder: Path, description: Described, names: NameMap) -> None:
        super().__init__(folder, description, names)
        self._files: dict[str, tuple[Path, Any]] = {}
        for path, tensors in _files(folder).items():
            file = _open(path)
            held = set(file.keys())
            if tensors is not None and tensors - held:
                raise ModelError(
                    f"{path} lacks tensor {min(tensors - held)}, which {WEIGHTS_INDEX} places there; download it again"
                )
            for name in sorted(held):
                if name in self._files:
                    raise ModelError(
                        f"tensor {name} is in both {self._files[name][0].name} and {path.name}; remove one"
                    )
                self._files[name] = path, file
        self._check_names(set(self._files))

    def files(self) -> list[TensorFile]:
        paths = sorted({self._files[name][0] for name in self._wanted})
        return [_tensor_file(path, [name for name in self._wanted if self._files[name][0] == path]) for path in paths]

    def _place_of(self, name: str) -> Path:
        return self._files[name][0]

    def _values(self, name: str, dtype: torch.dtype) -> Tensor:
        path, file = self._files[name]
        try:
            tensor: Tensor = file.get_tensor(name)
        except (SafetensorError, ValueError, TypeError, RuntimeError) as exc:
            raise ModelError(f"{path}: tensor {name} cannot be read ({exc}); download it again") from exc
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise ModelError(f"{path}: tensor {name} has type {tensor.dtype}; quantised safetensors are not supported")
        return tensor

    def dtype_of(self, parameter: str) -> torch.dtype:
        return self._held_in(self._names.tensor_name(parameter))

    def _values_bytes(self, name: str, part: int, whole: int, dtype: torch.dtype) -> int:
        return 0 if self._held_in(name) is dtype else part

    def _held_in(self, name: str) -> torch.dtype:
        return _TYPES.get(self._files[name][1].get_slice(name).get_dtype(), torch.float32)


def _tensor_file(path: Path, names: Sequence[str]) -> TensorFile:
    """Of a safetensors file that could be opened: its header's length, the header, the numbers. Raises ModelError where another file is there by now."""
    try:
        with path.open("rb") as file:
            header_bytes = 8 + int.from_bytes(file.read(8), "little")
            if header_bytes > path.stat().st_size:
                raise ValueError(f"a header of {header_bytes} bytes")
            header = json.loads(file.read(header_bytes - 8))
        offsets = sorted(header[name]["data_offsets"] for name in names)
    except (ValueError, KeyError, TypeError) as exc:
        raise ModelError(f"{path} changed while it was read ({type(exc).__name__}: {exc})") from exc
    return TensorFile(path, header_bytes, tuple((header_bytes + begin, end - begin) for begin, end in offsets))


def _bytes_of(data: memoryview) -> Tensor:
    """A copy: torch takes no memory that must not be written."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _scales(raw: Tensor, kind: GgmlType) -> Tensor:
    """The float numbers among a tensor's bytes, as large as packing makes them (`split_*` in packed/blocks.h: the K types' scales are
    products, held in float16 too); where they are finite, all its numbers are."""
    plain = {GgmlType.F32: torch.float32, GgmlType.F16: torch.float16, GgmlType.BF16: torch.bfloat16}
    if kind in plain:
        return raw.view(plain[kind])
    _, size = ops.GGML_BLOCKS[kind]
    halves = raw.view(torch.float16).view(-1, size // 2)
    with_minimum = kind in (GgmlType.Q4_1, GgmlType.Q5_1, GgmlType.Q4_K, GgmlType.Q5_K)
    scales = (halves[:, 104:105] if kind == GgmlType.Q6_K else halves[:, : 2 if with_minimum else 1]).contiguous()
    factor = _LARGEST_FACTOR.get(kind)
    return scales if factor is None else scales * factor


def held_in(file: GGUFFile) -> tuple[str, str]:
    """What a GGUF file's matrices are: the types that are blocks, most bytes first, as `Q4_1` or `Q4_K+Q6_K` (`none` where there are
    none), and the most frequent of the other types, as torch calls it."""
    sizes: dict[GgmlType, int] = {}
    for tensor in file.tensors.values():
        if len(tensor.shape) > 1:
            kind = GgmlType(tensor.ggml_type)
            sizes[kind] = sizes.get(kind, 0) + tensor.num_bytes
    kinds = sorted(sizes, key=lambda kind: -sizes[kind])
    blocks = "+".join(kind.name for kind in kinds if kind not in _PLAIN)
    return blocks or "none", next((_PLAIN[kind] for kind in kinds if kind in _PLAIN), "float32")


def unpermute(rows: Tensor, heads: int, rotated: int) -> Tensor:
    """Rotated rows from pairs to halves: the first of each head [heads, rotated/2, 2, ...] to [heads, 2, rotated/2, ...]."""
    per_head = rows.view(heads, -1, *rows.shape[1:])
    turned, rest = per_head[:, :rotated], per_head[:, rotated:]
    halves = turned.reshape(heads, rotated // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(turned.shape)
    return torch.cat([halves, rest], dim=1).view(rows.shape)


def check_finite(place: Path, name: str, values: Tensor) -> None:
    """Raises ModelError where a number is not finite."""
    low, high = torch.aminmax(values)  # one pass without a copy; a NaN anywhere is in both
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        raise ModelError(
            f"{place}: tensor {name} holds numbers that are not finite as {values.dtype}; the file is damaged, or needs "
            "--dtype bfloat16 or float32"
        )


def fitting(folder: Path, names: NameMap) -> NameMap:
    """The names as a folder's files have them: what was saved without its head lacks the beginning that the whole model gives them."""
    embed = names.top["embed"]
    prefix, dot, _ = embed.partition(".")
    held = {name for path in _files(folder) for name in _open(path).keys()}  # noqa: SIM118  (no mapping)
    return names.without(prefix + dot) if embed not in held and embed.removeprefix(prefix + dot) in held else names


def fill(checkpoint: Checkpoint, targets: dict[str, Tensor]) -> None:
    """Copy every parameter to its target, a tensor or the slice of a fused one."""
    for parameter, target in targets.items():
        target.copy_(checkpoint.read(parameter, target.dtype))
        checkpoint.check_finite(parameter, target)


def _files(folder: Path) -> dict[Path, set[str] | None]:
    """Weight files, with the tensors each must hold where an index says so."""
    index = folder / WEIGHTS_INDEX
    if index.is_file():
        try:
            weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            shards: dict[Path, set[str] | None] = {}
            for tensor, name in weight_map.items():
                if Path(name).name != name:
                    raise ModelError(f"{index} names the file {name!r} outside its folder; download it again")
                held = shards.setdefault(folder / name, set())
                assert held is not None
                held.add(tensor)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise ModelError(f"{index} is damaged ({type(exc).__name__}: {exc}); download it again") from exc
        absent = sorted(path.name for path in shards if not path.is_file())
        if absent:
            raise ModelError(f"{folder} lacks {len(absent)} of {len(shards)} weight files, as {absent[0]}; download it")
        return shards
    single = folder / WEIGHTS_FILE
    if single.is_file():
        return {single: None}
    others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    hint = f"; {others[0]} is no safetensors file, convert it" if others else "; download the model again"
    raise ModelError(f"{folder} holds no {WEIGHTS_FILE} and no {WEIGHTS_INDEX}{hint}")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as exc:
        raise ModelError(f"{path} is truncated or damaged ({exc}); download it again") from exc
    except OSError as exc:
        raise ModelError(f"cannot read {path}: {exc.strerror or exc}") from exc
