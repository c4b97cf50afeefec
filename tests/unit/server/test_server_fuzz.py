"""No body takes the server down: strange values in every field of every route, and bytes that are no JSON; never a 5xx."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from live_server import Live, ids_of, live_server
from quire.config import ServeConfig
from quire.request import PoolingFacts
from quire.server.app import create_app
from quire.server.bodies.reading import bodies_of
from quire.server.flight.frontend import Frontend
from quire.server.service import adapters
from scripted_engine import ScriptedEngine
from server_routes import routes_of

NUM_BODIES = 60
"""For each route."""

DEEP: Any = "x"
for _ in range(60):
    DEEP = [DEEP, {"a": DEEP if isinstance(DEEP, str) else 1}]
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 10**6, 2**31, 2**63, -(2**63), 10**40, 0.0, -0.5, 1e308, 1e-320, "", "x", "auto", "none", "required",
    "\u0000", "\ud83d\ude00" * 50, "\u202e", "<|im_start|>", "{{ 7*7 }}", "x" * 5000, [], [[]], {}, [None], ["x"], ["x", 1], [1, 2], [-1],
    [[1], ["x"]], [{}], {"a": None}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    {"type": "text"}, {"type": "function", "function": {"name": "f"}}, [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}], {"include_usage": True}, {"5": 1}, {"x": "y"}, DEEP,
    [{"role": "user", "content": "x"}], [{"role": "tool", "content": "x"}], [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
    [{"role": "user", "content": [{"type": "image_url"}]}], [{"role": "assistant", "tool_calls": [{}]}], [{"role": "assistant"}],
    [{"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}]}],
]  # fmt: skip
NOT_JSON = [
    b"", b"{", b"nul", b"\xff\xfe", b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": "\\ud800"}', b"[" * 100_000, b'{"a":' * 50_000,
    b'{"a": 1, "a": 2}', b"\x00" * 100, b'"x"', b"5" * 10_000, b"true",
]  # fmt: skip


POOLING: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": "hi"},
    "/v1/score": {"text_1": "hi", "text_2": ["you", "me"]},
    "/v1/rerank": {"query": "hi", "documents": ["you", {"text": "me"}]},
}
"""A body for each route of models that pool; they refuse the bodies of all others, and all others theirs."""
SERVED = {"generate": [], "embed": list(POOLING), "score": ["/v1/score", "/v1/rerank"]}


def engine_of(kind: str) -> ScriptedEngine:
    if kind == "generate":
        return ScriptedEngine(lambda _: ids_of("ok"))
    size = 1 if kind == "score" else 4
    return ScriptedEngine(pool=lambda _: [0.5] * size, facts=PoolingFacts(task=kind, size=size, normalised=True))  # type: ignore[arg-type]


def valid(path: str) -> dict[str, Any]:
    """A body that the route takes, as far as it is known here."""
    if path in POOLING:
        return dict(POOLING[path])
    if "chat" in path or "messages" in path:
        return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    if path.endswith("/responses"):
        return {"input": "hi", "max_output_tokens": 16}
    if path == "/detokenize":
        return {"tokens": [5]}
    return {"prompt": "hi", "max_tokens": 3} if path.startswith("/v1/") else {"prompt": "hi"}


async def post(live: Live, path: str, data: bytes) -> httpx.Response:
    async with asyncio.timeout(20):
        response = await live.http.post(path, content=data, headers={"content-type": "application/json"})
    shown = data[:300].decode(errors="replace")
    assert response.status_code < 500, f"{path}: {response.status_code} {response.text} for {shown}"
    assert "error!" not in response.text and "event: error" not in response.text, (
        f"{path}: {response.text[-300:]} for {shown}"
    )
    return response


@pytest.fixture
def posts() -> list[tuple[str, list[str]]]:
    """Path and fields of each route that takes a body: all of them, but those of adapters, which read none."""
    app = create_app(Frontend(ServeConfig()))
    found = dict(bodies_of(app.routes))
    posted = {route.path for route in routes_of(app.routes) if "POST" in (route.methods or ())}
    assert {*found, *adapters.PATHS} == posted and not found.keys() & set(adapters.PATHS)
    return [(path, [*model.model_fields, *model.REFUSED, "unknown"]) for path, model in found.items()]


@pytest.mark.parametrize("kind", SERVED)
async def test_no_body_is_a_fault_of_the_server(tmp_path: Path, posts: list[tuple[str, list[str]]], kind: str) -> None:
    chance = random.Random(7)
    served = SERVED[kind] or [path for path, _ in posts if path not in POOLING]
    assert set(POOLING) <= {path for path, _ in posts}
    async with live_server(tmp_path, engine_of(kind), max_body_size="1Mi") as live:
        for path, fields in posts:
            if path not in served:
                continue
            statuses: set[int] = set()
            for data in NOT_JSON:
                assert (await post(live, path, data)).status_code == 400
            for _ in range(NUM_BODIES):
                body = {} if chance.random() < 0.02 else valid(path)
                for name in chance.sample(fields, min(len(fields), chance.choice([1, 1, 1, 2, 4]))):
                    body[name] = chance.choice(VALUES)
                statuses.add((await post(live, path, json.dumps(body).encode())).status_code)
            assert 200 in statuses and 400 in statuses, f"{path} answers {statuses}"
        assert live.frontend.num_in_flight == 0
        assert (await live.http.post(served[0], json=valid(served[0]))).status_code == 200
        page = (await live.http.get("/metrics")).text
        assert not re.search(r'requests_finished_total\{.*finish_reason="error".*\} [1-9]', page)
