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


GEMMA: dict[str, Any] = {"head_dim": 24, "query_pre_attn_scalar": 40, "sliding_window": 17}


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
    "mistral-window": Family("MistralConfig", {"sliding_window": 19}),
    "qwen2": Family("Qwen2Config"),
    "qwen2-window": Family("Qwen2Config", {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 2}),
    "qwen3": Family("Qwen3Config", {"head_dim": 32}),
    "gemma2": Family("Gemma2Config", GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": Family("Gemma3TextConfig", GEMMA | {"sliding_window_pattern": 3}),
    "gemma3-scaled": Family(
        "Gemma3TextConfig",
        GEMMA
        | {
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "final_logit_softcapping": 3.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 3.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
        },
    ),
    "phi3": Family("Phi3Config", {"sliding_window": 29}),
    "phi3-longrope": Family(
        "Phi3Config",
        {
            "original_max_position_embeddings": 256,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0 + 0.1 * i for i in range(6)],
                "long_factor": [1.5 + 0.5 * i for i in range(6)],
            },
        },
    ),
    "glm": Family("GlmConfig", {"head_dim": 16}),
    "glm4": Family("Glm4Config", {"head_dim": 24}),
    "olmo2": Family("Olmo2Config"),
    "olmo2-biases": Family("Olmo2Config", {"attention_bias": True, "num_key_value_heads": 4, "initializer_range": 0.4}),
    "smollm3": Family("SmolLM3Config", {"no_rope_layer_interval": 2}),
    "smollm3-window": Family(
        "SmolLM3Config", {"no_rope_layers": [1, 0, 0, 1], "use_sliding_window": True, "sliding_window": 11}
    ),
    "llama-yarn": Family(
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "llama-dynamic": Family(
        "LlamaConfig", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}}
    ),
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


def greedy_tokens(model: Any, prompt: list[int], answer: list[int]) -> list[int]:
    """transformers' most likely token after the prompt and after each token of an answer but the last.

    Where this is the answer itself, greedy generation gives it too, at a fraction of the cost.
    """
    tokens: list[int] = reference_logits(model, prompt + answer[:-1])[len(prompt) - 1 :].argmax(dim=-1).tolist()
    return tokens


@torch.inference_mode()
def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """transformers' logits [T, vocab] of a sequence."""
    logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits
