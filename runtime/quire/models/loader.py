"""From files to a description, and from a description to a filled executor: the two halves of loading a model.

Between them the engine plans memory, so `inspect` reads metadata only and `load` the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from quire.errors import ModelError
from quire.models import registry, weights
from quire.models.decoder import Decoder
from quire.models.description import DecoderDescription, NameMap
from quire.models.executor import Executor
from quire.models.gguf_file import GGUFFile
from quire.models.metadata import Fields, read_json
from quire.models.source import ModelFiles


@dataclass(frozen=True)
class Inspected:
    """A model whose metadata has been read. `gguf` is the open file where it is one."""

    files: ModelFiles
    description: DecoderDescription
    names: NameMap
    gguf: GGUFFile | None = None


def inspect(files: ModelFiles) -> Inspected:
    """Read config.json or the GGUF header. Raises ModelError for what is damaged or not supported."""
    return _inspect_gguf(files) if files.kind == "gguf" else _inspect_folder(files)


def load(model: Inspected, dtype: torch.dtype, device: torch.device, num_positions: int) -> Executor:
    """Read the weights. Raises ModelError naming file and tensor."""
    window = min((window for window in model.description.windows if window), default=num_positions)
    if window < num_positions:
        raise ModelError(f"sliding windows are not computed yet; --max-model-len {window} needs none")
    decoder = Decoder(model.description, dtype, device)
    if model.gguf is not None:
        weights.load_gguf(model.gguf, model.description, model.names, decoder.targets())
    else:
        weights.load_safetensors(model.files.path, model.description, model.names, decoder.targets())
    decoder.finish(num_positions)
    return decoder


def _inspect_gguf(files: ModelFiles) -> Inspected:
    file = GGUFFile(files.path)
    architecture = registry.find_gguf(files.path, file.metadata.get("general.architecture"))
    shapes = {tensor.name: tensor.shape for tensor in file.tensors.values()}
    factors: tuple[float, ...] = ()
    if (tensor := file.tensors.get("rope_freqs.weight")) is not None:
        if tensor.ggml_type != 0:
            raise ModelError(f"{files.path}: rope_freqs.weight must have type F32; convert the model again")
        factors = tuple(np.frombuffer(file.data(tensor), dtype="<f4").tolist())
    description = architecture.describe(Fields(file.metadata, files.path), shapes, factors)
    return Inspected(files, _checked(files, description), architecture.names, file)


def _inspect_folder(files: ModelFiles) -> Inspected:
    config = read_json(files.path / "config.json")
    architecture = registry.find_hf(config)
    if config.values.get("quantization_config") is not None:
        raise ModelError(
            f"{config.path}: quantization_config is not supported; use the unquantised model or a .gguf file"
        )
    description = architecture.describe(config)
    generation = files.path / "generation_config.json"
    if generation.is_file() and (eos := read_json(generation).token_ids("eos_token_id")):
        description = replace(description, eos_token_ids=eos)
    return Inspected(files, _checked(files, description), architecture.names)


def _checked(files: ModelFiles, d: DecoderDescription) -> DecoderDescription:
    """Refuse sizes that do not fit together before anything is allocated."""
    if d.num_heads % d.num_kv_heads:
        raise ModelError(
            f"{files.path}: {d.num_heads} attention heads are no multiple of {d.num_kv_heads} key/value heads"
        )
    for rope in d.ropes():
        if d.head_size > 512 or rope.dim > d.head_size or rope.dim % 2:
            raise ModelError(
                f"{files.path}: head size {d.head_size} with {rope.dim} rotated dimensions is not supported"
            )
        for factors in (rope.factors, rope.long_factors):
            if factors and len(factors) != rope.dim // 2:
                raise ModelError(f"{files.path}: {len(factors)} rope factors for {rope.dim} rotated dimensions")
    return d
