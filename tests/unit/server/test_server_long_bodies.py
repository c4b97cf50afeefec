"""Long bodies hold nobody up: whatever is in them and however many come at once, the event loop has its turn about as soon as while the most
costly body that there may be is read, which is one call that nothing can interrupt."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import scripted_engine
from live_server import Live, live_server
from quire.server.anthropic.body import MessagesBody
from quire.server.bodies.amount import MAX_OBJECTS, MAX_TEXTS, MAX_VALUES
from quire.server.openai.bodies import ChatBody
from quire.server.openai.responses.body import ResponsesBody
from quire.text.tool_use import in_words
from scripted_engine import ScriptedEngine
from server_process import process

CHUNK = 256 << 10
AT_ONCE = 4
ATTEMPTS = 5
"""On a busy machine the loop's thread waits for a CPU too; what holds the loop up does so each time."""
MAX_MODEL_LEN = 20_000
CONVERSATION = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> tuple[str, bytes]:
    return "/v1/chat/completions", json.dumps({"messages": CONVERSATION, "max_tokens": 1, **fields}).encode()


def completion(**fields: Any) -> tuple[str, bytes]:
    return "/v1/completions", json.dumps({"prompt": "hi", "max_tokens": 1, **fields}).encode()


MOST = chat(messages=[{"role": "user", "content": "a"}] * (MAX_TEXTS // 4 - 10))
"""As many messages as are read."""
SCHEMA = {"type": "object", "properties": {f"name {i}": {"type": "string"} for i in range(20_000)}}
CASES: Mapping[str, tuple[tuple[str, bytes], int]] = {
    "the most messages": (MOST, 400),
    "the most lists": (completion(metadata=[[]] * (MAX_OBJECTS - 10)), 200),
    "one long text": (chat(messages=[{"role": "user", "content": "word " * 3_000_000}]), 400),
    "messages that are none": (chat(messages=[5] * (MAX_VALUES - 10)), 400),
    "prompts of both kinds": (completion(prompt=["a"] + [5] * (MAX_VALUES - 10)), 400),
    "a bias that is none": (chat(logit_bias=dict.fromkeys(map(str, range(MAX_TEXTS // 2 - 10)), "b")), 400),
    "many stop tokens": (chat(stop_token_ids=[5] * (MAX_VALUES - 10)), 400),
    "many allowed tokens": (chat(allowed_token_ids=[5] * (MAX_VALUES - 10)), 400),
    "a large schema": (chat(response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}), 200),
    "many prompts": (completion(prompt=["hello world " * 1600] * 128), 200),
    "tools that are none": (chat(tools=[{"type": "x"}] * (MAX_OBJECTS - 10)), 400),
}


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_server(tmp_path, ScriptedEngine(max_model_len=MAX_MODEL_LEN)) as live:
        yield live


async def post(port: int, path: str, data: bytes) -> int:
    """The status. Written in chunks, so that it is not the client that holds the loop up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode())
    for start in range(0, len(data), CHUNK):
        writer.write(data[start : start + CHUNK])
        await writer.drain()
    answer = await reader.read(-1)
    writer.close()
    return int(answer.split(b" ", 2)[1])


@contextmanager
def no_collection() -> Iterator[None]:
    """The garbage collector's share grows with what the tests before have left."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def longest_turn(work: Awaitable[Any], clock: Callable[[], float]) -> tuple[Any, float]:
    """The result, and how far `clock` went at the most between two turns of the event loop."""
    task, longest, before = asyncio.ensure_future(work), 0.0, clock()
    while not task.done():
        await asyncio.sleep(0.001)
        now = clock()
        longest, before = max(longest, now - before), now
    return await task, longest


def reading_s() -> float:
    """CPU time of reading the most costly body."""
    before = time.thread_time()
    ChatBody.model_validate_json(MOST[1])
    return time.thread_time() - before


@pytest.mark.parametrize("case", CASES)
async def test_the_loop_does_no_long_work_itself(live: Live, case: str) -> None:
    """CPU time of the loop's own thread: what other threads and processes do meanwhile is not in it."""
    (path, data), status = CASES[case]
    port = live.http.base_url.port
    assert port is not None
    ratios: list[float] = []
    while not ratios or (min(ratios) >= 1 and len(ratios) < ATTEMPTS):
        with no_collection():
            found, held_s = await longest_turn(post(port, path, data), time.thread_time)
            ratios.append(held_s / reading_s())
        assert found == status
    assert min(ratios) < 1, ratios


async def test_the_loop_does_not_write_what_is_said_of_many_tokens(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        scripted_engine, "logprobs_of", cache(scripted_engine.logprobs_of)
    )  # the engine has the same loop here
    path, data = completion(prompt=[[5] * 3_000] * 8, prompt_logprobs=20)
    port = live.http.base_url.port
    assert port is not None
    ratios: list[float] = []
    while not ratios or (min(ratios) >= 1 and len(ratios) < ATTEMPTS):
        with no_collection():
            found, held_s = await longest_turn(post(port, path, data), time.thread_time)
            ratios.append(held_s / reading_s())
        assert found == 200
    assert min(ratios) < 1, ratios


@pytest.mark.timing
@pytest.mark.parametrize("case", CASES)
async def test_the_loop_has_its_turn(live: Live, case: str) -> None:
    """CPU time of all threads, for one that has the interpreter's lock holds the loop up too."""
    (path, data), status = CASES[case]
    port = live.http.base_url.port
    assert port is not None
    ratios: list[float] = []
    while not ratios or (min(ratios) >= 3 and len(ratios) < ATTEMPTS):
        work = asyncio.gather(*(post(port, path, data) for _ in range(AT_ONCE)))
        found, held_s = await longest_turn(work, time.process_time)
        assert found == [status] * AT_ONCE
        ratios.append(held_s / reading_s())
    assert min(ratios) < 3, ratios


async def test_memory_of_long_bodies_goes_back(tmp_path: Path) -> None:
    path, data = chat(messages=[{"role": "user", "content": "a" * 280}] * (MAX_TEXTS // 4 - 10))
    async with process(tmp_path) as running:
        await running.line("curl")
        before = memory_bytes(running.handle.pid)
        for _ in range(6):
            await asyncio.gather(*(post(running.port, path, data) for _ in range(6)))
        left = memory_bytes(running.handle.pid) - before
        assert left < 9 * len(data), f"{left >> 20} MiB"


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_many_parts_are_joined_in_one_go() -> None:
    """Each as long as the whole so far would be hours: one 20 times as long takes about 20 times the time."""

    def blocks(number: int) -> None:
        content = [{"type": "text", "text": "x" * 300}] * number
        MessagesBody.model_validate({"messages": [{"role": "user", "content": content}], "max_tokens": 1}).turns()

    def calls(number: int) -> None:
        item = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
        ResponsesBody.model_validate({"input": [item] * number}).turns()

    def results(number: int) -> None:
        in_words([{"role": "tool", "content": "x" * 300}] * number)

    for work in (blocks, calls, results):
        few, many = (min(_cpu_s(work, number) for _ in range(3)) for number in (2_000, 40_000))
        assert many < 20 * few * 4, work.__name__


def _cpu_s(work: Callable[[int], None], number: int) -> float:
    with no_collection():
        before = time.thread_time()
        work(number)
        return time.thread_time() - before
