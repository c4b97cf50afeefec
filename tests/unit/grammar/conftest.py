"""A tiny random model with a tokenizer of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.text import Tokenizer, load_tokenizer
from quire_testing.structured import write_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)
