"""Mistral: Llama whose tokens may see a window only (arXiv:2310.06825)."""

from __future__ import annotations

from quire.models import hf_config
from quire.models.description import DecoderDescription
from quire.models.metadata import Fields

HF_NAMES = hf_config.NAMES


def from_config(config: Fields) -> DecoderDescription:
    """The description of a config.json (fields of transformers' MistralConfig); null for no window is usual."""
    window = config.maybe_integer("sliding_window") if "sliding_window" in config.values else 4096
    layers = config.count("num_hidden_layers")
    return hf_config.describe(config, "mistral", windows=() if window is None else (window,) * layers)
