"""Fill a model's parameters from a checkpoint, strictly.

A parameter without tensor, a tensor nobody asked for, a shape that does not fit, a file that is cut off or damaged, and a
number that is not finite each end with one ModelError naming the file, what is wrong and what would help. Tensors are
copied one at a time into the places where the executor wants them, so a load never needs the model twice.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quire.errors import ModelError
from quire.models.description import DecoderDescription, NameMap
from quire.models.gguf_file import GGUFFile
from quire.models.source import WEIGHTS_FILE, WEIGHTS_INDEX
from quire_kernels import ops

Targets = dict[str, Tensor]
"""Parameter name (see `DecoderDescription.parameters`) to the tensor, or the slice of a fused one, to fill."""


def load_gguf(file: GGUFFile, description: DecoderDescription, names: NameMap, targets: Targets) -> None:
    """Fill targets from a GGUF file, dequantised."""
    wanted = names.tensors(list(targets))
    _check_names(file.path, set(file.tensors), wanted, names)
    for name, parameters in wanted.items():
        tensor = file.tensors[name]
        raw = torch.frombuffer(bytearray(file.data(tensor)), dtype=torch.uint8)  # torch wants writable memory
        values = ops.dequantize_gguf(raw, tensor.ggml_type, tensor.num_elements, torch.float32).view(tensor.shape)
        _distribute(file.path, name, values, parameters, description, names, targets)


def load_safetensors(folder: Path, description: DecoderDescription, names: NameMap, targets: Targets) -> None:
    """Fill targets from `model.safetensors`, or from the shards of its index."""
    wanted = names.tensors(list(targets))
    files = _files(folder)
    seen: dict[str, Path] = {}
    for path, tensors in files.items():
        with _open(path) as file:
            held = set(file.keys())
            if tensors is not None and tensors - held:
                raise ModelError(
                    f"{path} lacks tensor {min(tensors - held)}, which {WEIGHTS_INDEX} places there; download it again"
                )
            for name in sorted(held):
                if name in seen:
                    raise ModelError(f"tensor {name} is in both {seen[name].name} and {path.name}; remove one")
                seen[name] = path
                if name in wanted:
                    _distribute(path, name, _read(file, path, name), wanted[name], description, names, targets)
    _check_names(folder, set(seen), wanted, names)


def unpermute(rows: Tensor, heads: int, rotated: int) -> Tensor:
    """Rotated rows from pairs to halves: the first of each head [heads, rotated/2, 2, ...] to [heads, 2, rotated/2, ...]."""
    per_head = rows.view(heads, -1, *rows.shape[1:])
    turned, rest = per_head[:, :rotated], per_head[:, rotated:]
    halves = turned.reshape(heads, rotated // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(turned.shape)
    return torch.cat([halves, rest], dim=1).view(rows.shape)


def _distribute(
    place: Path,
    name: str,
    values: Tensor,
    parameters: list[str],
    description: DecoderDescription,
    names: NameMap,
    targets: Targets,
) -> None:
    """Copy a tensor to the parameter it holds, or its rows to the parameters that are stacked in it."""
    rows = [targets[parameter].shape[0] for parameter in parameters]
    _check_shape(place, name, tuple(values.shape), (sum(rows), *targets[parameters[0]].shape[1:]))
    for parameter, part in zip(parameters, torch.split(values, rows), strict=True):
        kind = parameter.rpartition(".")[2]
        if kind in names.unpermute:
            heads = description.num_heads if kind.startswith("q") else description.num_kv_heads
            part = unpermute(part, heads, description.rope.dim)
        _fill(place, name, part, targets[parameter])


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


def _open(path: Path) -> AbstractContextManager[Any]:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as exc:
        raise ModelError(f"{path} is truncated or damaged ({exc}); download it again") from exc
    except OSError as exc:
        raise ModelError(f"cannot read {path}: {exc.strerror or exc}") from exc


def _read(file: Any, path: Path, name: str) -> Tensor:
    try:
        tensor: Tensor = file.get_tensor(name)
    except (SafetensorError, ValueError, TypeError, RuntimeError) as exc:
        raise ModelError(f"{path}: tensor {name} cannot be read ({exc}); download it again") from exc
    if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
        raise ModelError(f"{path}: tensor {name} has type {tensor.dtype}; quantised safetensors are not supported")
    return tensor


def _check_names(place: Path, held: set[str], wanted: dict[str, list[str]], names: NameMap) -> None:
    tied = names.top.get("head")
    missing = [name for name in wanted if name not in held]
    extra = sorted(n for n in held if n not in wanted and n != tied and not n.endswith(names.ignored))
    if missing:
        also = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{place} lacks tensor {missing[0]}{also}; the download is incomplete, or it is another model")
    if extra:
        also = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise ModelError(
            f"{place} holds tensor {extra[0]}{also}, which this architecture does not know; the model needs support "
            "that is not there"
        )


def _check_shape(place: Path, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ModelError(
            f"{place}: tensor {name} has shape {list(shape)}, the configuration says {list(expected)}; "
            "weights and configuration do not belong together"
        )


def check_finite(place: Path, name: str, values: Tensor) -> None:
    """Raises ModelError where a number is not finite."""
    low, high = torch.aminmax(values)  # one pass without a copy; a NaN anywhere is in both
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        raise ModelError(
            f"{place}: tensor {name} holds numbers that are not finite as {values.dtype}; the file is damaged, or needs "
            "--dtype bfloat16 or float32"
        )


def _fill(place: Path, name: str, values: Tensor, target: Tensor) -> None:
    target.copy_(values)
    check_finite(place, name, target)
