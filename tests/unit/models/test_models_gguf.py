"""GGUF files of every architecture answer as the model they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.errors import ModelError
from quire.models.loader import inspect
from quire.models.source import resolve
from quire_testing.fidelity import check_exact, crowded
from quire_testing.tiny_gguf import save_gguf
from quire_testing.tiny_models import make, save

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    # the file does not tell the factor of Gemma's scores: it follows from the head size
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 24}),
}


@pytest.mark.parametrize("architecture", CASES)
def test_logits_and_answers_are_those_of_the_model_it_was_made_from(architecture: str, tmp_path: Path) -> None:
    name, changes = CASES[architecture]
    model = make(name, **changes)
    file = save_gguf(model, save(model, tmp_path / "folder"), tmp_path / "tiny.gguf", architecture)
    check_exact(crowded(file), model)


def test_the_27b_of_gemma2_has_its_own_factor(tmp_path: Path) -> None:
    model = make("gemma2", num_hidden_layers=46, hidden_size=16, intermediate_size=16)
    file = save_gguf(model, save(model, tmp_path / "folder"), tmp_path / "tiny.gguf", "gemma2")
    assert inspect(resolve(str(file))).description.attention_scale == (16 / 4) ** -0.5


def test_an_unknown_architecture_names_the_known_ones(tmp_path: Path) -> None:
    model = make("qwen2", num_hidden_layers=1)
    file = save_gguf(model, save(model, tmp_path / "folder"), tmp_path / "tiny.gguf", "qwen2", called="mamba")
    with pytest.raises(
        ModelError, match=r"architecture 'mamba' is not supported; supported: gemma2, llama, qwen2, qwen3"
    ):
        inspect(resolve(str(file)))
