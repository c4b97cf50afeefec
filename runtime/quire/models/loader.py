"""From files to a description, and from a description to a filled executor: the two halves of loading a model.

Between them the engine plans memory, so `inspect` reads metadata only and `load` the weights. Which executor a model gets is
decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch

from quire.errors import ModelError
from quire.models import checkpoint, cpu_decoder, pooling, registry, transformers_backend
from quire.models.checkpoint import Checkpoint
from quire.models.cpu_decoder import PlanBuilder
from quire.models.decoder import ModulesBuilder
from quire.models.description import DecoderDescription, NameMap
from quire.models.executor import Executor, Footprint, ModelFacts
from quire.models.gguf_file import GGUFFile
from quire.models.metadata import Fields, check_experts, read_json
from quire.models.packed_cache import PackedCache
from quire.models.pooling import Pooling
from quire.models.precision import Precision
from quire.models.source import ModelFiles

Implementation = Literal["auto", "native", "transformers"]


class Builder(Protocol):
    """A model on a device with the executor that is to compute it; its files are open, no weight has been read."""

    def precision(self, dtype: str = "auto", quantization: str = "auto") -> Precision:
        """What the flags of these names make it compute with. Raises ConfigError where it cannot."""
        ...

    def footprint(self, precision: Precision) -> Footprint:
        """What `load` will hold."""
        ...

    def load(
        self,
        precision: Precision,
        num_positions: int,
        calibration: Callable[[], Sequence[int]] = tuple,
        cache: PackedCache | None = None,
    ) -> Executor:
        """Read the weights. num_positions: length of the longest sequence. calibration: makes tokens of a text, each below the size of
        the vocabulary, where what matters is looked for before 4 bits are made; none, and all inputs are alike. cache: where weights that take
        long to pack are looked for, and kept. Raises ModelError naming file and tensor."""
        ...


class Inspected(Protocol):
    """A model whose metadata has been read."""

    @property
    def description(self) -> ModelFacts: ...

    @property
    def implementation(self) -> str:
        """Who computes: `native` or `transformers`."""
        ...

    @property
    def notice(self) -> str:
        """What is to be announced about that; empty where nothing is."""
        ...

    @property
    def pooling(self) -> Pooling | None:
        """How hidden states become a vector; None: it generates text."""
        ...

    def on(self, device: torch.device) -> Builder:
        """Decide what computes it there, and open its files. Raises ModelError where these are not those of the model."""
        ...


@dataclass(frozen=True)
class NativeModel:
    """A model with a description. `gguf` is the open file where it is one."""

    files: ModelFiles
    description: DecoderDescription
    names: NameMap
    gguf: GGUFFile | None = None
    implementation: str = "native"
    pooling: Pooling | None = None

    @property
    def notice(self) -> str:
        return ""

    def on(self, device: torch.device) -> Builder:
        reason = (
            cpu_decoder.unsupported(self.description)
            if device.type == "cpu"
            else f"it runs on a CPU, not on {device.type}"
        )
        return self.modules(device, reason) if reason else self.plan()

    def plan(self) -> PlanBuilder:
        """The CPU executor."""
        return PlanBuilder(self.description, self._open())

    def modules(self, device: torch.device, reason: str = "") -> ModulesBuilder:
        """The torch executor. reason: why it is this one."""
        return ModulesBuilder(self.description, self._open(), device, reason)

    def _open(self) -> Checkpoint:
        if self.gguf is not None:
            return checkpoint.GGUFCheckpoint(self.gguf, self.description, self.names)
        names = self.names if self.pooling is None else checkpoint.fitting(self.files.path, self.names)
        return checkpoint.SafetensorsCheckpoint(self.files.path, self.description, names)


def inspect(
    files: ModelFiles,
    *,
    implementation: Implementation = "auto",
    trust_remote_code: bool = False,
    pooling: str = "auto",
) -> Inspected:
    """Read config.json or the GGUF header. Raises ModelError for what is damaged or not supported.

    implementation: auto takes the native one where there is one. trust_remote_code: code that comes with a model may run.
    pooling: see `pooling.choose`.
    """
    if files.kind == "gguf":
        if implementation == "transformers":
            raise ModelError(f"{files.path}: --model-impl transformers reads Hugging Face folders, not .gguf files")
        return _inspect_gguf(files, pooling)
    return _inspect_folder(files, implementation, trust_remote_code, pooling)


def _inspect_gguf(files: ModelFiles, flag: str) -> NativeModel:
    file = GGUFFile(files.path)
    architecture = registry.find_gguf(files.path, file.metadata.get("general.architecture"))
    shapes = {tensor.name: tensor.shape for tensor in file.tensors.values()}
    factors: tuple[float, ...] = ()
    if (tensor := file.tensors.get("rope_freqs.weight")) is not None:
        if tensor.ggml_type != 0:
            raise ModelError(f"{files.path}: rope_freqs.weight must have type F32; convert the model again")
        factors = tuple(np.frombuffer(file.data(tensor), dtype="<f4").tolist())
    description = architecture.describe(Fields(file.metadata, files.path), shapes, factors)
    blocks, plain = checkpoint.held_in(file)
    description = replace(description, quantization=blocks, checkpoint_dtype=plain)
    chosen = pooling.choose(flag, pooling.from_gguf(Fields(file.metadata, files.path)), None)
    description = _headed(_checked(files, description), chosen)
    return NativeModel(files, description, architecture.names, file, pooling=chosen)


def _inspect_folder(files: ModelFiles, implementation: Implementation, trust_remote_code: bool, flag: str) -> Inspected:
    config = read_json(files.path / "config.json")
    architecture = registry.find_hf(config)
    if (quantised := config.values.get("quantization_config")) is not None:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else None
        raise ModelError(
            f"{config.path}: quantization_config ({method or 'no quant_method'}) is not supported; "
            "use the unquantised model or a .gguf file"
        )
    headless = registry.find_headless(config) if architecture is None else None
    said = None if flag == "none" else pooling.from_folder(files.path)
    chosen = pooling.choose(flag, said, None if headless is None else "last")
    if headless is not None and chosen is None:
        raise ModelError(f"{config.path}: it has no head that makes text, so --pooling none is not possible")
    if chosen is not None and config.values.get("is_causal") is False:
        raise config.bad("is_causal", False, "true or absent: decoders look back only here")
    architecture = architecture or headless
    if implementation == "native" and architecture is None:
        raise registry.unknown_hf(config)
    if implementation == "transformers" or architecture is None:
        return transformers_backend.inspect(
            files,
            config,
            _eos_token_ids(files, config),
            trust_remote_code=trust_remote_code,
            pooling=chosen,
        )
    description = architecture.describe(config)
    description = replace(description, eos_token_ids=_eos_token_ids(files, config))
    return NativeModel(files, _headed(_checked(files, description), chosen), architecture.names, pooling=chosen)


def _headed(description: DecoderDescription, chosen: Pooling | None) -> DecoderDescription:
    """Without a head of its own where none is used."""
    return description if chosen is None else replace(description, tie_embeddings=True)


def _eos_token_ids(files: ModelFiles, config: Fields) -> tuple[int, ...]:
    """generation_config.json's where it names any, else config.json's."""
    generation = files.path / "generation_config.json"
    own = read_json(generation).token_ids("eos_token_id") if generation.is_file() else ()
    return own or config.token_ids("eos_token_id")


def _checked(files: ModelFiles, d: DecoderDescription) -> DecoderDescription:
    """Refuse sizes that do not fit together before anything is allocated."""
    check_experts(files.path, d.num_layers, d.num_experts)
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
