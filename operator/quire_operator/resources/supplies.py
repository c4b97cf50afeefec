"""The small objects around the pods: account, names of units, disruption budget, network policy, shared claim, claim template. Pure.

One function a kind, and `build_supplies` that puts them together; what is not in its answer any more is deleted.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from quire_operator import labels
from quire_operator.api import DOWNLOADED
from quire_operator.resources.defaults import PodDefaults
from quire_operator.resources.meta import child_metadata
from quire_operator.resources.source import claim_spec, shared_claim_name
from quire_operator.spec import Deployment

Object = dict[str, Any]


def build_supplies(owner: Deployment, defaults: PodDefaults) -> list[Object]:
    """In the order in which they are needed."""
    made = (
        _service_account(owner),
        _unit_service(owner),
        _shared_claim(owner),
        _claim_template(owner),
        _disruption_budget(owner),
        _network_policy(owner, defaults),
    )
    return [each for each in made if each is not None]


def supply_names(owner: Deployment) -> tuple[tuple[str, str], ...]:
    """Kind and name of what an earlier spec may have left; claim templates go with the LLMDeployment."""
    return (
        ("ServiceAccount", owner.name),
        ("Service", labels.unit_service(owner.name)),
        ("PersistentVolumeClaim", shared_claim_name(owner)),
        ("NetworkPolicy", owner.name),
    )


def service_account_name(owner: Deployment) -> str:
    """Of the pods."""
    return owner.spec.service_account_name or owner.name


def claim_template_name(owner: Deployment) -> str | None:
    """Of the ResourceClaimTemplate. Its spec cannot change, so its name follows from it."""
    spec = _claim_template_spec(owner)
    if spec is None:
        return None
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    return f"{owner.name}-devices-{digest}"


def _service_account(owner: Deployment) -> Object | None:
    """An identity of its own without rights; no token is mounted."""
    if owner.spec.service_account_name is not None:
        return None
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": child_metadata(owner, owner.name),
        "automountServiceAccountToken": False,
    }


def _unit_service(owner: Deployment) -> Object | None:
    """Names for pods before they are ready: they have to find each other to become it. None where a replica is one pod."""
    if owner.unit_size == 1:
        return None
    metadata = child_metadata(owner, labels.unit_service(owner.name), {labels.UNIT_PODS: owner.name})
    del metadata["labels"][labels.DEPLOYMENT]  # the router takes endpoints from every Service that has it
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {labels.DEPLOYMENT: owner.name},
            "ports": [{"name": labels.PORT_NAME, "port": labels.ENGINE_PORT, "protocol": "TCP"}],
        },
    }


def _disruption_budget(owner: Deployment) -> Object:
    """One pod at a time. `maxUnavailable` lets a drain go on with a single replica too, `AlwaysAllow` past one that crashes.

    Where a replica is a unit of pods, each of them takes the unit down: then they all count.
    """
    whom = {labels.DEPLOYMENT: owner.name} if owner.unit_size > 1 else labels.leader_selector(owner.name)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child_metadata(owner, owner.name),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": whom},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _network_policy(owner: Deployment, defaults: PodDefaults) -> Object | None:
    """Who may come in. What goes out is not limited: hubs and buckets have no fixed addresses."""
    wanted = owner.spec.network_policy
    if not (wanted.enabled and defaults.network_policy):
        return None
    quire = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": defaults.operator_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "quire"}},
    }
    own = {"podSelector": {"matchLabels": {labels.DEPLOYMENT: owner.name}}}
    peers = [quire, own, *(dict(peer) for peer in wanted.allow_from)]
    engine = {"from": peers, "ports": [{"port": labels.ENGINE_PORT, "protocol": "TCP"}]}
    # Pods of a unit talk over ports that they agree on.
    among = [{"from": [own]}] if owner.unit_size > 1 else []
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(owner, owner.name),
        "spec": {
            "podSelector": {"matchLabels": {labels.DEPLOYMENT: owner.name}},
            "policyTypes": ["Ingress"],
            "ingress": [engine, *among],
        },
    }


def _shared_claim(owner: Deployment) -> Object | None:
    model = owner.spec.model
    if model.scheme not in DOWNLOADED or model.cache is None or not model.cache.shared:
        return None
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": child_metadata(owner, shared_claim_name(owner)),
        "spec": claim_spec(model.cache),
    }


def _claim_template(owner: Deployment) -> Object | None:
    spec, name = _claim_template_spec(owner), claim_template_name(owner)
    if spec is None or name is None:
        return None
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": child_metadata(owner, name),
        "spec": {"spec": spec},
    }


def _claim_template_spec(owner: Deployment) -> Object | None:
    devices = owner.spec.resources.devices
    if devices is None:
        return None
    exactly: Object = {"deviceClassName": devices.device_class_name, "count": devices.count}
    if devices.selectors:
        exactly["selectors"] = [{"cel": {"expression": expression}} for expression in devices.selectors]
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
