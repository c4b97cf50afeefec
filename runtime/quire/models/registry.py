"""Which file describes which architecture.

A new model is one module like `llama` and one line here, or a plugin: a distribution with an entry point in the group
`quire.models` whose name is the architecture and whose object is an `HFArchitecture` or a `GGUFArchitecture`. What is
native here wins over a plugin of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

from quire.errors import ModelError
from quire.models import gemma, glm, llama, mistral, mixtral, olmo2, phi3, qwen, qwen3_moe, smollm3
from quire.models.description import DecoderDescription, NameMap
from quire.models.metadata import Fields

PLUGINS = "quire.models"
"""The group of entry points."""


@dataclass(frozen=True)
class HFArchitecture:
    """A class name in config.json's `architectures`."""

    describe: Callable[[Fields], DecoderDescription]
    names: NameMap


@dataclass(frozen=True)
class GGUFArchitecture:
    """A value of `general.architecture`. describe(metadata, tensor shapes, rope factors)."""

    describe: Callable[[Fields, dict[str, tuple[int, ...]], tuple[float, ...]], DecoderDescription]
    names: NameMap


HF: dict[str, HFArchitecture] = {
    "Gemma2ForCausalLM": HFArchitecture(gemma.gemma2_from_config, gemma.HF_NAMES),
    "Gemma3ForCausalLM": HFArchitecture(gemma.gemma3_from_config, gemma.HF_NAMES),
    "Glm4ForCausalLM": HFArchitecture(glm.glm4_from_config, glm.GLM4_NAMES),
    "GlmForCausalLM": HFArchitecture(glm.glm_from_config, glm.GLM_NAMES),
    "LlamaForCausalLM": HFArchitecture(llama.from_config, llama.HF_NAMES),
    "MistralForCausalLM": HFArchitecture(mistral.from_config, mistral.HF_NAMES),
    "MixtralForCausalLM": HFArchitecture(mixtral.from_config, mixtral.HF_NAMES),
    "Olmo2ForCausalLM": HFArchitecture(olmo2.from_config, olmo2.HF_NAMES),
    "Phi3ForCausalLM": HFArchitecture(phi3.from_config, phi3.HF_NAMES),
    "Qwen2ForCausalLM": HFArchitecture(qwen.qwen2_from_config, qwen.HF_NAMES),
    "Qwen3ForCausalLM": HFArchitecture(qwen.qwen3_from_config, qwen.HF_NAMES),
    "Qwen3MoeForCausalLM": HFArchitecture(qwen3_moe.from_config, qwen3_moe.HF_NAMES),
    "SmolLM3ForCausalLM": HFArchitecture(smollm3.from_config, smollm3.HF_NAMES),
}

GGUF: dict[str, GGUFArchitecture] = {
    "gemma2": GGUFArchitecture(gemma.gemma2_from_gguf, gemma.GGUF_NAMES),
    "llama": GGUFArchitecture(llama.from_gguf, llama.GGUF_NAMES),
    "qwen2": GGUFArchitecture(qwen.qwen2_from_gguf, qwen.GGUF_NAMES),
    "qwen3": GGUFArchitecture(qwen.qwen3_from_gguf, qwen.GGUF_NAMES),
}

_Architecture = TypeVar("_Architecture", HFArchitecture, GGUFArchitecture)


def find_hf(config: Fields) -> HFArchitecture | None:
    """The architecture of a config.json; None where it is not native."""
    return _find(names_in(config), HF, HFArchitecture)


def find_headless(config: Fields) -> HFArchitecture | None:
    """The same of a config.json that names a model without a head, `QwenModel` beside `QwenForCausalLM`."""
    names = [f"{name.removesuffix('Model')}ForCausalLM" for name in names_in(config) if name.endswith("Model")]
    return _find(names, HF, HFArchitecture)


def names_in(config: Fields) -> list[str]:
    """`architectures` of a config.json."""
    named = config.values.get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def unknown_hf(config: Fields, reason: str = "") -> ModelError:
    """What is said of a config.json that names nothing known; reason: why nothing else helped either."""
    known = ", ".join(sorted(name.removesuffix("ForCausalLM") for name in HF))
    return ModelError(
        f"{config.path}: architectures {names_in(config)!r} is not supported{reason}; supported: {known} (…ForCausalLM), and of encoders "
        "BertModel and BertForSequenceClassification"
    )


def find_gguf(path: Path, name: object) -> GGUFArchitecture:
    """The architecture of a GGUF file. Raises ModelError listing the known ones."""
    found = _find([name] if isinstance(name, str) else [], GGUF, GGUFArchitecture)
    if found is None:
        raise ModelError(f"{path}: architecture {name!r} is not supported; supported: {', '.join(sorted(GGUF))}")
    return found


def _find(names: Iterable[str], native: Mapping[str, _Architecture], kind: type[_Architecture]) -> _Architecture | None:
    for name in names:
        if name in native:
            return native[name]
    for name in names:
        for point in entry_points(group=PLUGINS, name=name):
            try:
                loaded = point.load()
            except Exception as exc:  # a plugin is somebody else's code
                raise ModelError(f"the plugin {point.value} for {name} cannot be loaded: {exc}") from exc
            if isinstance(loaded, kind):
                return loaded
            if not isinstance(loaded, HFArchitecture | GGUFArchitecture):
                raise ModelError(
                    f"the plugin {point.value} for {name} is a {type(loaded).__name__}, not an {kind.__name__}"
                )
    return None
