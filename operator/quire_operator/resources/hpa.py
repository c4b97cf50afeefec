"""The HorizontalPodAutoscaler on the metrics this operator serves. Pure.

It aims at the LLMDeployment's /scale, never at a child Deployment: spec.replicas has one owner. It never goes below one and rests while
its target is at zero, so the way to zero and back (`policy.zero`) is nobody else's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire_operator import labels
from quire_operator.api import seconds
from quire_operator.resources.meta import child_metadata
from quire_operator.spec import Deployment

METRIC_NAMES: Mapping[str, str] = {
    "queue_size": "quire_scheduler_queue_size",
    "gpu_cache_usage": "quire_gpu_cache_usage",
}
"""Field of spec.autoscaling.targets to the name in custom.metrics.k8s.io, which is the engine's own metric name."""


def build_hpa(owner: Deployment) -> dict[str, Any] | None:
    """None without spec.autoscaling."""
    scaling = owner.spec.autoscaling
    if scaling is None:
        return None
    targets = {name: getattr(scaling.targets, field) for field, name in METRIC_NAMES.items()}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": child_metadata(owner, owner.name),
        "spec": {
            "scaleTargetRef": {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "name": owner.name},
            "minReplicas": max(scaling.min_replicas, 1),
            "maxReplicas": scaling.max_replicas,
            "metrics": [_pods_metric(name, target) for name, target in targets.items() if target is not None],
            "behavior": {
                "scaleDown": {
                    "stabilizationWindowSeconds": seconds(scaling.scale_down.stabilization),
                    "selectPolicy": "Max",
                    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
                },
            },
        },
    }


def _pods_metric(name: str, target: str) -> dict[str, Any]:
    return {
        "type": "Pods",
        "pods": {"metric": {"name": name}, "target": {"type": "AverageValue", "averageValue": target}},
    }
