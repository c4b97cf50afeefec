"""A trace span for each request that the engine worked on, sent by OTLP; the extra `quire[otel]`.

Attributes follow OpenTelemetry's semantic conventions for generative AI. Spans are made when a request is over, and sent by a thread of
the SDK: a collector that is gone or slow costs spans, never a request. Texts are in no span.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import quire
from quire.server.edge.access import Finished
from quire.server.flight.jobs import Job
from quire.server.flight.work import AnyWork

EXPORT_TIMEOUT_S = 5
MAX_QUEUED = 2048
OPERATIONS = {
    "/v1/completions": "text_completion",
    **dict.fromkeys(("/v1/embeddings", "/v1/score", "/v1/rerank"), "embeddings"),
}
"""Others are chats."""

Attribute = str | int | float | Sequence[str]


class Tracing:
    """See the module. endpoint: where an OTLP collector takes traces over HTTP. model: tells the name that is served, which is
    known when the model is loaded. processor: takes the spans in place of the collector."""

    def __init__(self, endpoint: str, *, model: Callable[[], str], processor: SpanProcessor | None = None) -> None:
        resource = Resource.create({"service.name": "quire", "service.version": quire.__version__})
        self._model = model
        self._provider = TracerProvider(resource=resource)
        if processor is None:
            exporter = OTLPSpanExporter(endpoint, timeout=EXPORT_TIMEOUT_S)
            processor = BatchSpanProcessor(exporter, max_queue_size=MAX_QUEUED)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("quire", quire.__version__)
        self._parent = TraceContextTextMapPropagator()

    def record(self, one: Finished) -> None:
        """The span of a request, below the one that its `traceparent` names."""
        if one.job is None:
            return
        model = self._model()
        attributes = _attributes(one, model)
        span = self._tracer.start_span(
            f"{attributes['gen_ai.operation.name']} {model}",
            context=self._parent.extract(one.headers),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=one.begin_ns,
        )
        if one.status >= 500 or "error" in one.finish_reasons:
            span.set_attribute("error.type", str(one.status) if one.status >= 400 else "error")
            span.set_status(Status(StatusCode.ERROR))
        span.end(one.begin_ns + int(one.duration_s * 1e9))

    def close(self) -> None:
        """Send what is left, as far as that goes in a few seconds."""
        self._provider.shutdown()


def _attributes(one: Finished, model: str) -> dict[str, Attribute]:
    assert one.job is not None
    usage = one.job.usage
    found: dict[str, Attribute | None] = {
        "gen_ai.operation.name": OPERATIONS.get(one.path, "chat"),
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        **_drawing(one.job),
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.response.finish_reasons": one.finish_reasons,
        "gen_ai.response.time_to_first_chunk": one.ttft_s,
        "http.request.method": one.method,
        "http.response.status_code": one.status,
        "url.path": one.path,
        "quire.request_id": one.request_id,
        "quire.key": one.key or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _drawing(job: AnyWork) -> dict[str, Attribute | None]:
    """What is only said where tokens are drawn."""
    if not isinstance(job, Job):
        return {}
    params = job.choices[0].params
    return {
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k or None,
        "gen_ai.request.choice.count": len(job.choices) if len(job.choices) > 1 else None,
        "gen_ai.request.seed": params.seed,
        "gen_ai.usage.output_tokens": job.usage.completion_tokens,
    }
