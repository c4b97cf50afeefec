"""Where the engine finds its model: the argument, the volume, and the container that fills it first. Pure.

Downloaded models, claims and images all appear at /mnt/model, read-only for the engine.
"""

from __future__ import annotations

from typing import Any

from quire_operator import labels
from quire_operator.api import DOWNLOADED, Cache
from quire_operator.resources.deadlines import startup_s
from quire_operator.resources.defaults import PodDefaults
from quire_operator.resources.fetching import MOUNT, fetch_container, fetch_volumes, folder_of, wait_container
from quire_operator.spec import Deployment

CONTENT = "content"
"""Folder on the claim of a ModelCache."""

_NO = ("false", "0", "no", "off")
_IMAGE_REFERENCE_END = len("@sha256:") + 64


def model_argument(owner: Deployment) -> str:
    """What the engine is told to load: a path inside the pod."""
    model = owner.spec.model
    if model.scheme in DOWNLOADED:
        return f"{MOUNT}/{folder_of(model, code=_with_code(owner))}"
    if model.scheme == "cache":
        return f"{MOUNT}/{CONTENT}"
    if model.scheme == "pvc":
        return f"{MOUNT}/{model.rest.partition('/')[2]}".rstrip("/")
    if model.scheme == "oci":
        return f"{MOUNT}{_image(model.rest)[1]}"
    return model.rest


def model_volumes(owner: Deployment, defaults: PodDefaults) -> list[dict[str, Any]]:
    """The volume `model` where there is one, and what fetching needs."""
    model = owner.spec.model
    if model.scheme in DOWNLOADED:
        return [{"name": "model", **_cache_volume(owner, model.cache)}, *fetch_volumes(model, defaults)]
    if model.scheme == "cache":
        claim = {"claimName": labels.cache_claim(model.rest), "readOnly": True}
        return [{"name": "model", "persistentVolumeClaim": claim}]
    if model.scheme == "pvc":
        claim = {"claimName": model.rest.partition("/")[0], "readOnly": True}
        return [{"name": "model", "persistentVolumeClaim": claim}]
    if model.scheme == "oci":
        # A digest never changes: what the node has is right.
        return [{"name": "model", "image": {"reference": _image(model.rest)[0], "pullPolicy": "IfNotPresent"}}]
    return []


def model_mounts(owner: Deployment) -> list[dict[str, Any]]:
    """Of the engine."""
    if owner.spec.model.scheme == "file":
        return []
    return [{"name": "model", "mountPath": MOUNT, "readOnly": True}]


def init_containers(owner: Deployment, image: str, defaults: PodDefaults) -> list[dict[str, Any]]:
    """What runs before the engine."""
    model = owner.spec.model
    if model.scheme in DOWNLOADED:
        return [fetch_container(model, model_argument(owner), image, defaults, code=_with_code(owner))]
    if model.scheme == "cache":
        return [wait_container(model_argument(owner), startup_s(owner.spec), image, defaults)]
    return []


def shared_claim_name(owner: Deployment) -> str:
    """Of the claim that all pods share."""
    return f"{owner.name}-cache"


def claim_spec(cache: Cache) -> dict[str, Any]:
    """Of a claim with this size, class and modes."""
    spec: dict[str, Any] = {
        "accessModes": list(cache.access_modes or ("ReadWriteOnce",)),
        "resources": {"requests": {"storage": cache.size}},
    }
    if cache.storage_class_name is not None:
        spec["storageClassName"] = cache.storage_class_name
    return spec


def _with_code(owner: Deployment) -> bool:
    """Whether the engine is told to run the model's code; of several flags the last counts, as for the engine."""
    told = False
    for argument in owner.spec.engine.extra_args:
        flag, _, value = argument.partition("=")
        if flag == "--trust-remote-code":
            told = value.lower() not in _NO
        elif argument == "--no-trust-remote-code":
            told = False
    return told


def _cache_volume(owner: Deployment, cache: Cache | None) -> dict[str, Any]:
    if cache is None:
        return {"emptyDir": {}}
    if cache.host_path is not None:
        return {"hostPath": {"path": cache.host_path, "type": "DirectoryOrCreate"}}
    if cache.claim_name is not None:
        return {"persistentVolumeClaim": {"claimName": cache.claim_name}}
    if cache.shared:
        return {"persistentVolumeClaim": {"claimName": shared_claim_name(owner)}}
    # A volume that one node can mount at a time must not be waited for by the next pod: each pod has its own.
    marks = labels.child_labels(owner.name)
    return {"ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": marks}, "spec": claim_spec(cache)}}}


def _image(rest: str) -> tuple[str, str]:
    """`REPOSITORY@sha256:HEX/PATH` to reference and `/PATH`."""
    end = rest.index("@") + _IMAGE_REFERENCE_END
    return rest[:end], rest[end:]
