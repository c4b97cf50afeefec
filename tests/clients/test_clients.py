"""Other people's clients, each in an environment of its own, against the real server: what works with OpenAI's endpoint works here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from client_environments import CLIENTS, node_of, python_of
from client_run import run_client
from embedded_server import embedded_server
from quire.models.source import resolve
from quire.text.gguf_vocab import from_gguf

MODEL = "smollm2"
PROGRAMS = CLIENTS / "programs"
IN_CHAT = "<|im_start|>user\nWhat is the capital of {}?<|im_end|>\n<|im_start|>assistant\nThe capital of {} is"
ROWS = [
    {"question": "The capital of France is", "choices": [" Berlin", " Paris"], "gold": 1},
    {"question": "The capital of Germany is", "choices": [" Berlin", " Paris"], "gold": 0},
    {"question": "The opposite of hot is", "choices": [" cold", " Tuesday"], "gold": 0},
    # the model ends here: the one token that a scorer lets it generate is an end token
    {"question": IN_CHAT.format("France", "France"), "choices": [" Berlin.", " Paris."], "gold": 1},
]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.model, pytest.mark.timeout(900)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    async with embedded_server("--max-model-len=1024", "--kv-cache-memory=256Mi", "--dtype=float32") as server:
        yield server.url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vectors() -> AsyncIterator[str]:
    async with embedded_server(model="minilm") as server:
        yield server.url


@pytest.mark.parametrize("name", ["langchain", "llama-index", "litellm"])
async def test_the_client_works_unchanged(url: str, tmp_path: Path, name: str) -> None:
    python = await asyncio.to_thread(python_of, name)
    await run_client(python, PROGRAMS / f"{name.replace('-', '_')}_client.py", url, MODEL, folder=tmp_path)


@pytest.mark.parametrize("name", ["langchain", "litellm"])
async def test_the_client_gets_vectors(vectors: str, tmp_path: Path, name: str) -> None:
    python = await asyncio.to_thread(python_of, name)
    await run_client(python, PROGRAMS / f"{name}_vectors.py", vectors, "minilm", folder=tmp_path)


async def test_the_official_javascript_client(url: str, tmp_path: Path) -> None:
    node, packages = await asyncio.to_thread(node_of)
    await run_client(node, PROGRAMS / "openai.mjs", url, MODEL, packages, folder=tmp_path)


async def test_lm_eval_scores_as_the_model_does(url: str, tmp_path: Path) -> None:
    """Its log likelihoods are those that echo tells of the same text, and each choice is what the model finds likelier."""
    python = await asyncio.to_thread(python_of, "lm-eval")
    from_gguf(resolve(MODEL).path).backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"})
    )
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    await run_client(python, PROGRAMS / "lm_eval_client.py", url, MODEL, rows, tmp_path, folder=tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        expected = [[await likelihood(http, row["question"], answer) for answer in row["choices"]] for row in ROWS]
        last = {"prompt": ROWS[-1]["question"] + ROWS[-1]["choices"][1], "max_tokens": 1, "temperature": 0}
        assert (await http.post("/v1/completions", json=last)).json()["choices"][0]["finish_reason"] == "stop"
    for way in ("ids", "texts"):
        told = found[way]
        assert told["accuracy"] == 1
        assert told["likelihoods"] == [pytest.approx(pair, abs=1e-3) for pair in expected], way
        assert len(told["said"]) == len(ROWS) and "Paris" in told["said"][0], way


async def likelihood(http: httpx.AsyncClient, context: str, continuation: str) -> float:
    """Of the tokens of `continuation`, by a request that generates nothing."""
    before = (await http.post("/tokenize", json={"prompt": context})).json()["count"]
    body = {"prompt": context + continuation, "max_tokens": 0, "echo": True, "logprobs": 1}
    told: dict[str, Any] = (await http.post("/v1/completions", json=body)).json()["choices"][0]["logprobs"]
    assert "".join(told["tokens"][before:]) == continuation
    return sum(told["token_logprobs"][before:])
