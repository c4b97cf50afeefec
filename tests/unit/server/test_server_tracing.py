"""Trace spans of requests: what they say, whose children they are, and a real exporter to a collector that answers, fails or is gone."""

from __future__ import annotations

import asyncio
import http.server
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from live_server import ids_of, live_server
from scripted_engine import ScriptedEngine
from threaded_server import served

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is an extra")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="its exporter too")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from quire.request import PoolingFacts
from quire.server.edge.tracing import Tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_span_for_each_request_that_the_engine_worked_on(tmp_path: Path) -> None:
    spans = InMemorySpanExporter()
    tracing = Tracing("http://unused", model=lambda: "tiny", processor=SimpleSpanProcessor(spans))
    engine = ScriptedEngine(lambda _: ids_of("answer-text"))
    async with live_server(tmp_path, engine, trace=tracing.record, api_key=("k",)) as live:
        live.http.headers["authorization"] = "Bearer k"
        await live.http.get("/health")
        await live.http.get("/v1/models")
        await live.chat("x", temperature=-1)
        headers = {"traceparent": PARENT, "x-request-id": "abc"}
        body = {"prompt": "prompt-text", "max_tokens": 50, "temperature": 0.5, "n": 2, "seed": 3, "top_k": 4}
        await live.http.post("/v1/completions", json=body, headers=headers)
        engine.hold()
        task = asyncio.create_task(live.chat("x", stream=True))
        await engine.until(lambda: len(engine.requests) == 3)
        engine.fail(engine.requests[2].request_id, "boom")
        await task
    first, second = spans.get_finished_spans()
    assert (first.name, second.name) == ("text_completion tiny", "chat tiny")
    assert first.parent is not None
    assert f"{first.parent.trace_id:032x}-{first.parent.span_id:016x}" == PARENT[3:-3]
    assert first.start_time < first.end_time
    told: dict[str, Any] = dict(first.attributes or {})
    assert told.pop("gen_ai.response.time_to_first_chunk") > 0
    assert told.pop("gen_ai.usage.input_tokens") >= len("prompt-text")
    assert told == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 4,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.seed": 3,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "gen_ai.usage.output_tokens": 24,
        "gen_ai.response.finish_reasons": ("stop", "stop"),
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/v1/completions",
        "quire.request_id": "abc",
        "quire.key": "key-1",
    }
    assert second.parent is None
    assert (second.status.is_ok, (second.attributes or {})["error.type"]) == (False, "500")
    assert "-text" not in str(told.values())


async def test_a_span_of_embeddings_says_nothing_of_drawing_tokens(tmp_path: Path) -> None:
    spans = InMemorySpanExporter()
    tracing = Tracing("http://unused", model=lambda: "tiny", processor=SimpleSpanProcessor(spans))
    facts = PoolingFacts(task="embed", size=1, normalised=False)
    async with live_server(tmp_path, ScriptedEngine(pool=lambda _: [1.0], facts=facts), trace=tracing.record) as live:
        await live.http.post("/v1/embeddings", json={"input": [[5, 6], [7]]}, headers={"x-request-id": "abc"})
    [span] = spans.get_finished_spans()
    assert span.name == "embeddings tiny"
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.response.finish_reasons": ("stop",),
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/v1/embeddings",
        "quire.request_id": "abc",
    }


@contextmanager
def collector(status: int) -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Address, and what came."""
    came: list[ExportTraceServiceRequest] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler) as url:
        yield f"{url}/v1/traces", came


@pytest.mark.parametrize("status", [200, 400])
async def test_the_exporter(tmp_path: Path, status: int) -> None:
    with collector(status) as (endpoint, came):
        tracing = Tracing(endpoint, model=lambda: "tiny")
        async with live_server(tmp_path, ScriptedEngine(lambda _: ids_of("a")), trace=tracing.record) as live:
            assert (await live.chat()).status_code == 200
        tracing.close()
    (request,) = came
    (resource,) = request.resource_spans
    assert {entry.key: entry.value.string_value for entry in resource.resource.attributes}["service.name"] == "quire"
    assert [span.name for span in resource.scope_spans[0].spans] == ["chat tiny"]
