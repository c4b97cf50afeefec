"""Which file describes which architecture. A new model is one module like `llama` and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.models import llama
from quire.models.description import DecoderDescription, NameMap
from quire.models.metadata import Fields


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
    "LlamaForCausalLM": HFArchitecture(llama.from_config, llama.HF_NAMES),
}

GGUF: dict[str, GGUFArchitecture] = {
    "llama": GGUFArchitecture(llama.from_gguf, llama.GGUF_NAMES),
}
