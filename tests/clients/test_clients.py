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

from client_environments import CLIENTS, environment, node_of, python_of
from embedded_server import embedded_server
from quire.models.source import resolve
from quire.text.gguf_vocab import from_gguf
from server_process import process

MODEL = "smollm2"
PROGRAMS = CLIENTS / "programs"
SCHEMATHESIS_S = 60

pytestmark = pytest.mark.asyncio(loop_scope="module")
with_model = pytest.mark.model


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    async with embedded_server("--max-model-len=1024", "--kv-cache-memory=256Mi", "--dtype=float32") as server:
        yield server.url


async def run(*command: str | Path, folder: Path | None = None) -> str:
    """What a program prints; it must end well."""
    handle = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=folder,
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await handle.communicate()
    finally:
        if handle.returncode is None:
            handle.kill()
            await handle.wait()
    assert handle.returncode == 0, f"{command[1]}: {out.decode()[-6000:]}"
    return out.decode()


@with_model
@pytest.mark.parametrize("name", ["langchain", "llama-index", "litellm"])
async def test_the_client_works_unchanged(url: str, name: str) -> None:
    python = await asyncio.to_thread(python_of, name)
    await run(python, PROGRAMS / f"{name.replace('-', '_')}_client.py", url, MODEL)


@with_model
async def test_the_official_javascript_client(url: str) -> None:
    node, folder = await asyncio.to_thread(node_of)
    await run(node, PROGRAMS / "openai.mjs", url, MODEL, folder=folder)


@with_model
async def test_lm_eval_scores_as_the_model_does(url: str, tmp_path: Path) -> None:
    """Its log likelihoods are those that echo tells, for the same boundary of prompt and continuation."""
    python = await asyncio.to_thread(python_of, "lm-eval")
    from_gguf(resolve(MODEL).path).backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"})
    )
    await run(python, PROGRAMS / "lm_eval_client.py", url, MODEL, tmp_path, tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["accuracy"] == 1
    assert "Paris" in found["said"][0] and len(found["said"]) == 3
    told = found["likelihoods"][0]
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        for answer, likelihood in zip((" Berlin", " Paris"), told, strict=True):
            body = {"prompt": "The capital of France is" + answer, "max_tokens": 0, "echo": True, "logprobs": 1}
            entry = (await http.post("/v1/completions", json=body)).json()["choices"][0]["logprobs"]
            assert entry["tokens"][-1] == answer
            assert likelihood == pytest.approx(entry["token_logprobs"][-1], abs=1e-4)


async def test_schemathesis_finds_no_fault_of_the_server(tmp_path: Path) -> None:
    """Bodies made from the OpenAPI document, good and bad ones: never a 5xx, and what the document promises."""
    python = await asyncio.to_thread(python_of, "schemathesis")
    async with process(tmp_path, log=tmp_path / "log") as server:
        await server.line("curl")
        document: dict[str, Any] = (await server.http.get("/openapi.json")).json()
        assert len(document["paths"]) > 12
        said = await run(
            python, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json",
            "--checks=not_a_server_error", "--mode=all", "--phases=coverage,fuzzing", "--max-examples=60", "--seed=1",
            "--generation-deterministic", "--generation-database=none", "--no-color", "--request-timeout=20",
            "--exclude-path=/docs", folder=tmp_path,
        )  # fmt: skip
        assert "not_a_server_error" in said or "passed" in said, said[-2000:]
        load = (await server.http.get("/load")).json()
        assert (load["server_load"], load["running"]) == (0, 0)
    assert "Traceback" not in (tmp_path / "log").read_text()
