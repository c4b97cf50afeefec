"""The tokens of the text that int4 is made with: those of the model, or none, and the log says why."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from quire.config import EngineConfig
from quire.engine import startup
from quire.models.source import resolve
from tiny_api import tiny_folder
from tiny_text import VOCAB_SIZE


def tokens_of(folder: Path, vocab_size: int) -> list[int]:
    config = EngineConfig(model=str(folder))
    return startup.calibration_tokens(config, resolve(config.model), vocab_size)


def test_they_are_the_tokenizers(tmp_path: Path) -> None:
    tokens = tokens_of(tiny_folder(tmp_path), VOCAB_SIZE)
    assert len(tokens) > 400
    assert max(tokens) < VOCAB_SIZE


def test_ids_that_the_model_has_no_embedding_for_are_no_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tiny_folder(tmp_path)
    most = max(tokens_of(folder, VOCAB_SIZE))
    assert len(tokens_of(folder, most + 1)) > 400
    with caplog.at_level(logging.WARNING, "quire"):
        assert tokens_of(folder, most) == []
    assert f"has token ids up to {most}, but the model only {most} embeddings" in caplog.text


def test_without_a_tokenizer_there_is_no_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tiny_folder(tmp_path)
    (folder / "tokenizer.json").unlink()
    with caplog.at_level(logging.WARNING, "quire"):
        assert tokens_of(folder, VOCAB_SIZE) == []
    assert "all inputs mattered alike" in caplog.text
