"""`--metrics-compat vllm`: the same values under other names, and nothing of it without the flag."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from quire.metrics import EngineMetrics
from quire.metrics.vllm import FAMILIES
from quire.request import EngineReady, StepStats

INFO = {"block_size": "16", "num_blocks": "8", "kv_cache_dtype": "float32", "device": "cpu"}


def loaded(**options: str) -> EngineMetrics:
    """Metrics that have something to tell."""
    metrics = EngineMetrics("org/m", **options)  # type: ignore[arg-type]
    metrics.ready(EngineReady(max_model_len=8, num_blocks=8, block_size=16, vocab_size=9, info=INFO, startup_s={}), {})
    fields = dict.fromkeys(set(StepStats.__struct_fields__) - {"grammars"}, 0.0) | {
        "num_waiting": 3, "num_running": 2, "num_blocks": 8, "num_blocks_used": 6, "batch_size": 2, "step_s": 0.5, "num_prompt_tokens": 7,
        "num_generated_tokens": 2, "prefix_cache_queries": 10, "prefix_cache_hits": 4, "preemptions_recompute": 1, "preemptions_swap": 2,
        "num_swap_blocks": 4, "num_swap_blocks_used": 1,
    }  # fmt: skip
    metrics.step(StepStats(**fields))  # type: ignore[arg-type]
    for histogram in (metrics.ttft, metrics.itl, metrics.tpot, metrics.duration, metrics.prompt_length):
        metrics.observe(histogram, 0.3)
    metrics.finished("stop")
    metrics.dropped("queue_full")
    return metrics


def samples(metrics: EngineMetrics, accept: str = "") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page, content_type = metrics.exposition(accept)
    parse = openmetrics if "openmetrics" in content_type else plain
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(page.decode())
        for sample in family.samples
    }


def value(metrics: EngineMetrics, name: str, **labels: str) -> float | None:
    wanted = tuple(sorted({"model_name": "org/m", "engine": "0", **labels}.items()))
    return samples(metrics).get((name, wanted))


def test_values_are_told_again_with_vllms_labels() -> None:
    metrics = loaded(compat="vllm")
    assert value(metrics, "vllm:num_requests_running") == 2
    assert value(metrics, "vllm:num_requests_waiting") == 3
    assert value(metrics, "vllm:kv_cache_usage_perc") == value(metrics, "vllm:gpu_cache_usage_perc") == 0.75
    assert value(metrics, "vllm:cpu_cache_usage_perc") == 0.25
    assert value(metrics, "vllm:prefix_cache_hits_total") == 4
    assert value(metrics, "vllm:num_preemptions_total") == 3
    assert value(metrics, "vllm:request_success_total", finished_reason="stop") == 1
    assert value(metrics, "vllm:request_success_total", finished_reason="length") == 0
    assert value(metrics, "vllm:admission_rejections_total", reason="queue_full") == 1
    assert value(metrics, "vllm:iteration_tokens_total_sum") == 9
    assert value(metrics, "vllm:e2e_request_latency_seconds_count") == 1
    assert value(metrics, "vllm:time_to_first_token_seconds_bucket", le="0.25") == 0
    assert value(metrics, "vllm:time_to_first_token_seconds_bucket", le="0.5") == 1
    cache = {"block_size": "16", "num_gpu_blocks": "8", "cache_dtype": "float32"}
    assert value(metrics, "vllm:cache_config_info", **cache) == 1
    adapters = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    assert value(metrics, "vllm:lora_requests_info", **adapters) == 1


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_every_family_is_there_in_both_formats_and_ours_stay(accept: str) -> None:
    ours, both = samples(loaded(), accept), samples(loaded(compat="vllm"), accept)
    assert ours and not any(name.startswith("vllm:") for name, _ in ours)
    assert ours.keys() <= both.keys()
    names = {name for name, _ in both}
    for told in FAMILIES.values():
        for name in told.names:
            assert names & {f"vllm:{name}{suffix}" for suffix in ("", "_total", "_bucket")}, name
    assert all(name.startswith(("quire_", "vllm:")) for name in names)


def test_each_family_that_is_told_again_exists_whatever_the_prefix() -> None:
    families = {family.name.removeprefix("mine_") for family in loaded(namespace="mine").registry.collect()}
    assert FAMILIES.keys() <= families
    assert value(loaded(namespace="mine", compat="vllm"), "vllm:num_requests_running") == 2


def test_buckets_contain_those_that_rules_for_vllm_name() -> None:
    bounds = {
        "time_to_first_token_seconds": (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
                                        640, 2560),
        "inter_token_latency_seconds": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
        "e2e_request_latency_seconds": (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
        "request_prompt_tokens": (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000),
    }  # fmt: skip
    metrics = loaded(compat="vllm")
    for name, wanted in bounds.items():
        found = {float(dict(labels)["le"]) for full, labels in samples(metrics) if full == f"vllm:{name}_bucket"}
        assert found >= set(wanted), name


def test_the_page_lists_the_names() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "observability.md").read_text()
    for ours, told in FAMILIES.items():
        assert f"| `{ours}` | {', '.join(f'`{name}`' for name in told.names)} |" in page
