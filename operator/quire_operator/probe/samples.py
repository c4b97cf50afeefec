"""The newest metrics of every engine pod. A metric of a pod is a value, missing or stale; missing is never read as zero.

Filled by the scraper, read by the reconcile loop and by the metrics API. Times are given by the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from quire_operator.observation import PodView
from quire_operator.resources.hpa import METRIC_NAMES
from quire_operator.spec import Key
from quire_operator.status import Reading

SHOWN_NAMES: Mapping[str, str] = {"queue_size": "queueSize", "gpu_cache_usage": "gpuCacheUsage"}
"""Field of spec.autoscaling.targets to the name in status.autoscaling.metrics."""

TOLD_AFTER = 3
"""Scrapes that a pod may leave unanswered once it is ready before it counts as silent: the first one has not been when it becomes ready."""

IN_FLIGHT = ("quire_num_requests_executing", "quire_scheduler_queue_size", "quire_num_requests_swapped")
"""Gauges of the engine whose sum is what a pod still has to answer."""
SERVED = "quire_requests_finished_total"
"""Counter of the engine: requests that ended, however they came."""


@dataclass(frozen=True)
class Target:
    """A pod to ask."""

    key: Key
    pod: str
    ip: str


@dataclass(frozen=True)
class Sample:
    """One value; `at` is monotonic, `wall` seconds since 1970."""

    value: float
    at: float
    wall: float


@dataclass
class _Pod:
    target: Target
    labels: Mapping[str, str]
    ready: bool
    asked: int = 0
    """Scrapes since it became ready."""
    samples: dict[str, Sample] = field(default_factory=dict)


class Samples:
    """`stale_after_s`: older values are as good as none."""

    def __init__(self, stale_after_s: float) -> None:
        self._stale_after_s = stale_after_s
        self._pods: dict[Key, dict[str, _Pod]] = {}

    def set_pods(self, key: Key, pods: Iterable[PodView]) -> None:
        """The pods of one LLMDeployment as they are now; samples of a pod that stays are kept, also when it got another address."""
        before = self._pods.get(key, {})
        now: dict[str, _Pod] = {}
        for pod in pods:
            if pod.ip is None or pod.terminating:
                continue
            known = before.get(pod.name)
            target = Target(key, pod.name, pod.ip)
            if known is None:
                known = _Pod(target, pod.labels, pod.ready)
            if not pod.ready:
                known.asked = 0
            known.target, known.labels, known.ready = target, pod.labels, pod.ready
            now[pod.name] = known
        if now:
            self._pods[key] = now
        else:
            self._pods.pop(key, None)

    def forget(self, key: Key) -> None:
        self._pods.pop(key, None)

    def keys(self) -> tuple[Key, ...]:
        return tuple(self._pods)

    def targets(self) -> tuple[Target, ...]:
        """Every pod with an address, ready or not: a pod must not wait for its first scrape to count."""
        return tuple(pod.target for pods in self._pods.values() for pod in pods.values())

    def record(self, target: Target, values: Mapping[str, float] | None, *, at: float, wall: float) -> None:
        """`values` None: the pod did not answer; its old samples stay until they are stale."""
        pod = self._pods.get(target.key, {}).get(target.pod)
        if pod is None:
            return
        pod.asked += pod.ready
        for name, value in (values or {}).items():
            pod.samples[name] = Sample(value, at, wall)

    def readings(self, key: Key, *, at: float) -> tuple[Reading, ...]:
        """Each metric over the ready pods."""
        pods = [pod for pod in self._pods.get(key, {}).values() if pod.ready]
        return tuple(self._reading(field_name, pods, at) for field_name in METRIC_NAMES)

    def _reading(self, field_name: str, pods: list[_Pod], at: float) -> Reading:
        metric, shown = METRIC_NAMES[field_name], SHOWN_NAMES[field_name]
        fresh = [sample.value for pod in pods if (sample := self._fresh(pod, metric, at)) is not None]
        asked = [pod for pod in pods if pod.asked >= TOLD_AFTER]
        silent = tuple(pod.target.pod for pod in asked if self._fresh(pod, metric, at) is None)
        if fresh:
            return Reading(shown, metric, sum(fresh) / len(fresh), "Fresh", silent)
        known = any(metric in pod.samples for pod in pods)
        return Reading(shown, metric, None, "Stale" if known else "Missing", silent, tried=bool(asked) or not pods)

    def in_flight(self, key: Key, *, at: float) -> dict[str, int]:
        """Requests in each pod; a pod that did not say lately is absent: unknown, not idle."""
        out: dict[str, int] = {}
        for name, pod in self._pods.get(key, {}).items():
            fresh = [self._fresh(pod, metric, at) for metric in IN_FLIGHT]
            if all(fresh):
                out[name] = round(sum(sample.value for sample in fresh if sample is not None))
        return out

    def served(self, key: Key, *, at: float) -> dict[str, float]:
        """Requests that each pod ever ended; a pod that did not say lately is absent."""
        pods = self._pods.get(key, {}).items()
        return {name: sample.value for name, pod in pods if (sample := self._fresh(pod, SERVED, at)) is not None}

    def select(self, namespace: str, metric: str, *, at: float) -> Iterator[tuple[str, Mapping[str, str], Sample]]:
        """(pod, labels, sample) for every pod of the namespace with a fresh value, for the metrics API."""
        for key, pods in self._pods.items():
            if key.namespace == namespace:
                for name, pod in sorted(pods.items()):
                    sample = self._fresh(pod, metric, at)
                    if sample is not None:
                        yield name, pod.labels, sample

    def oldest_age_s(self, *, at: float) -> float:
        """Over the ready pods that were ever measured; 0 with none."""
        ages = [
            at - max(sample.at for sample in pod.samples.values())
            for pods in self._pods.values()
            for pod in pods.values()
            if pod.ready and pod.samples
        ]
        return max(ages, default=0.0)

    def _fresh(self, pod: _Pod, metric: str, at: float) -> Sample | None:
        sample = pod.samples.get(metric)
        return sample if sample is not None and at - sample.at <= self._stale_after_s else None
