"""A tiny random Llama with a tokenizer, for tests of the Python API, and what transformers answers with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire_testing.tiny_llama import greedy, make_model, save_folder
from tiny_text import VOCAB_SIZE, write_tokenizer


def tiny_folder(folder: Path) -> Path:
    """A model folder that ends answers with ids 0 and 2."""
    return write_tokenizer(save_folder(make_model(vocab_size=VOCAB_SIZE), folder))


def reference_model() -> Any:
    """The same model in transformers, which never ends an answer by itself."""
    model = make_model(vocab_size=VOCAB_SIZE)
    model.generation_config.eos_token_id = None
    return model


def greedy_ids(prompt: list[int], count: int) -> list[int]:
    """transformers' greedy answer."""
    return greedy(reference_model(), prompt, count)
