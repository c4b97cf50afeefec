"""Endpoints of LLMDeployments, derived from EndpointSlices.

Called by `registry`; pure: slices in, endpoints out. The rules of the EndpointSlice API are applied here and nowhere
else: a missing `ready` means true, a terminating endpoint is never ready for us, one pod may stand in two slices
for a moment (the less favourable state wins) and in an IPv4 and an IPv6 slice for good (IPv4 is used).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

DEPLOYMENT_LABEL = "quire.dev/deployment"
PORT_NAME = "http"

DeploymentKey = tuple[str, str]
"""(namespace, name) of an LLMDeployment."""


class EndpointState(IntEnum):
    """Ordered: where two slices disagree about one pod, the larger wins."""

    READY = 0
    NOT_READY = 1
    TERMINATING = 2


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of one runtime pod. `address` is host:port, an IPv6 host in brackets.

    `revision` comes from the pod's name, `<deployment>-<revision>-…`; empty for a pod named otherwise. `faltering`: it was
    ready and is not, without being deleted: its node or its probe is late, or its engine is ill.
    """

    address: str
    pod: str
    state: EndpointState
    revision: str = ""
    faltering: bool = False


@dataclass(frozen=True, slots=True)
class Slice:
    """What the router keeps of one EndpointSlice."""

    namespace: str
    name: str
    deployment: DeploymentKey
    address_type: str
    endpoints: tuple[Endpoint, ...]


def parse_slice(manifest: Mapping[str, Any]) -> Slice | None:
    """Read an EndpointSlice; None when it belongs to no LLMDeployment or has no usable port."""
    metadata = manifest.get("metadata") or {}
    deployment = (metadata.get("labels") or {}).get(DEPLOYMENT_LABEL)
    namespace, name = metadata.get("namespace"), metadata.get("name")
    address_type = manifest.get("addressType")
    if not (deployment and namespace and name) or address_type not in ("IPv4", "IPv6"):
        return None
    port = _port(manifest.get("ports") or ())
    endpoints = (
        () if port is None else tuple(_parse_endpoints(manifest.get("endpoints") or (), deployment, address_type, port))
    )
    return Slice(namespace, name, (namespace, deployment), address_type, endpoints)


def merge(slices: Iterable[Slice]) -> tuple[Endpoint, ...]:
    """One endpoint per pod, sorted by pod name, from all slices of one LLMDeployment."""
    by_pod: dict[str, Endpoint] = {}
    for view in sorted(slices, key=lambda view: (view.address_type, view.name)):
        for endpoint in view.endpoints:
            known = by_pod.get(endpoint.pod)
            if known is None:
                by_pod[endpoint.pod] = endpoint
            elif known.state < endpoint.state:
                by_pod[endpoint.pod] = replace(known, state=endpoint.state)
    return tuple(by_pod[pod] for pod in sorted(by_pod))


def remember(before: Iterable[Endpoint], after: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """`after`, knowing which of those that are not ready were so once, at the same address."""
    proven = {(each.pod, each.address) for each in before if each.state is EndpointState.READY or each.faltering}
    return tuple(
        replace(each, faltering=each.state is EndpointState.NOT_READY and (each.pod, each.address) in proven)
        for each in after
    )


def _port(ports: Iterable[Mapping[str, Any]]) -> int | None:
    for port in ports:
        if port.get("name") == PORT_NAME and port.get("port"):
            return int(port["port"])
    return None


def _parse_endpoints(
    items: Iterable[Mapping[str, Any]], deployment: str, address_type: str, port: int
) -> Iterable[Endpoint]:
    for item in items:
        addresses = item.get("addresses") or ()
        if not addresses:
            continue
        host = addresses[0] if address_type == "IPv4" else f"[{addresses[0]}]"
        pod = (item.get("targetRef") or {}).get("name") or host
        state = _state(item.get("conditions") or {})
        yield Endpoint(f"{host}:{port}", pod, state, _revision(pod, deployment))


def _revision(pod: str, deployment: str) -> str:
    prefix = f"{deployment}-"
    return pod.removeprefix(prefix).partition("-")[0] if pod.startswith(prefix) else ""


def _state(conditions: Mapping[str, Any]) -> EndpointState:
    if conditions.get("terminating"):
        return EndpointState.TERMINATING
    ready = conditions.get("ready")
    return EndpointState.READY if ready is None or ready else EndpointState.NOT_READY
