"""The real application on a real loopback socket, over a scripted engine, in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from quire.config import ServeConfig
from quire.errors import EngineDeadError
from quire.server.app import create_app
from quire.server.edge.access import Finished
from quire.server.edge.listener import uvicorn_config
from quire.server.edge.tls import tls_context
from quire.server.flight.frontend import Frontend
from quire.text import load_tokenizer
from scripted_engine import ScriptedEngine
from tiny_text import TEMPLATE, build_tokenizer, write_tokenizer

BACKEND = build_tokenizer()


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
"""What a model writes that calls a tool."""
THINKING = (
    "{% for m in messages %}{{ m.role }}:{% if m.reasoning_content is defined %}({{ m.reasoning_content }}){% endif %}"
    "{{ m.content }}\n{% endfor %}{% if enable_thinking is not defined or enable_thinking %}<think>\n{% else %}<think></think>{% endif %}"
)
"""A template of a model that thinks unless it is told not to."""


def ids_of(text: str) -> list[int]:
    return list(BACKEND.encode(text, add_special_tokens=False).ids)


@dataclass
class Live:
    """A running server."""

    url: str
    engine: ScriptedEngine
    frontend: Frontend
    http: httpx.AsyncClient
    server: uvicorn.Server

    async def chat(self, content: str = "hi", **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": "tiny", "prompt": prompt, **fields})

    def says(self, text: str) -> None:
        """Every answer from now on."""
        self.engine.reply = lambda _: ids_of(text)

    def prompt(self) -> str:
        """The last prompt that the engine got."""
        return self.frontend.tokenizer.decode(self.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)

    async def metric(self, line: str) -> float | None:
        """The value of a metric line, written as `name{labels}` without the model's label."""
        page = (
            (await self.http.get("/metrics")).text.replace('model_name="tiny",', "").replace(',model_name="tiny"', "")
        )
        for row in page.replace('{model_name="tiny"}', "").splitlines():
            if row.rpartition(" ")[0] == line:
                return float(row.rpartition(" ")[2])
        return None


@asynccontextmanager
async def live_server(
    folder: Path,
    engine: ScriptedEngine,
    *,
    attach: bool = True,
    clock: Callable[[], float] = time.monotonic,
    trace: Callable[[Finished], None] | None = None,
    template: str | None = TEMPLATE,
    **config: Any,
) -> AsyncIterator[Live]:
    """Serve until the block ends. attach: whether the engine is up. template: the model's chat template."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    fields = {"model": "tiny", "served_model_name": ("tiny", "alias"), "port": port, **config}
    frontend = Frontend(ServeConfig.model_validate(fields), clock=clock)
    if attach:
        frontend.attach(engine, load_tokenizer(write_tokenizer(folder, template=template), name="tiny"), {})
    try:
        server = uvicorn.Server(
            uvicorn_config(
                create_app(frontend, clock=clock, trace=trace),
                frontend.config,
                tls=tls_context(frontend.config, clock=clock),
            )
        )
    except BaseException:
        listener.close()
        raise
    server.capture_signals = _nothing  # type: ignore[assignment]
    serving = asyncio.create_task(server.serve([listener]))
    pump = asyncio.create_task(frontend.pump()) if attach else None
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=30) as http:
            yield Live(url, engine, frontend, http, server)
    finally:
        server.should_exit = True
        await serving
        await engine.close()
        if pump is not None:
            with suppress(EngineDeadError):
                await pump
        listener.close()


class _Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _nothing() -> _Nothing:
    return _Nothing()


def named_events(text: str) -> list[Any]:
    """The payloads of a stream whose events are named by the type that they have."""
    blocks = [block.splitlines() for block in text.strip().split("\n\n")]
    events = [json.loads(lines[1].removeprefix("data: ")) for lines in blocks]
    assert [lines[0] for lines in blocks] == [f"event: {event['type']}" for event in events]
    return events


def events_of(text: str) -> list[str]:
    """The payloads of a stream, comments left out; an error event is prefixed."""
    out = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith(":")]
        names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        if data:
            out.append((names[0] + "!" if names else "") + data[0])
    return out
