"""Reading two gauges out of a page of metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from quire_operator.probe.exposition import read_gauges

WANTED: dict[str, Callable[[Iterable[float]], float]] = {
    "quire_scheduler_queue_size": sum,
    "quire_gpu_cache_usage": max,
}


@given(
    st.dictionaries(st.text(max_size=20), st.floats(-1e6, 1e6), min_size=1, max_size=4),
    st.floats(0, 1),
)
def test_what_the_client_library_writes_is_read(queues: dict[str, float], usage: float) -> None:
    registry = CollectorRegistry()
    queue = Gauge("quire_scheduler_queue_size", "waiting", ["model_name"], registry=registry)
    for name, value in queues.items():
        queue.labels(name).set(value)
    Gauge("quire_gpu_cache_usage", "share", registry=registry).set(usage)
    read = read_gauges(generate_latest(registry).decode(), WANTED)
    assert read["quire_gpu_cache_usage"] == usage
    assert math.isclose(read["quire_scheduler_queue_size"], sum(queues.values()), abs_tol=1e-6)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "# HELP quire_scheduler_queue_size waiting",
        "quire_scheduler_queue_size_total 3",
        "quire_scheduler_queue_size",
        "quire_scheduler_queue_size NaN",
        "quire_scheduler_queue_size +Inf",
        'quire_scheduler_queue_size{model_name="a" 3',
        "quire_scheduler_queue_size three",
        "xquire_scheduler_queue_size 3",
    ],
)
def test_what_is_no_value_is_missing_and_not_zero(page: str) -> None:
    assert read_gauges(page, WANTED) == {}


def test_timestamps_spaces_and_braces_in_labels() -> None:
    page = 'quire_scheduler_queue_size{model_name="a} \\" 9 {"}  4 1712345678000\nquire_gpu_cache_usage\t0.5\n'
    assert read_gauges(page, WANTED) == {"quire_scheduler_queue_size": 4, "quire_gpu_cache_usage": 0.5}


@given(st.text(max_size=200))
def test_no_page_breaks_it(page: str) -> None:
    read_gauges(page, WANTED)
