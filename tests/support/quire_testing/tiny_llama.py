"""Tiny random Llama models as files: a Hugging Face folder, and a sharded one (`tiny_gguf` makes a GGUF file of one).

Weights are large enough that greedy answers vary and logits are far apart; transformers is the reference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 199
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


def make_model(**changes: Any) -> Any:
    """A random LlamaForCausalLM in float32; always the same for the same changes."""
    torch.set_num_threads(1)  # threads that wait for each other are slower than one on a tiny model
    torch.manual_seed(7)
    model: Any = LlamaForCausalLM(LlamaConfig(**(SIZES | changes)))
    model.float().eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=0.0 if name.endswith("bias") else 1.0, std=0.2)
    model.generation_config.pad_token_id = 0
    return model


def save_folder(model: Any, folder: Path, *, sharded: bool = False) -> Path:
    """config.json and safetensors, in several files if wished."""
    model.save_pretrained(folder, max_shard_size="60KB" if sharded else "1GB")
    assert (len(list(folder.glob("*.safetensors"))) > 1) == sharded
    return folder


def greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """transformers' own greedy answer."""
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False)
    answer: list[int] = out[0, len(prompt) :].tolist()
    return answer
