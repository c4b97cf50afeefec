"""The JSON documents of custom.metrics.k8s.io, v1beta1 and v1beta2. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from quire_operator.resources.hpa import METRIC_NAMES

GROUP = "custom.metrics.k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
METRICS = tuple(METRIC_NAMES.values())

Document = dict[str, Any]


def group_list() -> Document:
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [api_group()]}


def api_group() -> Document:
    versions = [{"groupVersion": f"{GROUP}/{version}", "version": version} for version in VERSIONS]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": GROUP,
        "versions": versions,
        "preferredVersion": versions[0],
    }


def resource_list(version: str) -> Document:
    """What discovery and the availability check of the aggregator read."""
    resources = [
        {"name": f"pods/{metric}", "singularName": "", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}
        for metric in METRICS
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{version}",
        "resources": resources,
    }


def metric_value_list(
    version: str, namespace: str, metric: str, values: Iterable[tuple[str, float, float]]
) -> Document:
    """`values`: (pod, value, seconds since 1970 when it was measured)."""
    return {
        "kind": "MetricValueList",
        "apiVersion": f"{GROUP}/{version}",
        "metadata": {},
        "items": [_item(version, namespace, metric, *each) for each in values],
    }


def _item(version: str, namespace: str, metric: str, pod: str, value: float, wall: float) -> Document:
    if version == "v1beta2":
        identity: Document = {"metric": {"name": metric, "selector": None}}
    else:
        identity = {"metricName": metric, "selector": None}
    return {
        "describedObject": {"kind": "Pod", "namespace": namespace, "name": pod, "apiVersion": "v1"},
        **identity,
        "timestamp": datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "value": quantity(value),
    }


def quantity(value: float) -> str:
    """To a thousandth, as Kubernetes writes it: 15, 812m."""
    thousandths = round(value * 1000)
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def failure(code: int, reason: str, message: str) -> Document:
    """A `Status`; its message shows in the autoscaler's condition ScalingActive."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
