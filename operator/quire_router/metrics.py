"""What the router exports on its metrics port, prefix `quire_router_`.

One Metrics object per process with its own collector registry, so that tests can make many. Endpoint counts and watch
ages are read when scraped, never kept in step by hand. The `model` label is always the LLMDeployment's served name, or
"" when the request named no known model: a client cannot create label values.
"""

from __future__ import annotations

import time
from collections import Counter as TallyOf
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire_router.endpoints import DeploymentKey, EndpointState

disable_created_metrics()  # type: ignore[no-untyped-call]  # the `_created` series double the size of a scrape and nobody reads them

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

EndpointCounts = Callable[[], Iterable[tuple[DeploymentKey, dict[EndpointState, int]]]]
HeldCount = Callable[[DeploymentKey], int]
NotHeld = Literal["full", "late"]


class Metrics:
    """Counters, gauges and histograms by their Python names."""

    def __init__(self, count_endpoints: EndpointCounts, count_held: HeldCount = lambda _: 0) -> None:
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
        self._derived = _Derived(count_endpoints, count_held)
        self.registry.register(self._derived)

    def came(self, key: DeploymentKey) -> None:
        """Count a request for a model of this LLMDeployment, before anything becomes of it."""
        self._derived.came[key] += 1

    def not_held(self, key: DeploymentKey, reason: NotHeld) -> None:
        """Count a request for a model at zero that got 503."""
        self._derived.not_held[key, reason] += 1

    def watch_is(self, resource: str, namespace: str, *, last_sign_s: Callable[[], float | None]) -> None:
        """Export the age of a watch: seconds since its last sign of life (monotonic), absent before the first list."""
        self._derived.watches.append((resource, namespace, last_sign_s))


class _Derived(Collector):
    def __init__(self, count_endpoints: EndpointCounts, count_held: HeldCount) -> None:
        self._count_endpoints = count_endpoints
        self._count_held = count_held
        self.came: TallyOf[DeploymentKey] = TallyOf()
        self.not_held: TallyOf[tuple[DeploymentKey, NotHeld]] = TallyOf()
        self.watches: list[tuple[str, str, Callable[[], float | None]]] = []

    def collect(self) -> Iterator[Metric]:
        endpoints = GaugeMetricFamily(
            "quire_router_endpoints",
            "Endpoints of each LLMDeployment by state; only ready ones are chosen.",
            labels=["namespace", "deployment", "state"],
        )
        came = CounterMetricFamily(
            "quire_router_requests_came",
            "Requests for each LLMDeployment, counted as they come. The operator takes a model to zero when this stands still.",
            labels=["namespace", "deployment"],
        )
        held = GaugeMetricFamily(
            "quire_router_requests_held",
            "Requests that wait for the first pod of an LLMDeployment at zero. The operator starts one when there are any.",
            labels=["namespace", "deployment"],
        )
        not_held = CounterMetricFamily(
            "quire_router_requests_not_held",
            "Requests for a model at zero that got 503: full (too many wait already), late (no pod within the time to wait).",
            labels=["namespace", "deployment", "reason"],
        )
        for (namespace, name), counts in self._count_endpoints():
            for state, count in counts.items():
                endpoints.add_metric([namespace, name, state.name.lower()], count)
            came.add_metric([namespace, name], self.came[namespace, name])
            held.add_metric([namespace, name], self._count_held((namespace, name)))
            for reason in get_args(NotHeld):
                not_held.add_metric([namespace, name, reason], self.not_held[(namespace, name), reason])
        yield from (endpoints, came, held, not_held)
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
