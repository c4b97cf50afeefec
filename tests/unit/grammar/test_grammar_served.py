"""Structured outputs through the whole stack, engine process included: what clients and programs see when a grammar fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from live_server import Live, events_of, live_server
from quire import LLM, AsyncEngineArgs, AsyncLLMEngine, SamplingParams, StructuredOutputsParams
from quire.config import EngineConfig
from quire.engine.client import EngineClient
from quire.errors import RequestError
from quire_testing.structured import AMBIGUOUS, EXPLOSIVE

ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "cpu_threads": 1,
    "num_blocks": 256,
    "max_model_len": 512,
    "grammar_compile_timeout": 0.5,
    "grammar_token_timeout": 0.05,
}
SLOW = {"structured_outputs": {"grammar": AMBIGUOUS}, "min_tokens": 400, "max_tokens": 400, "seed": 1}
"""Fails in the middle of its answer."""
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> EngineClient:
    return await EngineClient.start(EngineConfig(model=str(folder), **ENGINE), log_level="warning")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(folder: Path, engine: EngineClient) -> AsyncIterator[Live]:
    async with live_server(folder, engine) as server:  # type: ignore[arg-type]
        server.http.timeout = httpx.Timeout(250)
        yield server


served = pytest.mark.asyncio(loop_scope="module")


def check(error: dict[str, Any]) -> None:
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error",
        "structured_outputs",
        "invalid_value",
    )
    assert error["message"].startswith("structured_outputs: the grammar is too complex")


@served
async def test_a_grammar_that_fails_in_mid_answer_is_a_400_that_names_the_field(live: Live) -> None:
    slow, free = await asyncio.gather(live.chat(**SLOW), live.chat(max_tokens=20, seed=1))
    assert slow.status_code == 400
    check(slow.json()["error"])
    assert free.status_code == 200


@served
async def test_after_the_first_byte_it_is_an_error_event_with_the_same_content(live: Live) -> None:
    response = await live.chat(**SLOW, stream=True)
    first, *_, last = events_of(response.text)
    assert response.status_code == 200
    assert json.loads(first)["object"] == "chat.completion.chunk"
    assert last.startswith("error!")
    check(json.loads(last.removeprefix("error!"))["error"])
    assert "[DONE]" not in response.text


@served
async def test_all_at_once(live: Live) -> None:
    """Good ones, bad ones, exploding ones, families, streams, some that leave, and requests that know nothing of it."""
    good = {"structured_outputs": {"json": PERSON}, "max_tokens": 100}
    kinds: list[dict[str, Any]] = [
        good,
        good | {"n": 3},
        {"max_tokens": 12},
        {"structured_outputs": {"regex": "(["}},
        {"guided_json": EXPLOSIVE},
        SLOW,
        {"guided_regex": "[ab]{12}", "max_tokens": 40},
        {"response_format": {"type": "json_object"}, "max_tokens": 20},
    ]
    asked = [{**kinds[i % len(kinds)], "seed": i} for i in range(48)]
    tasks = [asyncio.create_task(live.chat(**fields)) for fields in asked]
    leaving = [asyncio.create_task(live.chat(**fields, stream=True)) for fields in (*kinds, *kinds)]
    await tasks[2]
    for task in leaving:
        task.cancel()
    answers = [await task for task in tasks]
    await asyncio.gather(*leaving, return_exceptions=True)
    for fields, answer in zip(asked, answers, strict=True):
        expected = 400 if "grammar" in str(fields) or "([" in str(fields) or "guided_json" in fields else 200
        assert answer.status_code == expected, answer.text
        if expected == 400:
            assert answer.json()["error"]["param"] in fields
            continue
        for choice in answer.json()["choices"]:
            text = choice["message"]["content"]
            if fields.get("structured_outputs") == {"json": PERSON} and choice["finish_reason"] == "stop":
                assert set(json.loads(text)) == {"name", "age"}
            if "guided_regex" in fields and choice["finish_reason"] == "stop":
                assert re.fullmatch("[ab]{12}", text)
    assert [len(a.json()["choices"]) for a in answers[1::8]] == [3] * 6
    assert (await live.chat(max_tokens=2)).status_code == 200
    stats = live.frontend.stats
    assert stats is not None
    assert live.frontend.num_in_flight == 0


@served
async def test_a_client_that_leaves_while_its_grammar_compiles_leaves_nothing_behind(live: Live) -> None:
    task = asyncio.create_task(live.chat(guided_json={**EXPLOSIVE, "title": "left"}))
    async with asyncio.timeout(100):
        while live.frontend.stats is None or live.frontend.stats.num_waiting != 1:
            assert (await live.chat(max_tokens=1)).status_code == 200
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(100):
        while live.frontend.stats.num_waiting or live.frontend.num_in_flight:
            assert (await live.chat(max_tokens=1)).status_code == 200


@served
async def test_figures_reach_the_metrics_page(live: Live) -> None:
    assert (await live.chat(structured_outputs={"json": PERSON}, max_tokens=5)).status_code == 200
    assert (await live.chat(structured_outputs={"regex": "(["})).status_code == 400
    assert (await live.metric("quire_num_grammars") or 0) >= 1
    assert (await live.metric('quire_grammar_failures_total{reason="invalid"}') or 0) >= 1
    compilations = await live.metric("quire_grammar_compilations_total")
    assert compilations == await live.metric("quire_grammar_compile_seconds_count")
    assert (await live.metric("quire_grammar_mask_seconds_count") or 0) >= 5


def workers_of(engine: EngineClient) -> list[int]:
    """Process ids of grammars' workers: the grandchildren of the engine's process."""

    def children(pid: int) -> list[int]:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    return [worker for nursery in children(engine.pid) for worker in children(nursery)]


@served
async def test_a_grammar_whose_process_is_killed_again_and_again_is_a_503_that_says_when_to_come_back(
    live: Live, engine: EngineClient
) -> None:
    asked = asyncio.create_task(live.chat(structured_outputs={"regex": "[ab]{400}"}, max_tokens=400, seed=1))
    async with asyncio.timeout(200):
        while not asked.done():
            for pid in workers_of(engine):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await live.http.get("/metrics")
    response = await asked
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (503, "overloaded_error", "try_again")
    assert response.headers["retry-after"] == "1"
    assert (await live.chat(structured_outputs={"regex": "[ab]{4}"}, max_tokens=40)).status_code == 200


SLOW_PARAMS = SamplingParams(
    seed=1, min_tokens=400, max_tokens=400, structured_outputs=StructuredOutputsParams(grammar=AMBIGUOUS)
)


async def test_the_async_engine_raises_it_for_that_request_only(folder: Path) -> None:
    args = AsyncEngineArgs(model=folder, **ENGINE)
    engine = await asyncio.to_thread(AsyncLLMEngine.from_engine_args, args)
    async with engine:

        async def last(params: SamplingParams) -> Any:
            async for output in engine.generate({"prompt_token_ids": [5, 6]}, params):
                if output.finished:
                    return output

        slow, free = await asyncio.gather(
            last(SLOW_PARAMS), last(SamplingParams(seed=1, max_tokens=30)), return_exceptions=True
        )
        assert isinstance(slow, RequestError)
        assert (slow.param, slow.status) == ("structured_outputs", 400)
        assert str(slow).startswith("structured_outputs: the grammar is too complex")
        assert free.outputs[0].finish_reason in ("stop", "length")


def test_offline_it_is_in_the_output_of_that_prompt(folder: Path) -> None:
    llm = LLM(folder, **ENGINE)
    prompts = [{"prompt_token_ids": [5, 6]}] * 2
    slow, free = llm.generate(prompts, [SLOW_PARAMS, SamplingParams(seed=1, max_tokens=30)], use_tqdm=False)
    assert slow.outputs[0].finish_reason == "error"
    assert (slow.outputs[0].error or "").startswith("structured_outputs: the grammar is too complex")
    assert slow.outputs[0].token_ids, "what there was"
    assert free.outputs[0].finish_reason in ("stop", "length")
    llm.llm_engine.core.gate._grammars.close()
