"""The pod template of a revision: one container `engine`, hardened, with probes that give a large model time. Pure.

What is built here is hashed; a change of this file that changes the result rolls every pod in every cluster at the
next operator upgrade, so it is made only for a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire_operator import labels
from quire_operator.api import seconds
from quire_operator.resources import args
from quire_operator.resources.merge import merge
from quire_operator.spec import Deployment

USER = 65532

UNROUTE_S = 5
"""Seconds between the deletion of a pod and its SIGTERM, in which every router learns that it is gone."""

GRACE_MARGIN_S = 30
"""Seconds the pod has beyond unrouting and draining before it is killed."""

STARTUP_BUDGET_S = 2 * 60 * 60
"""How long a pod may load; slower models override startupProbe in spec.template."""


@dataclass(frozen=True)
class PodDefaults:
    """What the operator's settings add to every pod."""

    image: str
    image_pull_policy: str


def build_pod_template(owner: Deployment, defaults: PodDefaults) -> dict[str, Any]:
    """Labels without revision and track (these are not part of the identity), and the spec with spec.template merged in."""
    patch = owner.spec.template
    template: dict[str, Any] = {
        "metadata": {
            "labels": {**patch.metadata.labels, **labels.child_labels(owner.name), labels.ROLE: labels.LEADER},
        },
        "spec": merge(_pod_spec(owner, defaults), patch.spec),
    }
    if patch.metadata.annotations:
        template["metadata"]["annotations"] = dict(patch.metadata.annotations)
    return template


def _pod_spec(owner: Deployment, defaults: PodDefaults) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "cache", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    claim = args.claim_name(owner)
    if claim is not None:
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": seconds(owner.spec.rollout.drain_timeout) + UNROUTE_S + GRACE_MARGIN_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(owner, defaults)],
        "volumes": volumes,
    }


def _container(owner: Deployment, defaults: PodDefaults) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": labels.CONTAINER,
        "image": owner.spec.image or defaults.image,
        "imagePullPolicy": defaults.image_pull_policy,
        "args": args.serve_args(owner),
        "env": _env(owner),
        "ports": [{"name": labels.PORT_NAME, "containerPort": labels.ENGINE_PORT, "protocol": "TCP"}],
        "startupProbe": _probe(labels.PATH_READY, period_s=2, failures=STARTUP_BUDGET_S // 2),
        "readinessProbe": _probe(labels.PATH_READY, period_s=2, failures=2),
        "livenessProbe": _probe(labels.PATH_LIVE, period_s=10, failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": UNROUTE_S}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "cache", "mountPath": "/cache"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    if args.claim_name(owner) is not None:
        container["volumeMounts"].append({"name": "model", "mountPath": args.PVC_MOUNT, "readOnly": True})
    resources = _resources(owner)
    if resources:
        container["resources"] = resources
    return container


def _env(owner: Deployment) -> list[dict[str, Any]]:
    env: list[dict[str, Any]] = [
        {"name": "QUIRE_CACHE_DIR", "value": "/cache"},
        {"name": "HF_HOME", "value": "/cache/huggingface"},
        {"name": "HOME", "value": "/tmp"},
    ]
    model = owner.spec.model
    if model.endpoint:
        env.append({"name": "HF_ENDPOINT", "value": model.endpoint})
    if model.token_secret_ref is not None:
        reference = {"name": model.token_secret_ref.name, "key": model.token_secret_ref.key}
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return env


def _resources(owner: Deployment) -> dict[str, Any]:
    wanted = owner.spec.resources
    limits = {name: str(value) for name, value in wanted.limits.items()}
    if wanted.gpus:
        # An extended resource has one number; the API server copies the limit to the request.
        limits[wanted.gpu_resource_name] = str(wanted.gpus)
    requests = {name: str(value) for name, value in wanted.requests.items()}
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def _probe(path: str, *, period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": labels.PORT_NAME},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
