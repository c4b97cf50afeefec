"""Metrics of the KV cache: what exists only with a host pool, and counters that only go up."""

from __future__ import annotations

import re

import pytest

from quire.metrics import EngineMetrics
from quire.request import StepStats


def stats(**changes: float) -> StepStats:
    fields = {name: 0.0 for name in StepStats.__struct_fields__ if name != "grammars"}
    return StepStats(**(fields | {"num_blocks": 10, "kv_utilization": 1.0} | changes))  # type: ignore[arg-type]


def value(metrics: EngineMetrics, name: str) -> float | None:
    """A sample of the page, None where it is absent."""
    found = re.search(rf"^quire_{name}\{{[^}}]*\}} (\S+)$", metrics.exposition("")[0].decode(), re.MULTILINE)
    return float(found[1]) if found else None


def test_the_host_pools_usage_exists_only_where_there_is_one() -> None:
    metrics = EngineMetrics("m")
    metrics.step(stats())
    assert "cpu_cache_usage" not in metrics.exposition("")[0].decode()
    metrics.step(stats(num_swap_blocks=8, num_swap_blocks_used=2))
    assert value(metrics, "cpu_cache_usage") == 0.25
    metrics.step(stats(num_swap_blocks=8))
    assert value(metrics, "cpu_cache_usage") == 0.0


def test_utilisation_swaps_and_faults_are_shown() -> None:
    metrics = EngineMetrics("m")
    metrics.step(stats(kv_utilization=0.97, kv_faults=2, num_swapped=3, preemptions_swap=4, preemptions_recompute=1))
    assert value(metrics, "kv_cache_utilization") == pytest.approx(0.97)
    assert value(metrics, "kv_cache_faults_total") == 2
    assert value(metrics, "num_requests_swapped") == 3
    page = metrics.exposition("")[0].decode()
    assert 'quire_preemptions_total{mode="swap",model_name="m"} 4.0' in page
    assert 'quire_preemptions_total{mode="recompute",model_name="m"} 1.0' in page


def test_counters_never_fall() -> None:
    """B049: also where an engine's totals do."""
    metrics = EngineMetrics("m")
    metrics.step(stats(prefix_cache_queries=9, prefix_cache_hits=5, preemptions_swap=4, kv_faults=2))
    metrics.step(stats(prefix_cache_queries=7, prefix_cache_hits=1, preemptions_swap=0, kv_faults=1))
    assert [value(metrics, f"{name}_total") for name in ("prefix_cache_queries", "prefix_cache_hits")] == [9, 5]
    assert value(metrics, "kv_cache_faults_total") == 2
    assert 'quire_preemptions_total{mode="swap",model_name="m"} 4.0' in metrics.exposition("")[0].decode()
