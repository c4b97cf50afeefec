"""Models that are not native: transformers computes them, with its attention replaced by paged attention.

transformers is optional (`quire[transformers]`) and imported when the first such model is met. A model is examined
(`transformers_examine`), which gives the facts the engine plans with; what paged attention cannot do is refused before weights
are read. After they are, a short text is compared with transformers' own attention (`transformers_check`): a model whose
state is not only keys and values cannot pass unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from quire.errors import ModelError
from quire.models import checkpoint, registry
from quire.models.executor import Executor, Footprint
from quire.models.metadata import Fields
from quire.models.packed_cache import PackedCache
from quire.models.pooling import Pooling
from quire.models.precision import Precision, of_modules
from quire.models.source import ModelFiles
from quire.models.transformers_check import compare, plain_logits
from quire.models.transformers_examine import (
    NAME,
    Examined,
    Subject,
    examine,
    load_library,
    prepare,
    quiet,
    read_settings,
    sentence,
)
from quire.models.transformers_executor import TransformersExecutor


@dataclass(frozen=True)
class TransformersFacts:
    """See `executor.ModelFacts`."""

    architecture: str
    num_layers: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    checkpoint_dtype: str
    quantization: str = "none"

    def kv_elements_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_size

    def table_elements_per_position(self) -> int:
        return 0  # its own code makes angles in every step; buffers count as weights


@dataclass(frozen=True)
class TransformersModel:
    """A model that can be served. settings: transformers' configuration of it."""

    subject: Subject
    description: TransformersFacts
    found: Examined
    settings: Any
    implementation: str = "transformers"
    pooling: Pooling | None = None

    @property
    def notice(self) -> str:
        version = self.subject.transformers.__version__
        return f"{self.subject.architecture}: computed by transformers {version} with paged attention, not natively"

    def on(self, device: torch.device) -> TransformersBuilder:
        return TransformersBuilder(self, device)


@dataclass(frozen=True)
class TransformersBuilder:
    """See `loader.Builder`."""

    model: TransformersModel
    device: torch.device

    def precision(self, dtype: str = "auto", quantization: str = "auto") -> Precision:
        facts = self.model.description
        reason = f"transformers computes {self.model.subject.architecture}"
        return of_modules(facts.checkpoint_dtype, self.device, reason, dtype=dtype, quantization=quantization)

    def footprint(self, precision: Precision) -> Footprint:
        found, size = self.model.found, precision.dtype.itemsize
        loading = found.largest * size if self.device.type == "cpu" else 0
        return Footprint(found.num_weights * size, found.activations * size, size, loading)

    def load(
        self,
        precision: Precision,
        num_positions: int,
        calibration: Callable[[], Sequence[int]] = tuple,
        cache: PackedCache | None = None,
    ) -> Executor:
        """Read the weights strictly, and compare a short text with transformers' own attention."""
        subject, facts, found, dtype = self.model.subject, self.model.description, self.model.found, precision.dtype
        with quiet(subject.transformers):
            model = self._read(dtype).to(self.device)
            prepare(model)
            for name, parameter in model.named_parameters():
                checkpoint.check_finite(subject.folder, name, parameter.detach())
            expected = plain_logits(model, subject.folder, facts.vocab_size, num_positions)
            executor = TransformersExecutor(model, found.layers, found.body, dtype, self.device)
            compare(executor, facts, subject.folder, expected)
        return executor

    def _read(self, dtype: torch.dtype) -> Any:
        subject, folder = self.model.subject, self.model.subject.folder
        try:
            model, report = subject.transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                config=self.model.settings,
                dtype=dtype,
                attn_implementation=NAME,
                trust_remote_code=subject.trust_remote_code,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
                output_loading_info=True,
            )
        except Exception as exc:  # whatever a model's files and code raise, it is the model that fails
            raise ModelError(
                f"{folder}: transformers cannot load {subject.architecture} ({sentence(exc)}); download it again"
            ) from exc
        for kind, what in (("missing_keys", "lacks"), ("unexpected_keys", "holds"), ("mismatched_keys", "misshapes")):
            if names := sorted(map(str, report.get(kind) or ())):
                also = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise ModelError(
                    f"{folder} {what} tensor {names[0]}{also}; the download is incomplete, or weights and configuration do "
                    "not belong together"
                )
        return model


def inspect(
    files: ModelFiles,
    config: Fields,
    eos_token_ids: tuple[int, ...],
    *,
    trust_remote_code: bool,
    pooling: Pooling | None = None,
) -> TransformersModel:
    """Examine a model. config: its config.json. pooling: see `loader.Inspected`. Raises ModelError with one sentence where it cannot be served this way."""
    config.check_counts()
    architecture = next(iter(registry.names_in(config)), "")
    transformers = load_library(files.path, architecture or "a model of no known architecture")
    known = set(transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    own_code = (config.section("auto_map") or Fields({}, config.path)).values.get("AutoModelForCausalLM")
    if architecture not in known and own_code is None:
        version = transformers.__version__
        raise registry.unknown_hf(config, f", and no decoder-only model of transformers {version} is called so")
    if architecture not in known and not trust_remote_code:
        raise ModelError(
            f"{config.path}: {architecture} brings its own code ({own_code}), which is not run; read it, then start with "
            "--trust-remote-code if you trust it"
        )
    subject = Subject(files.path, architecture, transformers, trust_remote_code)
    with quiet(transformers):
        settings = read_settings(subject)
        found = examine(subject, settings)
    length = getattr(settings.get_text_config(), "max_position_embeddings", None)
    if not isinstance(length, int):
        raise subject.cannot("it does not say how many positions it was made for (max_position_embeddings)")
    facts = TransformersFacts(
        architecture=architecture,
        num_layers=len(found.layers),
        num_kv_heads=found.layers[0].num_kv_heads,
        head_size=found.layers[0].head_size,
        vocab_size=found.vocab_size,
        max_model_len=length,
        eos_token_ids=eos_token_ids,
        checkpoint_dtype=str(config.values.get("dtype") or config.values.get("torch_dtype") or "float32"),
    )
    return TransformersModel(subject, facts, found, settings, pooling=pooling)
