"""The metrics of the engine as `/metrics` shows them (names and meanings: docs/server.md).

Fed by the server from step statistics and from requests; nothing else may write to it and nothing here may ever fail a
request: counters only go up, a total that falls is ignored. What is not known yet, or does not exist on this device, is
absent, never zero. One registry per server, so that several may live in one process (tests).
"""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, ParamSpec

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import ALLOWUTF8

from quire.metrics import buckets
from quire.metrics.vllm import Beside
from quire.request import EngineReady, GrammarStats, StepStats
from quire.structured import Reason

_log = logging.getLogger(__name__)

THROUGHPUT_WINDOW_S = 10.0

Given = ParamSpec("Given")


def _harmless(record: Callable[Given, None]) -> Callable[Given, None]:
    """A recording that fails is logged, and reaches nobody."""

    @functools.wraps(record)
    def recorded(*args: Given.args, **kwargs: Given.kwargs) -> None:
        try:
            record(*args, **kwargs)
        except Exception:  # noqa: BLE001  (whatever a metrics library says of a number)
            _log.exception("a metric could not be recorded")

    return recorded


prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class _Window:
    """Events per second over the last `THROUGHPUT_WINDOW_S` seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, count: int) -> None:
        if count > 0:
            self._events.append((self._clock(), count))
            self._sum += count
        self._forget()

    def rate(self) -> float:
        self._forget()
        return self._sum / THROUGHPUT_WINDOW_S

    def _forget(self) -> None:
        oldest = self._clock() - THROUGHPUT_WINDOW_S
        while self._events and self._events[0][0] < oldest:
            self._sum -= self._events.popleft()[1]


class EngineMetrics:
    """All metrics of one served model. namespace: the prefix of all names. compat: under whose names they are shown as well."""

    def __init__(
        self,
        model_name: str,
        *,
        namespace: str = "quire",
        compat: Literal["none", "vllm"] = "none",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry = CollectorRegistry()
        self._shown = Beside(self.registry, namespace) if compat == "vllm" else self.registry
        self._model = model_name
        self._namespace = namespace
        self._clock = clock
        self._totals: dict[tuple[str, str], int] = {}
        self._prompt_window, self._generation_window = _Window(clock), _Window(clock)

        self._queue = self._gauge("scheduler_queue_size", "requests waiting to be scheduled")
        self._running = self._gauge("num_requests_executing", "requests that hold KV blocks and are in the running set")
        self._swapped = self._gauge("num_requests_swapped", "requests swapped to the host pool")
        self._cache = self._gauge("gpu_cache_usage", "KV blocks in use by live requests / blocks in the pool, 0..1")
        self._late: dict[str, Gauge] = {}  # of what not every engine has: made with the first report of it
        self._utilization = self._gauge(
            "kv_cache_utilization", "tokens held / token slots of the KV blocks in use, 0..1; 1 while none is in use"
        )
        self._prompt_rate = self._gauge("avg_prompt_throughput", "prompt tokens computed per second, last 10 s")
        self._generation_rate = self._gauge("avg_generation_throughput", "tokens generated per second, last 10 s")
        self._startup = self._gauge("startup_seconds", "seconds that each stage of the start took", "stage")
        self._heartbeat = self._gauge("last_step_timestamp_seconds", "last sign of life of the step loop, Unix time")

        self._grammars = self._gauge("num_grammars", "grammars of structured outputs that have a process")

        self._batch = self._histogram("batch_size", "sequences in a step", buckets.SEQUENCES)
        self._step_tokens = self._histogram(
            "step_tokens", "tokens computed in a step, of prompts and answers", buckets.STEP_TOKENS
        )
        self._step_ms = self._histogram(
            "batch_inference_latency_ms", "duration of one engine step, ms", buckets.STEP_MS
        )
        self._compile_s = self._histogram("grammar_compile_seconds", "duration of one compilation", buckets.COMPILE_S)
        self._mask_s = self._histogram(
            "grammar_mask_seconds", "how long one step waited for masks of grammars", buckets.MASK_S
        )
        self.duration = self._histogram("request_duration_seconds", "arrival to last token", buckets.DURATION_S)
        self.queue_time = self._histogram(
            "request_queue_time_seconds", "arrival to first scheduling", buckets.DURATION_S
        )
        self.prefill_time = self._histogram(
            "request_prefill_time_seconds", "first scheduling to first token", buckets.DURATION_S
        )
        self.decode_time = self._histogram(
            "request_decode_time_seconds", "first token to last token", buckets.DURATION_S
        )
        self.inference_time = self._histogram(
            "request_inference_time_seconds", "first scheduling to last token", buckets.DURATION_S
        )
        self.tpot = self._histogram(
            "request_time_per_output_token_seconds",
            "mean time between the tokens of an answer",
            buckets.TOKEN_TIME_S,
        )
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "arrival to first token, in the server", buckets.LATENCY_S
        )
        self.itl = self._histogram(
            "inter_token_latency_seconds", "time between tokens, in the server", buckets.TOKEN_TIME_S
        )
        self.prompt_length = self._histogram("request_prompt_tokens", "prompt lengths", buckets.TOKENS)
        self.generation_length = self._histogram("request_generation_tokens", "lengths of answers", buckets.TOKENS)

        self.prompt_tokens = self._counter("prompt_tokens", "prompt tokens of requests that were scheduled")
        self.generation_tokens = self._counter("generation_tokens", "tokens generated")
        self._prefix_queries = self._counter("prefix_cache_queries", "prompt tokens looked up in the prefix cache")
        self._prefix_hits = self._counter("prefix_cache_hits", "prompt tokens found in the prefix cache")
        self._preemptions = self._counter("preemptions", "running requests put back", "mode")
        self._faults = self._counter(
            "kv_cache_faults", "faults of the KV cache's bookkeeping, found when idle and healed"
        )
        self._compilations = self._counter("grammar_compilations", "grammars that were compiled, failed ones included")
        self._grammar_failures = self._counter(
            "grammar_failures", "grammars of no use, and sequences that theirs failed alone", "reason"
        )
        self._finished = self._counter(
            "requests_finished",
            "sequences by why they ended (refused: the request was at fault; error: it was not)",
            "finish_reason",
        )
        self._dropped = self._counter("dropped_requests", "requests refused for lack of room", "reason")

    def ready(self, engine: EngineReady, labels: Mapping[str, str]) -> None:
        """The engine is up: its configuration, the stages of its start, and everything that begins at zero."""
        info = {"model_name": self._model, **labels, **engine.info}
        Gauge(
            f"{self._namespace}_engine_info", "configuration as it came out", list(info), registry=self.registry
        ).labels(**info).set(1)
        for stage, seconds in engine.startup_s.items():
            self.startup(stage, seconds)
        for gauge in (self._queue, self._running, self._swapped, self._cache, self._grammars):
            self._bound(gauge).set(0)
        self._bound(self._prompt_rate).set_function(self._prompt_window.rate)
        self._bound(self._generation_rate).set_function(self._generation_window.rate)
        for metric in (
            self._batch,
            self._step_tokens,
            self._step_ms,
            self.duration,
            self.queue_time,
            self.prefill_time,
            self.decode_time,
            self.inference_time,
            self.tpot,
            self.ttft,
            self.itl,
            self.prompt_length,
            self.generation_length,
            self.prompt_tokens,
            self.generation_tokens,
            self._prefix_queries,
            self._prefix_hits,
            self._faults,
            self._compilations,
            self._compile_s,
            self._mask_s,
        ):
            self._bound(metric)
        for mode in ("recompute", "swap"):
            self._bound(self._preemptions, mode=mode)
        for cause in Reason:
            self._bound(self._grammar_failures, reason=cause.value)
        for reason in ("stop", "length", "abort", "error", "refused"):
            self._bound(self._finished, finish_reason=reason)
        for reason in ("queue_full", "queue_timeout", "draining", "rate_limit", "bodies_full"):
            self._bound(self._dropped, reason=reason)

    def startup(self, stage: str, seconds: float) -> None:
        self._bound(self._startup, stage=stage).set(seconds)

    @_harmless
    def step(self, stats: StepStats) -> None:
        """One report of the engine, with or without a step."""
        self._bound(self._queue).set(stats.num_waiting)
        self._bound(self._running).set(stats.num_running)
        self._bound(self._swapped).set(stats.num_swapped)
        self._bound(self._cache).set(stats.num_blocks_used / max(stats.num_blocks, 1))
        self._bound(self._utilization).set(stats.kv_utilization)
        if stats.num_swap_blocks:
            text = "blocks of the host swap pool in use / blocks in it, 0..1"
            self._set_late("cpu_cache_usage", text, stats.num_swap_blocks_used / stats.num_swap_blocks)
        if stats.device_busy is not None:
            self._set_late("gpu_utilization", "share of time in which the GPU is busy, 0..1", stats.device_busy)
        if stats.device_memory is not None:
            self._set_late("gpu_mem_util", "memory of the GPU in use, by whomever, 0..1", stats.device_memory)
        self._follow(self._faults, stats.kv_faults)
        if stats.grammars is not None:
            self._step_grammars(stats.grammars)
        self._bound(self._heartbeat).set(time.time() - (self._clock() - stats.heartbeat_s))
        if stats.batch_size:
            self._bound(self._batch).observe(stats.batch_size)
            self._bound(self._step_ms).observe(stats.step_s * 1000.0)
            self._bound(self._step_tokens).observe(stats.num_prompt_tokens + stats.num_generated_tokens)
        self._prompt_window.add(stats.num_prompt_tokens)
        self._generation_window.add(stats.num_generated_tokens)
        self._follow(self._prefix_queries, stats.prefix_cache_queries)
        self._follow(self._prefix_hits, stats.prefix_cache_hits)
        self._follow(self._preemptions, stats.preemptions_recompute, mode="recompute")
        self._follow(self._preemptions, stats.preemptions_swap, mode="swap")

    def _step_grammars(self, stats: GrammarStats) -> None:
        self._bound(self._grammars).set(stats.num_live)
        self._follow(self._compilations, stats.num_compilations)
        for reason, total in stats.failures.items():
            self._follow(self._grammar_failures, total, reason=reason)
        for histogram, values in ((self._compile_s, stats.compile_s), (self._mask_s, stats.mask_s)):
            for value in values:
                self.observe(histogram, value)

    @_harmless
    def finished(self, reason: str) -> None:
        self._bound(self._finished, finish_reason=reason).inc()

    @_harmless
    def dropped(self, reason: str) -> None:
        self._bound(self._dropped, reason=reason).inc()

    @_harmless
    def observe(self, histogram: Histogram, value: float) -> None:
        self._bound(histogram).observe(max(value, 0.0))

    @_harmless
    def count(self, counter: Counter, amount: int) -> None:
        if amount > 0:
            self._bound(counter).inc(amount)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, Prometheus text or OpenMetrics by what the scraper accepts."""
        encode, content_type = choose_encoder(accept)
        # Every name here is an old one that needs no escaping; the client would make vllm:x vllm_x.
        return encode(self._shown, escaping=ALLOWUTF8), content_type  # type: ignore[call-arg]

    def _set_late(self, name: str, text: str, value: float) -> None:
        if name not in self._late:
            self._late[name] = self._gauge(name, text)
        self._bound(self._late[name]).set(value)

    def _follow(self, counter: Counter, total: int, **labels: str) -> None:
        key = (str(counter), "".join(labels.values()))
        increase = total - self._totals.get(key, 0)
        if increase > 0:
            self._totals[key] = total
            self._bound(counter, **labels).inc(increase)

    def _bound(self, metric: Any, **labels: str) -> Any:
        return metric.labels(model_name=self._model, **labels)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{self._namespace}_{name}", text, ["model_name", *labels], registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{self._namespace}_{name}", text, ["model_name", *labels], registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"{self._namespace}_{name}", text, ["model_name"], registry=self.registry, buckets=buckets)
