"""all-MiniLM-L6-v2 itself, alone and in company, beside the numbers of sentence-transformers.

tests/support/minilm_vectors.json holds them: made once by transformers 5.24's BertModel in float32, one text at a time, mean over all tokens in
float64, brought to length 1 (which is what sentence-transformers' modules of this model do; the first ones are those that its model card's
example prints).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.config import EngineConfig
from quire.engine.core import EngineCore
from quire.engine.startup import build
from quire.models import bundled
from quire.text import Tokenizer, load_tokenizer
from quire_testing.pooling import vectors

EXPECTED = json.loads((Path(__file__).parents[2] / "support/minilm_vectors.json").read_text(encoding="utf-8"))
TOLERANCE = 2e-6
"""Measured: 1.4e-7 alone, 1.5e-7 between alone and in company (AVX2)."""

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    yield build(EngineConfig(model="minilm", device="cpu", cpu_threads=2))


@pytest.fixture(scope="module")
def core(engine: Any) -> EngineCore:
    return engine[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(bundled.pull("minilm"))


def expected(one: Any) -> np.ndarray:
    return np.frombuffer(base64.b64decode(one["vector"]), "<f4")


def test_what_its_files_say(engine: Any) -> None:
    _, ready = engine
    assert (ready.pooling.task, ready.pooling.size, ready.pooling.normalised) == ("embed", 384, True)
    assert (ready.max_model_len, ready.info["pooling"], ready.info["dtype"]) == (256, "mean", "float32")


@pytest.mark.parametrize("one", EXPECTED, ids=lambda one: one["text"][:20] or "empty")
def test_a_text_alone(core: EngineCore, tokenizer: Tokenizer, one: Any) -> None:
    ids = tokenizer.encode(one["text"])
    assert len(ids) == one["num_tokens"]
    [found] = vectors(core, [ids])
    np.testing.assert_allclose(found.values, expected(one), atol=TOLERANCE, rtol=0)


def test_all_texts_together(core: EngineCore, tokenizer: Tokenizer) -> None:
    prompts = [tokenizer.encode(one["text"]) for one in EXPECTED] * 3
    for found, one in zip(vectors(core, prompts, every=1), EXPECTED * 3, strict=True):
        np.testing.assert_allclose(found.values, expected(one), atol=TOLERANCE, rtol=0)


def test_the_text_comes_back_from_its_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("The capital of France is Paris.")) == "the capital of france is paris ."
