"""What the router exports on its metrics port, prefix `quire_router_`.

One Metrics object per process with its own collector registry, so that tests can make many. Endpoint counts and watch
ages are read when scraped, never kept in step by hand. The `model` label is always the LLMDeployment's served name, or
"" when the request named no known model: a client cannot create label values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from quire_router.endpoints import DeploymentKey, EndpointState

disable_created_metrics()  # type: ignore[no-untyped-call]  # the `_created` series double the size of a scrape and nobody reads them

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

EndpointCounts = Callable[[], Iterable[tuple[DeploymentKey, dict[EndpointState, int]]]]


class Metrics:
    """Counters, gauges and histograms by their Python names."""

    def __init__(self, count_endpoints: EndpointCounts) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "quire_router_requests",
            "Requests answered, by model and HTTP status (499: the client left first).",
            ["model", "code"],
            registry=self.registry,
        )
        self.retries = Counter(
            "quire_router_retries",
            "Requests sent to another endpoint before their first byte: connect (no connection), reset (closed before "
            "an answer), unavailable (the pod answered 503), missing (the pod has not the adapter).",
            ["model", "reason"],
            registry=self.registry,
        )
        self.broken_streams = Counter(
            "quire_router_broken_streams",
            "Responses whose endpoint broke off after the first byte.",
            ["model"],
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "quire_router_requests_in_flight", "Requests being forwarded now.", ["model"], registry=self.registry
        )
        self.upstream_latency = Histogram(
            "quire_router_upstream_latency_seconds",
            "From sending a request to an endpoint to the headers of its answer.",
            ["model"],
            buckets=_LATENCY_BUCKETS,
            registry=self.registry,
        )
        self.duration = Histogram(
            "quire_router_request_duration_seconds",
            "From the first byte of a request to the last byte of its answer.",
            ["model"],
            buckets=_LATENCY_BUCKETS,
            registry=self.registry,
        )
        self.watch_events = Counter(
            "quire_router_watch_events",
            "Events received from the Kubernetes API.",
            ["resource", "namespace"],
            registry=self.registry,
        )
        self.watch_lists = Counter(
            "quire_router_watch_lists",
            "Complete lists read from the Kubernetes API.",
            ["resource", "namespace"],
            registry=self.registry,
        )
        self.watch_errors = Counter(
            "quire_router_watch_errors",
            "Lists and watches that failed.",
            ["resource", "namespace"],
            registry=self.registry,
        )
        self._derived = _Derived(count_endpoints)
        self.registry.register(self._derived)

    def watch_is(self, resource: str, namespace: str, *, last_sign_s: Callable[[], float | None]) -> None:
        """Export the age of a watch: seconds since its last sign of life (monotonic), absent before the first list."""
        self._derived.watches.append((resource, namespace, last_sign_s))


class _Derived(Collector):
    def __init__(self, count_endpoints: EndpointCounts) -> None:
        self._count_endpoints = count_endpoints
        self.watches: list[tuple[str, str, Callable[[], float | None]]] = []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        endpoints = GaugeMetricFamily(
            "quire_router_endpoints",
            "Endpoints of each LLMDeployment by state; only ready ones are chosen.",
            labels=["namespace", "deployment", "state"],
        )
        for (namespace, name), counts in self._count_endpoints():
            for state, count in counts.items():
                endpoints.add_metric([namespace, name, state.name.lower()], count)
        yield endpoints
        ages = GaugeMetricFamily(
            "quire_router_watch_age_seconds",
            "Time since the last sign of life of a watch (list, event, bookmark, renewal). Far above the watch timeout: "
            "the picture of the cluster is old.",
            labels=["resource", "namespace"],
        )
        for resource, namespace, last_sign_s in self.watches:
            last = last_sign_s()
            if last is not None:
                ages.add_metric([resource, namespace], time.monotonic() - last)
        yield ages
