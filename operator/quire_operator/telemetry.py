"""The operator's own metrics, `quire_operator_*`, and the page that shows them. A leaf: anyone may count here."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry()

RECONCILE_SECONDS = Histogram(
    "quire_operator_reconcile_seconds",
    "One look at one object of any queue, reads and writes included",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
    registry=REGISTRY,
)
RECONCILE_ERRORS = Counter(
    "quire_operator_reconcile_errors", "Looks that failed and are tried again", ["reason"], registry=REGISTRY
)
QUEUE_DEPTH = Gauge("quire_operator_queue_depth", "Objects waiting to be looked at, in all queues", registry=REGISTRY)
WRITES = Counter("quire_operator_writes", "Requests that change something in the cluster", ["kind"], registry=REGISTRY)
WATCH_EVENTS = Counter("quire_operator_watch_events", "Events the watches delivered", ["kind"], registry=REGISTRY)
LAST_WATCH_EVENT = Gauge(
    "quire_operator_last_watch_event_timestamp_seconds", "When a watch last delivered", registry=REGISTRY
)
SCRAPES = Counter(
    "quire_operator_scrapes",
    "Scrapes of engine pods by result: ok, timeout, refused, bad",
    ["result"],
    registry=REGISTRY,
)
SCRAPE_AGE = Gauge(
    "quire_operator_scrape_age_seconds", "Age of the oldest of the newest samples of all ready pods", registry=REGISTRY
)
REPLICAS = Gauge(
    "quire_operator_replicas",
    "Replicas by state: desired, current, ready",
    ["namespace", "name", "state"],
    registry=REGISTRY,
)
LEADER = Gauge("quire_operator_leader", "1 in the process that writes, 0 in those that stand by", registry=REGISTRY)
CERTIFICATE_EXPIRY = Gauge(
    "quire_operator_certificate_expiry_timestamp_seconds", "When the serving certificate ends", registry=REGISTRY
)
METRICS_REQUESTS = Counter(
    "quire_operator_metrics_api_requests", "Requests to custom.metrics.k8s.io by status", ["code"], registry=REGISTRY
)


def page() -> bytes:
    """The text exposition format."""
    return generate_latest(REGISTRY)


def forget(namespace: str, name: str) -> None:
    """Drop the series of a deleted LLMDeployment."""
    for state in ("desired", "current", "ready"):
        if (namespace, name, state) in REPLICAS._metrics:
            REPLICAS.remove(namespace, name, state)
