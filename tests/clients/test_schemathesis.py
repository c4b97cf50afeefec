"""schemathesis: bodies made from the OpenAPI document, good and bad ones. No answer is a 5xx, whatever is asked and whoever asks.

The same bodies every time; `make fuzz` draws new and more of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_environments import CLIENTS, python_of
from client_run import run_client
from embedded_server import embedded_server
from server_process import process

SEARCHING = os.environ.get("HYPOTHESIS_PROFILE") == "search"
MORE = 10
"""So many times the examples where new ones are searched."""
TIMEOUT_S = 600
"""Of one request: an answer may fill the window five times, on a machine that has other work. A server that hangs is told by its tests."""
KEY = "a-key-of-this-test"
GENERATION = ("/generate", "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
VECTORS = ("/detokenize", "/tokenize", "/v1/embeddings", "/v1/rerank", "/v1/score")

# `make fuzz` takes what is marked so
pytestmark = [pytest.mark.hypothesis, pytest.mark.timeout(7200 if SEARCHING else 900)]
with_model = pytest.mark.model


async def probe(
    url: str,
    folder: Path,
    *,
    examples: int,
    phases: str = "coverage,fuzzing",
    paths: Callable[[str], bool] = lambda _: True,
    key: str = "",
) -> dict[str, Any]:
    """Run schemathesis; what it reports. examples: bodies of its fuzzing for each operation; its coverage has one for each field and type of value."""
    python = await asyncio.to_thread(python_of, "schemathesis")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
        document = (await http.get("/openapi.json")).json()
        asked = sorted(filter(paths, document["paths"]))
        report = folder / "report.json"
        drawn = [f"--max-examples={examples * MORE}"] if SEARCHING else [f"--max-examples={examples}", "--seed=1"]
        await run_client(
            python, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks=not_a_server_error", "--mode=all",
            f"--phases={phases}", "--continue-on-failure", "--output-sanitize=false", "--generation-database=none", "--no-color",
            f"--request-timeout={TIMEOUT_S}", f"--report-json-path={report}",
            f"--include-path-regex=^({'|'.join(map(re.escape, asked))})$", *drawn,
            *(f"--header={name}: {value}" for name, value in headers.items()),
            folder=folder, SCHEMATHESIS_HOOKS=str(CLIENTS / "programs" / "schemathesis_hooks.py"),
        )  # fmt: skip
        found: dict[str, Any] = json.loads(report.read_text())
        operations = found["operations"]
        assert operations["tested"] == operations["selected"] == sum(len(document["paths"][path]) for path in asked)
        assert found["complete"] and not found["failures"] and not found["errors"], found
        load = (await http.get("/load")).json()
        assert (load["server_load"], load["running"]) == (0, 0), "nothing of it is left"
        page = (await http.get("/metrics")).text
        assert not re.findall(r'^\w+_requests_finished_total\{.*finish_reason="error".*\} [1-9].*', page, re.MULTILINE)
    return found


def accepted(found: dict[str, Any]) -> dict[str, int]:
    """For each operation, the requests that were answered and not refused."""
    return {
        label.split()[-1]: sum(rate["accepted"] for rate in phases.values())
        for label, phases in found["valid_rates"].items()
    }


async def test_nothing_that_is_asked_is_a_fault_of_the_server(tmp_path: Path) -> None:
    """All operations, by everybody, over an engine that answers at once."""
    async with process(tmp_path, log=tmp_path / "log") as server:
        await server.line("curl")
        found = await probe(f"http://127.0.0.1:{server.port}", tmp_path, examples=30)
        assert found["operations"]["tested"] > 12 and found["test_cases"]["generated"] > 1000
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log and not re.search(r'" 5\d\d ', log)


@with_model
async def test_nothing_that_is_asked_is_a_fault_of_the_engine(tmp_path: Path) -> None:
    """What generates, with a key, on the real engine: parameters of sampling, grammars, log probabilities in all mixtures."""
    flags = ("--max-model-len=256", "--kv-cache-memory=64Mi", "--dtype=float32", "--max-num-seqs=4", f"--api-key={KEY}")
    async with embedded_server(*flags) as server:
        async with httpx.AsyncClient(base_url=server.url) as http:
            assert (await http.get("/openapi.json")).status_code == 401
        found = await probe(
            server.url, tmp_path, examples=15, phases="fuzzing", paths=lambda path: path in GENERATION, key=KEY
        )
    assert set(accepted(found)) == set(GENERATION) and min(accepted(found).values()) > 0


@with_model
async def test_nothing_that_is_asked_is_a_fault_of_a_model_of_vectors(tmp_path: Path) -> None:
    async with embedded_server(model="minilm") as server:
        found = await probe(server.url, tmp_path, examples=30, paths=lambda path: path in VECTORS)
    assert set(accepted(found)) == set(VECTORS) and min(accepted(found).values()) > 0
