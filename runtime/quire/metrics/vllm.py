"""The engine's metrics under vLLM's names as well, for dashboards, scaling rules and endpoint pickers that read those.

Nothing is measured here: when the page is made, families are told again under other names, with vLLM's label `engine` and what it calls
other labels. Names of several versions are there, since dashboards last longer than versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

ENGINE = {"engine": "0"}
_PREFIX = "vllm:"


@dataclass(frozen=True)
class Told:
    """How a family is told. names: in vLLM. labels: what it calls ours. without: a label over whose values is summed."""

    names: tuple[str, ...]
    labels: Mapping[str, str]
    without: str | None = None


def _told(*names: str, without: str | None = None, **labels: str) -> Told:
    return Told(names, labels, without)


FAMILIES: Mapping[str, Told] = {
    "num_requests_executing": _told("num_requests_running"),
    "scheduler_queue_size": _told("num_requests_waiting"),
    "num_requests_swapped": _told("num_requests_swapped"),
    "gpu_cache_usage": _told("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "cpu_cache_usage": _told("cpu_cache_usage_perc"),
    "avg_prompt_throughput": _told("avg_prompt_throughput_toks_per_s"),
    "avg_generation_throughput": _told("avg_generation_throughput_toks_per_s"),
    "prompt_tokens": _told("prompt_tokens"),
    "generation_tokens": _told("generation_tokens"),
    "prefix_cache_queries": _told("prefix_cache_queries", "gpu_prefix_cache_queries"),
    "prefix_cache_hits": _told("prefix_cache_hits", "gpu_prefix_cache_hits", "prompt_tokens_cached"),
    "preemptions": _told("num_preemptions", without="mode"),
    "requests_finished": _told("request_success", finish_reason="finished_reason"),
    "dropped_requests": _told("admission_rejections"),
    "time_to_first_token_seconds": _told("time_to_first_token_seconds"),
    "inter_token_latency_seconds": _told("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "request_time_per_output_token_seconds": _told("request_time_per_output_token_seconds"),
    "request_duration_seconds": _told("e2e_request_latency_seconds"),
    "request_queue_time_seconds": _told("request_queue_time_seconds"),
    "request_prefill_time_seconds": _told("request_prefill_time_seconds"),
    "request_decode_time_seconds": _told("request_decode_time_seconds"),
    "request_inference_time_seconds": _told("request_inference_time_seconds"),
    "request_prompt_tokens": _told("request_prompt_tokens"),
    "request_generation_tokens": _told("request_generation_tokens", "request_max_num_generation_tokens"),
    "step_tokens": _told("iteration_tokens_total"),
}
"""Our families, without the prefix."""

_CACHE_LABELS = {"block_size": "block_size", "num_blocks": "num_gpu_blocks", "kv_cache_dtype": "cache_dtype"}


class Beside(CollectorRegistry):
    """Everything of another registry, and behind it the same under vLLM's names."""

    def __init__(self, registry: CollectorRegistry, namespace: str) -> None:
        super().__init__()
        self._registry = registry
        self._prefix = f"{namespace}_"

    def collect(self) -> Iterator[Metric]:
        families = list(self._registry.collect())
        yield from families
        for family in families:
            name = family.name.removeprefix(self._prefix)
            if name == "engine_info":
                yield from _infos(family)
            elif (told := FAMILIES.get(name)) is not None:
                for other in told.names:
                    yield _again(family, told, other)


def _again(family: Metric, told: Told, name: str) -> Metric:
    """The family under another name, whose samples keep what follows the name (`_total`, `_bucket`, ...)."""
    again = Metric(_PREFIX + name, family.documentation, family.type)
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in family.samples:
        labels = {told.labels.get(key, key): value for key, value in sample.labels.items() if key != told.without}
        key = (_PREFIX + name + sample.name.removeprefix(family.name), tuple((labels | ENGINE).items()))
        sums[key] = sums.get(key, 0.0) + sample.value
    again.samples = [Sample(full, dict(labels), value) for (full, labels), value in sums.items()]
    return again


def _infos(family: Metric) -> Iterator[Metric]:
    """`cache_config_info`, and that no adapter is loaded."""
    for sample in family.samples:
        model = {"model_name": sample.labels["model_name"]}
        cache = Metric(f"{_PREFIX}cache_config_info", "configuration of the KV cache", "gauge")
        known = {theirs: sample.labels[ours] for ours, theirs in _CACHE_LABELS.items() if ours in sample.labels}
        cache.add_sample(cache.name, {**model, **known, **ENGINE}, 1.0)
        yield cache
        adapters = Metric(f"{_PREFIX}lora_requests_info", "adapters in use, by requests that run and wait", "gauge")
        none = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
        adapters.add_sample(adapters.name, {**model, **none, **ENGINE}, 1.0)
        yield adapters
