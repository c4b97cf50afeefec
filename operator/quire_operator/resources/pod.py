"""The pod template of a revision: what fetches the model, then one container `engine`, hardened, with probes that give it time. Pure.

What is built here is hashed; a change of this file that changes the result rolls every pod in every cluster at the
next operator upgrade, so it is made only for a reason.
"""

from __future__ import annotations

from typing import Any

from quire_operator import labels
from quire_operator.api import seconds
from quire_operator.resources import args, source
from quire_operator.resources.deadlines import startup_s
from quire_operator.resources.defaults import PodDefaults
from quire_operator.resources.fetching import hub_env
from quire_operator.resources.merge import merge
from quire_operator.resources.security import container_security, pod_security
from quire_operator.resources.supplies import claim_template_name, service_account_name
from quire_operator.spec import Deployment

UNROUTE_S = 5
"""Seconds between the deletion of a pod and its SIGTERM, in which every router learns that it is gone."""

GRACE_MARGIN_S = 30
"""Seconds the pod has beyond unrouting and draining before it is killed."""

PROBE_PERIOD_S = 2
DEVICES = "devices"
"""Name of the claim in the pod, with spec.resources.devices."""


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
    image = owner.spec.image or defaults.image
    memory = {"medium": "Memory", "sizeLimit": owner.spec.resources.shared_memory}
    spec: dict[str, Any] = {
        "serviceAccountName": service_account_name(owner),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": seconds(owner.spec.rollout.drain_timeout) + UNROUTE_S + GRACE_MARGIN_S,
        "securityContext": pod_security(),
        "topologySpreadConstraints": [_spread(owner)],
        "containers": [_container(owner, image, defaults)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "cache", "emptyDir": {}},
            {"name": "shm", "emptyDir": memory},
            *source.model_volumes(owner, defaults),
        ],
    }
    if first := source.init_containers(owner, image, defaults):
        spec["initContainers"] = [_with_room(owner, container) for container in first]
    if owner.spec.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in owner.spec.image_pull_secrets]
    if tolerations := _tolerations(owner):
        spec["tolerations"] = tolerations
    if (template := claim_template_name(owner)) is not None:
        spec["resourceClaims"] = [{"name": DEVICES, "resourceClaimTemplateName": template}]
    return spec


def _container(owner: Deployment, image: str, defaults: PodDefaults) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": labels.CONTAINER,
        "image": image,
        "imagePullPolicy": defaults.image_pull_policy,
        "args": args.serve_args(owner),
        "env": _env(owner, defaults),
        "ports": [{"name": labels.PORT_NAME, "containerPort": labels.ENGINE_PORT, "protocol": "TCP"}],
        "startupProbe": _probe(
            labels.PATH_READY, period_s=PROBE_PERIOD_S, failures=-(-startup_s(owner.spec) // PROBE_PERIOD_S)
        ),
        "readinessProbe": _probe(labels.PATH_READY, period_s=PROBE_PERIOD_S, failures=2),
        "livenessProbe": _probe(labels.PATH_LIVE, period_s=10, failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": UNROUTE_S}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "cache", "mountPath": "/cache"},
            {"name": "shm", "mountPath": "/dev/shm"},
            *source.model_mounts(owner),
        ],
    }
    resources = _resources(owner)
    if resources:
        container["resources"] = resources
    return container


def _with_room(owner: Deployment, container: dict[str, Any]) -> dict[str, Any]:
    """Processor and memory as the engine has them, so that quotas admit the pod; a pod needs the larger of the two, not the sum."""
    wanted = owner.spec.resources
    both = {"requests": wanted.requests, "limits": wanted.limits}
    resources = {
        word: {name: str(value) for name, value in values.items() if "/" not in name} for word, values in both.items()
    }
    return {**container, **({"resources": found} if (found := {k: v for k, v in resources.items() if v}) else {})}


def _spread(owner: Deployment) -> dict[str, Any]:
    """Over the nodes where there is room. The label of the revision joins at the pod: an old revision does not push a new one about."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels.leader_selector(owner.name)},
        "matchLabelKeys": [labels.REVISION],
    }


def _tolerations(owner: Deployment) -> list[dict[str, Any]]:
    """Nodes with GPUs are tainted `VENDOR/gpu` as a rule, so that nothing else runs there."""
    wanted = owner.spec.resources
    if not wanted.gpus:
        return []
    vendor = wanted.gpu_resource_name.partition("/")[0]
    return [{"key": f"{vendor}/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def _env(owner: Deployment, defaults: PodDefaults) -> list[dict[str, Any]]:
    env: list[dict[str, Any]] = [
        {"name": "QUIRE_CACHE_DIR", "value": "/cache"},
        {"name": "HF_HOME", "value": "/cache/huggingface"},
        {"name": "HOME", "value": "/tmp"},
    ]
    if owner.spec.engine.tokenizer is not None and owner.spec.model.scheme == "hf":
        env += hub_env(owner.spec.model, defaults)  # the engine itself asks the hub for it
    return env


def _resources(owner: Deployment) -> dict[str, Any]:
    wanted = owner.spec.resources
    limits = {name: str(value) for name, value in wanted.limits.items()}
    if wanted.gpus:
        # An extended resource has one number; the API server copies the limit to the request.
        limits[wanted.gpu_resource_name] = str(wanted.gpus)
    requests = {name: str(value) for name, value in wanted.requests.items()}
    claims = [{"name": DEVICES}] if wanted.devices is not None else []
    return {key: value for key, value in (("requests", requests), ("limits", limits), ("claims", claims)) if value}


def _probe(path: str, *, period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": labels.PORT_NAME},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
