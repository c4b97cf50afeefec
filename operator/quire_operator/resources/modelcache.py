"""The claim and the Job of a ModelCache. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire_operator import labels
from quire_operator.api import ModelCacheSpec
from quire_operator.resources.defaults import PodDefaults
from quire_operator.resources.fetching import MOUNT, fetch_container, fetch_volumes
from quire_operator.resources.security import pod_security
from quire_operator.resources.source import CONTENT

ATTEMPTS = 4
"""Pods of a Job before it gives up; each keeps what the one before has brought."""


@dataclass(frozen=True)
class CacheOwner:
    """One ModelCache, parsed."""

    name: str
    namespace: str
    uid: str
    spec: ModelCacheSpec


def build_claim(owner: CacheOwner) -> dict[str, Any]:
    """LLMDeployments mount it by its name."""
    spec: dict[str, Any] = {
        "accessModes": list(owner.spec.access_modes),
        "resources": {"requests": {"storage": owner.spec.size}},
    }
    if owner.spec.storage_class_name is not None:
        spec["storageClassName"] = owner.spec.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(owner, labels.cache_claim(owner.name)),
        "spec": spec,
    }


def build_job(owner: CacheOwner, defaults: PodDefaults) -> dict[str, Any]:
    """Runs `quire fetch` into the claim."""
    image = owner.spec.image or defaults.image
    model, room = owner.spec.model, owner.spec.resources
    fetch = fetch_container(model, f"{MOUNT}/{CONTENT}", image, defaults, code=owner.spec.code)
    wanted = {"requests": room.requests, "limits": room.limits}
    resources = {
        word: {name: str(value) for name, value in values.items()} for word, values in wanted.items() if values
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "containers": [{**fetch, **({"resources": resources} if resources else {})}],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "model", "persistentVolumeClaim": {"claimName": labels.cache_claim(owner.name)}},
            *fetch_volumes(model, defaults),
        ],
    }
    if owner.spec.service_account_name is not None:
        pod["serviceAccountName"] = owner.spec.service_account_name
    if owner.spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret.name} for secret in owner.spec.image_pull_secrets]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(owner, f"{owner.name}-modelcache-fill"),
        "spec": {
            "backoffLimit": ATTEMPTS - 1,
            "template": {"metadata": {"labels": _labels(owner)}, "spec": pod},
        },
    }


def _labels(owner: CacheOwner) -> dict[str, str]:
    return {
        labels.MODEL_CACHE: owner.name,
        "app.kubernetes.io/name": "quire-model-cache",
        "app.kubernetes.io/instance": owner.name,
        "app.kubernetes.io/component": "fetch",
        "app.kubernetes.io/managed-by": labels.FIELD_MANAGER,
        "app.kubernetes.io/part-of": "quire",
    }


def _metadata(owner: CacheOwner, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": owner.namespace,
        "labels": _labels(owner),
        "ownerReferences": [
            {
                "apiVersion": labels.API_VERSION,
                "kind": labels.MODEL_CACHE_KIND,
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }
