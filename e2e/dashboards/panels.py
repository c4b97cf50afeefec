"""What the dashboard of engines shows: rows of panels, each with its queries. Data only, so that tests can run every query.

`cluster_panels` is the same of router and operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["timeseries", "stat", "table"]

WHOLE, HALF, THIRD, QUARTER = 24, 12, 8, 6
"""Widths, in columns of Grafana's grid."""

SELECTED = 'model_name=~"$model",instance=~"$instance"'


@dataclass(frozen=True)
class Query:
    """text: PromQL with Grafana's variables. legend: Grafana's template; labels in {{ }}."""

    text: str
    legend: str = "{{instance}}"


@dataclass(frozen=True)
class Panel:
    """unit: as Grafana calls it. meaning: shown to who asks. most: the end of the axis, where there is one. steps: from which values on it is
    yellow and red."""

    title: str
    meaning: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = THIRD
    most: float | None = None
    steps: tuple[float, float] | None = None
    stacked: bool = False


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def _gauge(name: str) -> str:
    return f"quire_{name}{{{SELECTED}}}"


def _rate(name: str, *by: str, more: str = "") -> str:
    selected = ",".join(filter(None, [SELECTED, more]))
    return f"sum by ({', '.join(by)}) (rate(quire_{name}{{{selected}}}[$__rate_interval]))"


def _quantile(share: float, name: str) -> str:
    return f"histogram_quantile({share}, sum by (le) (rate(quire_{name}_bucket{{{SELECTED}}}[$__rate_interval])))"


def _quantiles(name: str, *shares: float) -> tuple[Query, ...]:
    return tuple(Query(_quantile(share, name), f"p{share * 100:g}") for share in shares or (0.5, 0.95, 0.99))


def _mean(name: str, legend: str) -> Query:
    of = f"{{{SELECTED}}}[$__rate_interval]"
    return Query(f"sum(rate(quire_{name}_sum{of})) / sum(rate(quire_{name}_count{of}))", legend)


NOW = Row(
    "Now",
    (
        Panel(
            "Running",
            "Requests that hold KV blocks and are in the running set.",
            "short",
            (Query(f"sum({_gauge('num_requests_executing')})", ""),),
            kind="stat",
            width=4,
        ),
        Panel(
            "Waiting",
            "Requests waiting to be scheduled.",
            "short",
            (Query(f"sum({_gauge('scheduler_queue_size')})", ""),),
            kind="stat",
            width=4,
            steps=(1, 16),
        ),
        Panel(
            "KV cache, fullest",
            "KV blocks that live requests hold, of all blocks, where it is most.",
            "percentunit",
            (Query(f"max({_gauge('gpu_cache_usage')})", ""),),
            kind="stat",
            width=4,
            most=1,
            steps=(0.8, 0.95),
        ),
        Panel(
            "Generated",
            "Tokens of answers, of all engines together.",
            "tokens/s",
            (Query(f"sum({_gauge('avg_generation_throughput')})", ""),),
            kind="stat",
            width=4,
        ),
        Panel(
            "TTFT p95",
            "Arrival of a request to its first token, measured in the server.",
            "s",
            (Query(_quantile(0.95, "time_to_first_token_seconds"), ""),),
            kind="stat",
            width=4,
            steps=(1, 2.5),
        ),
        Panel(
            "Engines",
            "Engines that were scraped.",
            "short",
            (Query(f"count({_gauge('engine_info')})", ""),),
            kind="stat",
            width=4,
        ),
    ),
)

LATENCY = Row(
    "Latency",
    (
        Panel("Time to first token", "Arrival to first token.", "s", _quantiles("time_to_first_token_seconds")),
        Panel(
            "Inter-token latency", "Between two tokens of an answer.", "s", _quantiles("inter_token_latency_seconds")
        ),
        Panel("Request duration", "Arrival to last token.", "s", _quantiles("request_duration_seconds")),
        Panel(
            "Where the time goes",
            "Means of the three parts of a request: waiting, until the first token, until the last one.",
            "s",
            (
                _mean("request_queue_time_seconds", "queue"),
                _mean("request_prefill_time_seconds", "prefill"),
                _mean("request_decode_time_seconds", "decode"),
            ),
            stacked=True,
        ),
        Panel("Queue time", "Arrival to first scheduling.", "s", _quantiles("request_queue_time_seconds")),
        Panel(
            "Time per output token",
            "Mean time between the tokens of an answer, over answers.",
            "s",
            _quantiles("request_time_per_output_token_seconds"),
        ),
    ),
)

THROUGHPUT = Row(
    "Throughput",
    (
        Panel(
            "Tokens",
            "Prompt tokens of requests that were scheduled, and generated ones.",
            "tokens/s",
            (Query(_rate("prompt_tokens_total"), "prompt"), Query(_rate("generation_tokens_total"), "generated")),
        ),
        Panel(
            "Requests",
            "Sequences that ended, by why. abort is a client that left.",
            "reqps",
            (Query(_rate("requests_finished_total", "finish_reason"), "{{finish_reason}}"),),
            stacked=True,
        ),
        Panel(
            "Dropped",
            "Requests refused for lack of room or by a limit, by why.",
            "reqps",
            (Query(_rate("dropped_requests_total", "reason"), "{{reason}}"),),
            stacked=True,
        ),
        Panel("Running", "Requests in the running set.", "short", (Query(_gauge("num_requests_executing")),)),
        Panel("Waiting", "Requests waiting to be scheduled.", "short", (Query(_gauge("scheduler_queue_size")),)),
        Panel(
            "Lengths",
            "Tokens of prompts and of answers, medians and p95.",
            "short",
            (
                Query(_quantile(0.5, "request_prompt_tokens"), "prompt p50"),
                Query(_quantile(0.95, "request_prompt_tokens"), "prompt p95"),
                Query(_quantile(0.5, "request_generation_tokens"), "answer p50"),
                Query(_quantile(0.95, "request_generation_tokens"), "answer p95"),
            ),
        ),
    ),
)

CACHE = Row(
    "KV cache",
    (
        Panel(
            "Usage",
            "KV blocks that live requests hold, of all blocks. Near 1 requests wait or are preempted.",
            "percentunit",
            (Query(_gauge("gpu_cache_usage")),),
            most=1,
            steps=(0.8, 0.95),
        ),
        Panel(
            "Prefix cache hits",
            "Prompt tokens that were found in the prefix cache, of those looked up.",
            "percentunit",
            (Query(f"{_rate('prefix_cache_hits_total')} / {_rate('prefix_cache_queries_total')}", "hits"),),
            most=1,
        ),
        Panel(
            "Preemptions",
            "Running requests that were put back for lack of blocks.",
            "ops",
            (Query(_rate("preemptions_total", "mode"), "{{mode}}"),),
        ),
        Panel("Swapped", "Requests in the host pool.", "short", (Query(_gauge("num_requests_swapped")),)),
        Panel(
            "Host pool usage",
            "Blocks of the host pool in use; only with --swap-space.",
            "percentunit",
            (Query(_gauge("cpu_cache_usage")),),
            most=1,
        ),
        Panel(
            "Utilization of blocks",
            "Tokens held, of the token slots of blocks in use.",
            "percentunit",
            (Query(_gauge("kv_cache_utilization")),),
            most=1,
        ),
    ),
)

ENGINE = Row(
    "Engine",
    (
        Panel("Step", "Duration of one step.", "ms", _quantiles("batch_inference_latency_ms")),
        Panel(
            "Step size",
            "Means: sequences in a step, and tokens computed in it.",
            "short",
            (_mean("batch_size", "sequences"), _mean("step_tokens", "tokens")),
        ),
        Panel(
            "Last sign of life",
            "Age of the last report of the step loop, which comes once a second also while it is idle.",
            "s",
            (Query(f"time() - {_gauge('last_step_timestamp_seconds')}"),),
            steps=(10, 30),
        ),
        Panel(
            "Structured output",
            "p95 of what a grammar takes: to compile it, and what steps wait for its masks.",
            "s",
            (
                Query(_quantile(0.95, "grammar_compile_seconds"), "compile"),
                Query(_quantile(0.95, "grammar_mask_seconds"), "masks"),
            ),
        ),
        Panel(
            "Faults",
            "Grammars that failed, and faults of the KV cache's bookkeeping, which are bugs.",
            "ops",
            (
                Query(_rate("grammar_failures_total", "reason"), "grammar: {{reason}}"),
                Query(_rate("kv_cache_faults_total"), "KV cache"),
            ),
        ),
        Panel(
            "Start",
            "Seconds of each stage of the start.",
            "s",
            (Query(_gauge("startup_seconds"), "{{instance}} {{stage}}"),),
        ),
        Panel(
            "Configuration",
            "What each engine came up with.",
            "short",
            (Query(_gauge("engine_info")),),
            kind="table",
            width=WHOLE,
        ),
    ),
)

ROWS = (NOW, LATENCY, THROUGHPUT, CACHE, ENGINE)
