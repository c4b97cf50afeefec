"""The Llama family: Llama 2 and 3, SmolLM2, and whatever calls itself LlamaForCausalLM or `llama` in GGUF."""

from __future__ import annotations

from dataclasses import replace

from quire.models import gguf_config, hf_config
from quire.models.description import DecoderDescription
from quire.models.metadata import Fields

HF_NAMES = hf_config.NAMES

GGUF_NAMES = replace(gguf_config.NAMES, unpermute=frozenset({"q", "k", "q_bias", "k_bias"}))
"""llama.cpp stores rotated rows of this architecture in pairs."""


def from_config(config: Fields) -> DecoderDescription:
    """The description of a config.json (fields of transformers' LlamaConfig)."""
    bias = config.flag("attention_bias")
    return hf_config.describe(config, "llama", qkv_bias=bias, o_bias=bias, mlp_bias=config.flag("mlp_bias"))


def from_gguf(
    fields: Fields, tensors: dict[str, tuple[int, ...]], rope_factors: tuple[float, ...]
) -> DecoderDescription:
    """The description of a GGUF file; arguments as `gguf_config.describe` has them."""
    return gguf_config.describe(fields, tensors, rope_factors, "llama")
