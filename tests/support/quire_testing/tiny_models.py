"""Tiny random models of every architecture, made by transformers from its own configuration classes.

Weights are large enough that greedy answers vary and logits are far apart; norms and biases are random too, so that one
which is forgotten or misplaced shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 199
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Family:
    """An architecture, or a variant of one: transformers' configuration class and what differs from SIZES."""

    config: str
    changes: dict[str, Any] = field(default_factory=dict)


EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaConfig"),
    "mistral": Family("MistralConfig", {"sliding_window": None, "head_dim": 24}),
    "mixtral": Family("MixtralConfig", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen3-moe": Family("Qwen3MoeConfig", {"head_dim": 16, **EXPERTS, "norm_topk_prob": True}),
    "qwen3-moe-shares": Family("Qwen3MoeConfig", {"head_dim": 16, **EXPERTS, "norm_topk_prob": False}),
    "qwen2": Family("Qwen2Config"),
    "qwen3": Family("Qwen3Config", {"head_dim": 32}),
    "qwen3-biases": Family("Qwen3Config", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
}


def make(name: str, **changes: Any) -> Any:
    """A native family's random model; see `build`."""
    return build(FAMILIES[name], **changes)


def build(family: Family, **changes: Any) -> Any:
    """The family's random model in float32; always the same for the same changes."""
    torch.set_num_threads(1)  # threads that wait for each other are slower than one on a tiny model
    torch.manual_seed(11)
    config_class: Callable[..., Any] = getattr(transformers, family.config)
    config = config_class(**(SIZES | family.changes | changes))
    config._attn_implementation = "eager"
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    model.float().eval()
    for parameter, weight in model.named_parameters():
        if parameter.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.2)
        elif weight.dim() == 1:
            torch.nn.init.normal_(weight, mean=0.0 if family.config.startswith("Gemma") else 1.0, std=0.2)
    model.generation_config.pad_token_id = 0
    return model


def save(model: Any, folder: Path) -> Path:
    """config.json and model.safetensors."""
    model.save_pretrained(folder)
    return folder


@torch.inference_mode()
def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """transformers' logits [T, vocab] of a sequence."""
    logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits
