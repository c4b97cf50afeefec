"""Which model names exist, and which endpoints serve each: the router's picture of the cluster.

`kube` feeds it (replace_* after a list, apply_* and remove_* after an event), `proxy` asks it (resolve). Pure state: no I/O, no
clock, safe to call from one event loop only. A resolve is two dictionary look-ups; all deriving is done when
something changes. The last known state stays until something newer is fed, so a dead API server stops no traffic.

Names: every LLMDeployment answers to `namespace/name`, always. Its served name and aliases go to the oldest object
that claims them (creationTimestamp, then namespace and name). What is left of the names goes to adapters: those of
spec.adapters, the oldest LLMDeployment first, then LLMAdapters by age. Who lost a name is reported once, not at each event.
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
    adapters: tuple[str, ...] = ()
    loaded: tuple[tuple[str, int], ...] = ()
    """Ready pods that have an adapter, by its name, as the status tells."""
    from_zero: bool = False
    """It rests at zero while nobody asks, and a request that waits starts its first pod."""

    @property
    def key(self) -> DeploymentKey:
        return (self.namespace, self.name)

    @property
    def qualified_name(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Adapter:
    """What the router keeps of one LLMAdapter: another name that the pods of an LLMDeployment answer to."""

    namespace: str
    name: str
    deployment: DeploymentKey
    served_name: str
    created: str

    @property
    def key(self) -> DeploymentKey:
        return (self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a name leads. known_as: the name that the pods know; `namespace/name` is known to the router only."""

    key: DeploymentKey
    known_as: str
    adapter: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """The answer to a model name: the LLMDeployment, its endpoints in every state, and what to ask them for.

    adapter: pods that are ready may not have it yet, or not any more.
    """

    deployment: Deployment
    endpoints: tuple[Endpoint, ...]
    known_as: str
    adapter: bool = False

    @property
    def ready(self) -> tuple[Endpoint, ...]:
        return tuple(endpoint for endpoint in self.endpoints if endpoint.state is EndpointState.READY)

    @property
    def usable(self) -> tuple[Endpoint, ...]:
        """The ready ones; where there is none, those that were ready: one that is late answers, and a refusal costs nothing."""
        return self.ready or tuple(endpoint for endpoint in self.endpoints if endpoint.faltering)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of /v1/models. num_ready: pods that answer to the name. adapter: it is one of the deployment's model."""

    id: str
    deployment: Deployment
    created_unix_s: int
    num_ready: int
    adapter: bool = False


def parse_deployment(manifest: Mapping[str, Any]) -> Deployment | None:
    """Read an LLMDeployment; None when it has no name (never from a real API server)."""
    metadata = manifest.get("metadata") or {}
    namespace, name = metadata.get("namespace"), metadata.get("name")
    if not (namespace and name):
        return None
    spec, status = manifest.get("spec") or {}, manifest.get("status") or {}
    model = spec.get("model") or {}
    served_name = str(model.get("servedName") or name)
    aliases = tuple(dict.fromkeys(str(alias) for alias in model.get("aliases") or () if alias != served_name))
    created = str(metadata.get("creationTimestamp") or "")
    adapters = tuple(str(each["name"]) for each in spec.get("adapters") or ())
    loaded = tuple((str(each["name"]), int(each.get("loaded") or 0)) for each in status.get("adapters") or ())
    from_zero = (spec.get("autoscaling") or {}).get("minReplicas") == 0
    return Deployment(
        namespace, name, served_name, aliases, created, parse_weights(status), adapters, loaded, from_zero
    )


def parse_adapter(manifest: Mapping[str, Any]) -> Adapter | None:
    """Read an LLMAdapter; None when it names no LLMDeployment (never from a real API server)."""
    metadata, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
    namespace, name, deployment = metadata.get("namespace"), metadata.get("name"), spec.get("deployment")
    if not (namespace and name and deployment):
        return None
    created = str(metadata.get("creationTimestamp") or "")
    return Adapter(namespace, name, (namespace, deployment), str(spec.get("servedName") or name), created)


_Loss = tuple[str, DeploymentKey, DeploymentKey, bool]
"""A name, who has it, who does not get it, and whether that is for an adapter."""


class Registry:
    """LLMDeployments, LLMAdapters and EndpointSlices as last seen, and the name table derived from them."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called after each change of names or endpoints."""
        self._changed = changed
        self._deployments: dict[DeploymentKey, Deployment] = {}
        self._adapters: dict[DeploymentKey, Adapter] = {}  # by (namespace, name of the adapter)
        self._slices: dict[DeploymentKey, Slice] = {}  # by (namespace, name of the slice)
        self._endpoints: dict[DeploymentKey, tuple[Endpoint, ...]] = {}
        self._names: dict[str, Target] = {}
        self._reported: set[_Loss] = set()

    # -- asking

    def resolve(self, model: str) -> Route | None:
        """The LLMDeployment that answers to `model`, or None."""
        target = self._names.get(model)
        if target is None:
            return None
        key = target.key
        return Route(self._deployments[key], self._endpoints.get(key, ()), target.known_as, target.adapter)

    def models(self) -> list[ModelEntry]:
        """Every name a client may use, sorted; `namespace/name` only for objects that lost their served name."""
        entries = []
        for name, target in sorted(self._names.items()):
            deployment = self._deployments[target.key]
            own = self._names.get(deployment.served_name)
            if name == deployment.qualified_name and own is not None and (own.key, own.adapter) == (target.key, False):
                continue
            entries.append(self._entry(name, target))
        return entries

    def model(self, name: str) -> ModelEntry | None:
        """One entry by any name, `namespace/name` included."""
        target = self._names.get(name)
        return None if target is None else self._entry(name, target)

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

    def replace_adapters(self, scope: str, manifests: Iterable[Mapping[str, Any]]) -> None:
        """Take a complete list of namespace `scope` ("" for all namespaces)."""
        fresh = {
            parsed.key: parsed for parsed in (_guarded(parse_adapter, item) for item in manifests) if parsed is not None
        }
        kept = {key: value for key, value in self._adapters.items() if scope and key[0] != scope}
        self._adapters = kept | fresh
        self._derive_names()

    def apply_adapter(self, manifest: Mapping[str, Any]) -> None:
        """Take one added or modified LLMAdapter."""
        parsed = _guarded(parse_adapter, manifest)
        if parsed is not None and self._adapters.get(parsed.key) != parsed:
            self._adapters[parsed.key] = parsed
            self._derive_names()

    def remove_adapter(self, manifest: Mapping[str, Any]) -> None:
        """Take one deleted LLMAdapter."""
        parsed = _guarded(parse_adapter, manifest)
        if parsed is not None and self._adapters.pop(parsed.key, None) is not None:
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
        self._changed()

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

    def _entry(self, name: str, target: Target) -> ModelEntry:
        deployment = self._deployments[target.key]
        ready = sum(each.state is EndpointState.READY for each in self._endpoints.get(target.key, ()))
        if target.adapter:
            ready = min(ready, dict(deployment.loaded).get(name, 0))
        return ModelEntry(name, deployment, _unix_s(deployment.created), ready, target.adapter)

    def _derive_endpoints(self, changed: Iterable[DeploymentKey]) -> None:
        for key in changed:
            views = [view for view in self._slices.values() if view.deployment == key]
            if views:
                self._endpoints[key] = remember(self._endpoints.get(key, ()), merge(views))
            else:
                self._endpoints.pop(key, None)
        self._changed()

    def _derive_names(self) -> None:
        every = sorted(self._deployments.values(), key=lambda item: (item.created or "9", item.key))
        names = {each.qualified_name: Target(each.key, each.served_name) for each in every}
        lost: set[_Loss] = set()

        def claim(name: str, key: DeploymentKey, *, adapter: bool) -> None:
            winner = names.setdefault(name, Target(key, name, adapter))
            if winner.key != key or (adapter and not winner.adapter):
                lost.add((name, winner.key, key, adapter))

        for deployment in every:
            for name in (deployment.served_name, *deployment.aliases):
                claim(name, deployment.key, adapter=False)
        for deployment in every:
            for name in deployment.adapters:
                claim(name, deployment.key, adapter=True)
        for adapter in sorted(self._adapters.values(), key=lambda item: (item.created or "9", item.key)):
            if adapter.deployment in self._deployments:
                claim(adapter.served_name, adapter.deployment, adapter=True)
        self._names = names
        for loss in sorted(lost - self._reported):
            _report(*loss)
        self._reported = lost
        self._changed()


def _report(name: str, winner: DeploymentKey, loser: DeploymentKey, adapter: bool) -> None:
    if adapter:
        log.warning(
            "the adapter %r of the LLMDeployment %s/%s cannot be asked for: the name belongs to %s/%s already (models come before "
            "adapters, older ones before younger ones); give it another name",
            name, *loser, *winner,
        )  # fmt: skip
        return
    log.warning(
        "model name %r is claimed by the LLMDeployments %s/%s and %s/%s; the first keeps it (namespace/name belongs to its "
        "object, else the older one wins), the second answers to %r only until its servedName or alias is changed",
        name, *winner, *loser, "/".join(loser),
    )  # fmt: skip


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
