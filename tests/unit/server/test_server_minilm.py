"""The official OpenAI client, scores and rankings against the real server with all-MiniLM-L6-v2: a process, an engine, real numbers."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

EXPECTED = json.loads((Path(__file__).parents[2] / "support/minilm_vectors.json").read_text(encoding="utf-8"))
"""See tests/unit/models/test_models_minilm.py."""

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    handle = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire.entrypoints.cli", "serve", "minilm", "--host=127.0.0.1", f"--port={port}",
        "--log-level=warning",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    try:
        assert handle.stdout is not None
        said: list[str] = []
        async with asyncio.timeout(240):
            while "curl" not in (line := (await handle.stdout.readline()).decode()):
                assert line, (await handle.communicate())[1].decode()
                said.append(line)
        assert "vectors     of 384 numbers (mean pooling)\n" in "".join(said) and "/v1/embeddings" in line
        yield f"http://127.0.0.1:{port}"
    finally:
        handle.terminate()
        _, errors = await handle.communicate()
        assert handle.returncode == 0 and not errors, errors.decode()


def numbers_of(one: Any) -> tuple[float, ...]:
    data = base64.b64decode(one["vector"])
    return struct.unpack(f"<{len(data) // 4}f", data)


def assert_near(found: Any, one: Any) -> None:
    assert len(found) == 384
    assert max(abs(a - b) for a, b in zip(found, numbers_of(one), strict=True)) < 2e-6


async def test_the_official_client(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as api:
        texts = [one["text"] for one in EXPECTED]
        for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            answer = await api.embeddings.create(model="minilm", input=texts, **encoding)
            assert answer.usage.prompt_tokens == sum(one["num_tokens"] for one in EXPECTED)
            for data, one in zip(answer.data, EXPECTED, strict=True):
                found: Any = data.embedding
                if isinstance(found, str):
                    found = struct.unpack("<384f", base64.b64decode(found))
                assert_near(found, one)
        many = await asyncio.gather(*(api.embeddings.create(model="minilm", input=text) for text in texts * 2))
        for answer, one in zip(many, EXPECTED * 2, strict=True):
            assert_near(answer.data[0].embedding, one)
        [card] = (await api.models.list()).data
        assert card.model_extra is not None and card.model_extra["tasks"] == ["embed", "score"]
        with pytest.raises(
            openai.BadRequestError, match="cannot generate text: it can make embeddings and score texts"
        ):
            await api.chat.completions.create(model="minilm", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(
            openai.BadRequestError, match="maximum context length is 256 tokens, but input has 302 tokens"
        ):
            await api.embeddings.create(model="minilm", input="word " * 300)
        cut = await api.embeddings.create(
            model="minilm", input="word " * 300, extra_body={"truncate_prompt_tokens": -1}
        )
        whole = await api.embeddings.create(model="minilm", input="word " * 254)
        assert cut.usage.prompt_tokens == whole.usage.prompt_tokens == 256
        assert max(abs(a - b) for a, b in zip(cut.data[0].embedding, whole.data[0].embedding, strict=True)) < 2e-6


async def test_rankings_and_scores(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        texts = {one["text"]: numbers_of(one) for one in EXPECTED}
        query = "What is the capital of France?"
        documents = ["Bananas are rich in potassium.", "This is an example sentence", "The capital of France is Paris."]
        cosines = [sum(a * b for a, b in zip(texts[query], texts[text], strict=True)) for text in documents]
        answer = (await http.post("/v1/rerank", json={"query": query, "documents": documents, "top_n": 2})).json()
        best, second = answer["results"]
        assert best["index"] == 2 and best["document"] == {"text": documents[2]}
        assert abs(best["relevance_score"] - cosines[2]) < 2e-6 and cosines[2] > 0.8
        assert second["relevance_score"] == pytest.approx(max(cosines[:2]), abs=2e-6)
        answer = (await http.post("/v1/score", json={"text_1": query, "text_2": documents})).json()
        assert [one["score"] for one in answer["data"]] == pytest.approx(cosines, abs=2e-6)
        page = (await http.get("/metrics")).text
        assert 'quire_requests_finished_total{finish_reason="stop",model_name="minilm"} ' in page
        assert 'pooling="mean"' in page


async def test_a_client_that_leaves_is_aborted(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        texts = ["word " * 250] * 300
        with pytest.raises(httpx.ReadTimeout):
            await http.post("/v1/embeddings", json={"input": texts}, timeout=httpx.Timeout(120, read=0.5))
        async with asyncio.timeout(60):
            while (await http.get("/load")).json()["server_load"]:
                pass
        [embedded] = (await http.post("/v1/embeddings", json={"input": EXPECTED[0]["text"]})).json()["data"]
        assert_near(embedded["embedding"], EXPECTED[0])
