"""Which model names exist, and which endpoints serve each: the router's picture of the cluster.

`kube` feeds it (replace_* after a list, apply_* and remove_* after an event), `proxy` asks it (resolve). Pure state: no I/O, no
clock, safe to call from one event loop only. A resolve is two dictionary look-ups; all deriving is done when
something changes. The last known state stays until something newer is fed, so a dead API server stops no traffic.

Names: every LLMDeployment answers to `namespace/name`, always. Its served name and aliases go to the oldest object
that claims them (creationTimestamp, then namespace and name); who lost a name is reported once, not at each event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from quire_router.endpoints import DeploymentKey, Endpoint, EndpointState, Slice, merge, parse_slice, remember
from quire_router.traffic import Weights, parse_weights

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the router keeps of one LLMDeployment. `served_name` is the name its pods answer to, `weights` the shares of its revisions."""

    namespace: str
    name: str
    served_name: str
    aliases: tuple[str, ...]
    created: str
    weights: Weights = ()

    @property
    def key(self) -> DeploymentKey:
        return (self.namespace, self.name)

    @property
    def qualified_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    def knows(self, model: str) -> bool:
        """Whether its pods answer to this name; `namespace/name` is known to the router only."""
        return model == self.served_name or model in self.aliases


@dataclass(frozen=True, slots=True)
class Route:
    """The answer to a model name: the LLMDeployment and its endpoints in every state."""

    deployment: Deployment
    endpoints: tuple[Endpoint, ...]

    @property
    def ready(self) -> tuple[Endpoint, ...]:
        return tuple(endpoint for endpoint in self.endpoints if endpoint.state is EndpointState.READY)

    @property
    def usable(self) -> tuple[Endpoint, ...]:
        """The ready ones; where there is none, those that were ready: one that is late answers, and a refusal costs nothing."""
        return self.ready or tuple(endpoint for endpoint in self.endpoints if endpoint.faltering)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of /v1/models."""

    id: str
    deployment: Deployment
    created_unix_s: int
    num_ready: int


def parse_deployment(manifest: Mapping[str, Any]) -> Deployment | None:
    """Read an LLMDeployment; None when it has no name (never from a real API server)."""
    metadata = manifest.get("metadata") or {}
    namespace, name = metadata.get("namespace"), metadata.get("name")
    if not (namespace and name):
        return None
    model = (manifest.get("spec") or {}).get("model") or {}
    served_name = str(model.get("servedName") or name)
    aliases = tuple(dict.fromkeys(str(alias) for alias in model.get("aliases") or () if alias != served_name))
    created = str(metadata.get("creationTimestamp") or "")
    return Deployment(namespace, name, served_name, aliases, created, parse_weights(manifest.get("status") or {}))


class Registry:
    """LLMDeployments and EndpointSlices as last seen, and the name table derived from them."""

    def __init__(self) -> None:
        self._deployments: dict[DeploymentKey, Deployment] = {}
        self._slices: dict[DeploymentKey, Slice] = {}  # by (namespace, name of the slice)
        self._endpoints: dict[DeploymentKey, tuple[Endpoint, ...]] = {}
        self._names: dict[str, DeploymentKey] = {}
        self._reported: set[tuple[str, DeploymentKey, DeploymentKey]] = set()

    # -- asking

    def resolve(self, model: str) -> Route | None:
        """The LLMDeployment that answers to `model`, or None."""
        key = self._names.get(model)
        if key is None:
            return None
        return Route(self._deployments[key], self._endpoints.get(key, ()))

    def models(self) -> list[ModelEntry]:
        """Every name a client may use, sorted; `namespace/name` only for objects that lost their served name."""
        entries = []
        for name, key in sorted(self._names.items()):
            deployment = self._deployments[key]
            if name == deployment.qualified_name and self._names.get(deployment.served_name) == key:
                continue
            entries.append(self._entry(name, key))
        return entries

    def model(self, name: str) -> ModelEntry | None:
        """One entry by any name, `namespace/name` included."""
        key = self._names.get(name)
        return None if key is None else self._entry(name, key)

    def count_endpoints(self) -> Iterable[tuple[DeploymentKey, dict[EndpointState, int]]]:
        """Endpoints by state for each known LLMDeployment, zeros included."""
        for key in sorted(self._deployments):
            counts = dict.fromkeys(EndpointState, 0)
            for endpoint in self._endpoints.get(key, ()):
                counts[endpoint.state] += 1
            yield key, counts

    # -- feeding

    def replace_deployments(self, scope: str, manifests: Iterable[Mapping[str, Any]]) -> None:
        """Take a complete list of namespace `scope` ("" for all namespaces)."""
        fresh = {
            parsed.key: parsed
            for parsed in (_guarded(parse_deployment, item) for item in manifests)
            if parsed is not None
        }
        kept = {key: value for key, value in self._deployments.items() if scope and key[0] != scope}
        self._deployments = kept | fresh
        self._derive_names()

    def apply_deployment(self, manifest: Mapping[str, Any]) -> None:
        """Take one added or modified LLMDeployment."""
        parsed = _guarded(parse_deployment, manifest)
        if parsed is not None and self._deployments.get(parsed.key) != parsed:
            self._deployments[parsed.key] = parsed
            self._derive_names()

    def remove_deployment(self, manifest: Mapping[str, Any]) -> None:
        """Take one deleted LLMDeployment."""
        parsed = _guarded(parse_deployment, manifest)
        if parsed is not None and self._deployments.pop(parsed.key, None) is not None:
            self._derive_names()

    def replace_slices(self, scope: str, manifests: Iterable[Mapping[str, Any]]) -> None:
        """Take a complete list of namespace `scope` ("" for all namespaces)."""
        fresh = {
            (parsed.namespace, parsed.name): parsed
            for parsed in (_guarded(parse_slice, item) for item in manifests)
            if parsed is not None
        }
        kept = {key: value for key, value in self._slices.items() if scope and key[0] != scope}
        self._slices = kept | fresh
        by_deployment: dict[DeploymentKey, list[Slice]] = {}
        for view in self._slices.values():
            by_deployment.setdefault(view.deployment, []).append(view)
        self._endpoints = {
            key: remember(self._endpoints.get(key, ()), merge(views)) for key, views in by_deployment.items()
        }

    def apply_slice(self, manifest: Mapping[str, Any]) -> None:
        """Take one added or modified EndpointSlice; one that lost its label counts as deleted."""
        parsed = _guarded(parse_slice, manifest)
        if parsed is None:
            self.remove_slice(manifest)
            return
        before = self._slices.get((parsed.namespace, parsed.name))
        self._slices[(parsed.namespace, parsed.name)] = parsed
        self._derive_endpoints({parsed.deployment} | ({before.deployment} if before else set()))

    def remove_slice(self, manifest: Mapping[str, Any]) -> None:
        """Take one deleted EndpointSlice."""
        metadata = manifest.get("metadata") or {}
        before = self._slices.pop((str(metadata.get("namespace")), str(metadata.get("name"))), None)
        if before is not None:
            self._derive_endpoints({before.deployment})

    # -- deriving

    def _entry(self, name: str, key: DeploymentKey) -> ModelEntry:
        route = Route(self._deployments[key], self._endpoints.get(key, ()))
        return ModelEntry(name, route.deployment, _unix_s(route.deployment.created), len(route.ready))

    def _derive_endpoints(self, changed: Iterable[DeploymentKey]) -> None:
        for key in changed:
            views = [view for view in self._slices.values() if view.deployment == key]
            if views:
                self._endpoints[key] = remember(self._endpoints.get(key, ()), merge(views))
            else:
                self._endpoints.pop(key, None)

    def _derive_names(self) -> None:
        names = {deployment.qualified_name: key for key, deployment in self._deployments.items()}
        lost: set[tuple[str, DeploymentKey, DeploymentKey]] = set()
        oldest_first = sorted(self._deployments.values(), key=lambda item: (item.created or "9", item.key))
        for deployment in oldest_first:
            for name in (deployment.served_name, *deployment.aliases):
                winner = names.setdefault(name, deployment.key)
                if winner != deployment.key:
                    lost.add((name, winner, deployment.key))
        self._names = names
        for name, winner, loser in sorted(lost - self._reported):
            log.warning(
                "model name %r is claimed by the LLMDeployments %s/%s and %s/%s; the first keeps it (namespace/name belongs to its "
                "object, else the older one wins), the second answers to %r only until its servedName or alias is changed",
                name, *winner, *loser, "/".join(loser),
            )  # fmt: skip
        self._reported = lost


def _guarded(parse: Callable[[Mapping[str, Any]], T | None], manifest: Mapping[str, Any]) -> T | None:
    """One object of an unexpected shape is left out; it must not stop the others."""
    try:
        return parse(manifest)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        log.warning("an object of an unexpected shape is left out (%s): %s", error, manifest.get("metadata"))
        return None


def _unix_s(timestamp: str) -> int:
    try:
        return int(datetime.fromisoformat(timestamp).timestamp())
    except ValueError:
        return 0
