"""The operator's hands: reads and writes of one LLMDeployment and its children. Every call has a deadline.

Reads go to the API server and see our own writes, so decisions never rest on a stale cache.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx2
from lightkube import AsyncClient
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.types import CascadeType, PatchType

from quire_operator import labels, telemetry
from quire_operator.cluster import kinds
from quire_operator.cluster.drift import digest, dropped, marked, settled
from quire_operator.cluster.fence import FencedTransport
from quire_operator.errors import ApplyError
from quire_operator.observation import Body, Observation, kind_of, owned_by, pod_views
from quire_operator.resources.units import workload_of
from quire_operator.spec import Key
from quire_operator.status import Event

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 20.0
NOTE_BYTES = 1024
"""The API server refuses an Event whose note is longer."""
_REFUSED = ("failed to create typed patch object", "failed calling webhook")
"""Answers of 500 that are about the object all the same: a field that server-side apply does not know, and who should judge it is not there."""

_Child = tuple[str, str]
"""Kind and name."""


@dataclass(frozen=True)
class _Applied:
    """What was sent last (its hash), the version that it became, and the first field of it that the server threw away."""

    mark: str
    version: str
    lost: str | None


def connect(require: Callable[[], None] | None = None, *, timeout_s: float = REQUEST_TIMEOUT_S) -> AsyncClient:
    """KUBECONFIG, ~/.kube/config, or the pod's service account. `require` raises when nothing may be written."""
    config = KubeConfig.from_env().get()
    transport = None
    if require is not None:
        assert config is not None and config.user is not None, "the client would refuse it too"
        verify = verify_cluster(config.cluster, config.user, config.abs_file, trust_env=False)
        transport = FencedTransport(require, verify=verify)
    return AsyncClient(
        config=config,
        timeout=httpx2.Timeout(timeout_s),
        field_manager=labels.FIELD_MANAGER,
        trust_env=False,
        transport=transport,
    )


class Cluster:
    """Everything but watches. Safe to use from many tasks. groups: there are LeaderWorkerSets."""

    def __init__(self, client: AsyncClient, *, groups: bool = False) -> None:
        self.client = client
        self._groups = groups
        self._applied: dict[Key, dict[_Child, _Applied]] = {}
        """By the object that owns the child."""

    async def observe(self, key: Key) -> Observation | None:
        """None when the LLMDeployment is gone."""
        found, bodies = (
            asyncio.gather(
                self._children(kinds.Deployment, key),
                self._children(kinds.StatefulSet, key),
                self._leader_worker_sets(key),
                self._children(kinds.Pod, key),
            ),
            asyncio.gather(
                self.get(kinds.LLMDeployment, key.name, key.namespace),
                self.get(kinds.Service, key.name, key.namespace),
                self.get(kinds.HorizontalPodAutoscaler, key.name, key.namespace),
            ),
        )
        (deployments, sets, groups, pods), (body, service, hpa) = await asyncio.gather(found, bodies)
        if body is None:
            return None
        uid = body["metadata"]["uid"]
        listed = [*deployments, *sets, *groups]
        unlabelled, cache = await asyncio.gather(self._unlabelled(key, pods, listed), self._model_cache(body))
        children = [item for item in (*listed, *unlabelled) if owned_by(item, uid)]
        return Observation(
            body=body,
            deployments=[item for item in children if kind_of(item) == "Deployment"],
            pods=pods,
            service=service,
            hpa=hpa,
            sets=[item for item in children if kind_of(item) == "StatefulSet"],
            groups=[item for item in children if kind_of(item) == "LeaderWorkerSet"],
            model_cache=cache,
        )

    async def _model_cache(self, body: Body) -> Body | None:
        scheme, _, name = str(((body.get("spec") or {}).get("model") or {}).get("source", "")).partition("://")
        return await self.get(kinds.ModelCache, name, body["metadata"]["namespace"]) if scheme == "cache" else None

    async def _unlabelled(self, key: Key, pods: Sequence[Body], listed: Sequence[Body]) -> list[Body]:
        """Workloads that no list has, because somebody removed their label: their pods still say whose they are."""
        known = {item["metadata"]["name"] for item in listed}
        places = {workload_of(key.name, pod) for pod in pod_views(pods) if not pod.terminating}
        lost = sorted(place for place in places if place is not None and place[1] not in known)
        found = await asyncio.gather(*(self._named(kinds.OF[kind], name, key.namespace) for kind, name in lost))
        return [item for items in found for item in items]

    async def _named(self, kind: kinds.Kind, name: str, namespace: str) -> list[Body]:
        """None or one. As a list: no other read of workloads is granted."""
        if kind is kinds.LeaderWorkerSet and not self._groups:
            return []
        found = self.client.list(kind, namespace=namespace, fields={"metadata.name": name})
        return [item async for item in found]

    async def _leader_worker_sets(self, key: Key) -> list[Body]:
        try:
            return await self._children(kinds.LeaderWorkerSet, key) if self._groups else []
        except httpx2.HTTPStatusError as error:
            if error.response.status_code == 404:
                return []  # the definition is gone, and what there was of it
            raise

    async def list_all(self, namespaces: Sequence[str], kind: kinds.Kind = kinds.LLMDeployment) -> list[Body]:
        """Every LLMDeployment (or other kind of ours) of the watched namespaces (none named: of all)."""
        found: list[Body] = []
        for namespace in namespaces or ("*",):
            found += [item async for item in self.client.list(kind, namespace=namespace, chunk_size=500)]
        return found

    async def get(self, kind: kinds.Kind, name: str, namespace: str | None = None) -> Body | None:
        """None where there is no such object, or no such kind."""
        try:
            if namespace is None:
                found: Body = await self.client.get(kind, name)
            else:
                found = await self.client.get(kind, name, namespace=namespace)
        except httpx2.HTTPStatusError as error:
            if error.response.status_code == 404:
                return None
            raise
        return found

    async def apply(self, wanted: Mapping[str, Any], live: Body | None) -> bool:
        """Server-side apply, unless `live` is that already; True when something was written.

        Raises ApplyError with the server's sentence when the object is refused, and when the name is taken by an object
        of somebody else, which would be overwritten now and deleted with the LLMDeployment later.
        """
        kind, metadata = wanted["kind"], wanted["metadata"]
        where = (kind, metadata["namespace"], metadata["name"])
        owner = Key(metadata["namespace"], metadata["ownerReferences"][0]["name"])
        full = marked(wanted)
        mark = full["metadata"]["annotations"][labels.APPLIED_HASH]
        before = self._applied.get(owner, {}).get((kind, metadata["name"]))
        if live is not None:
            theirs = live["metadata"].get("labels", {})
            ours = (labels.DEPLOYMENT, labels.MODEL_CACHE, labels.UNIT_PODS)
            foreign = any(theirs.get(key) != metadata["labels"].get(key) for key in ours)
            if foreign and not owned_by(live, metadata["ownerReferences"][0]["uid"]):
                raise ApplyError(
                    f"{kind} {metadata['namespace']}/{metadata['name']} is there already and was not made by the operator: "
                    f"delete it, or give the {metadata['ownerReferences'][0]['kind']} another name"
                )
            same = before is not None and (before.mark, before.version) == (mark, live["metadata"]["resourceVersion"])
            if same or settled(full, live):
                if before is not None and before.mark == mark:
                    _complain(where, before.lost)
                return False
        written = await self._refusable(
            where,
            self.client.patch(
                kinds.OF[kind], where[2], full, namespace=where[1], patch_type=PatchType.APPLY, force=True
            ),
        )
        telemetry.WRITES.labels(kind=kind).inc()
        lost = dropped(wanted, written)
        applied = _Applied(mark, written["metadata"]["resourceVersion"], lost)
        self._applied.setdefault(owner, {})[kind, metadata["name"]] = applied
        _complain(where, lost)
        return True

    async def resize(self, key: Key, workload: str, replicas: int, kind: str = "Deployment") -> None:
        """Set the size of an old revision, whose template we no longer build."""
        patch = {"spec": {"replicas": replicas}}
        await self._refusable(
            (kind, key.namespace, workload),
            self.client.patch(kinds.OF[kind], workload, patch, namespace=key.namespace, patch_type=PatchType.MERGE),
        )
        telemetry.WRITES.labels(kind=kind).inc()

    async def mark(self, kind: kinds.Kind, key: Key, name: str, marks: Mapping[str, str]) -> None:
        """Labels of an object that is ours; the other ones stay."""
        patch = {"metadata": {"labels": dict(marks)}}
        await self._refusable(
            (kind.__name__, key.namespace, name),
            self.client.patch(kind, name, patch, namespace=key.namespace, patch_type=PatchType.MERGE),
        )
        telemetry.WRITES.labels(kind=kind.__name__).inc()

    async def annotate(self, kind: kinds.Kind, key: Key, name: str, notes: Mapping[str, str]) -> None:
        """Of an object that is ours; the other annotations stay."""
        patch = {"metadata": {"annotations": dict(notes)}}
        await self.client.patch(kind, name, patch, namespace=key.namespace, patch_type=PatchType.MERGE)
        telemetry.WRITES.labels(kind=kind.__name__).inc()

    async def set_unit_ready(self, key: Key, pod: str, *, ready: bool) -> None:
        """The condition that the leader of a unit waits for; no error when the pod is gone."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        told = {"type": labels.UNIT_READY, "status": "True" if ready else "False", "lastTransitionTime": now}
        patch = {"status": {"conditions": [told]}}
        try:
            await self.client.patch(
                kinds.PodStatus, pod, patch, namespace=key.namespace, patch_type=PatchType.STRATEGIC
            )
        except ApiError as error:
            if error.status.code != 404:
                raise
        telemetry.WRITES.labels(kind="Pod").inc()

    async def delete(self, kind: kinds.Kind, key: Key, name: str) -> None:
        """No error when it is gone already."""
        try:
            await self.client.delete(kind, name, namespace=key.namespace, cascade=CascadeType.BACKGROUND)
        except ApiError as error:
            if error.status.code != 404:
                raise
        telemetry.WRITES.labels(kind=kind.__name__).inc()
        self._applied.get(key, {}).pop((kind.__name__, name), None)

    def forget(self, key: Key) -> None:
        """Drop what is remembered about the children of an object that is gone."""
        self._applied.pop(key, None)

    async def set_scale(self, key: Key, replicas: int, *, version: str) -> bool:
        """Write spec.replicas through /scale as an autoscaler would; False when the object is not of that version any more."""
        patch = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        try:
            await self.client.patch(
                kinds.LLMDeploymentScale, key.name, patch, namespace=key.namespace, patch_type=PatchType.MERGE
            )
        except ApiError as error:
            if error.status.code != 409:
                raise
            return False
        telemetry.WRITES.labels(kind="Scale").inc()
        return True

    async def clear_command(self, body: Body, command: str) -> None:
        """Remove the annotation quire.dev/rollout, unless it says something else by now."""
        metadata = body["metadata"]
        path = f"/metadata/annotations/{labels.ROLLOUT.replace('/', '~1')}"
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
            {"op": "test", "path": path, "value": command},
            {"op": "remove", "path": path},
        ]
        try:
            await self.client.patch(
                kinds.LLMDeployment,
                metadata["name"],
                patch,
                namespace=metadata["namespace"],
                patch_type=PatchType.JSON,
            )
        except ApiError as error:
            if error.status.code not in (404, 409, 422):
                raise
            log.debug("%s of %s/%s not removed: %s", labels.ROLLOUT, metadata["namespace"], metadata["name"], error)
            return
        telemetry.WRITES.labels(kind=labels.KIND).inc()

    async def write_status(self, body: Body, status: Mapping[str, Any], *, kind: str = labels.KIND) -> bool:
        """True when something was written; an equal status costs nothing. An object deleted meanwhile is no error."""
        if _comparable(body.get("status") or {}) == _comparable(status):
            return False
        metadata = body["metadata"]
        patch = {
            "apiVersion": labels.API_VERSION,
            "kind": kind,
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
            "status": status,
        }
        try:
            await self.client.patch(
                kinds.STATUS_OF[kind],
                metadata["name"],
                patch,
                namespace=metadata["namespace"],
                patch_type=PatchType.APPLY,
                force=True,
            )
        except ApiError as error:
            if error.status.code in (404, 409):
                log.debug("status of %s/%s not written: %s", metadata["namespace"], metadata["name"], error)
                return False
            raise
        telemetry.WRITES.labels(kind="Status").inc()
        return True

    async def post_event(self, body: Body, event: Event, *, kind: str = labels.KIND) -> None:
        """A lost event is logged, never an error: what it says is in the status too. One of an occasion that was told is not told again
        while the API server keeps the first (an hour)."""
        metadata, now = body["metadata"], datetime.now(UTC)
        name: dict[str, str] = {"generateName": f"{metadata['name']}-"}
        if event.occasion:
            name = {"name": f"{metadata['name']}-{digest({'uid': metadata['uid'], 'occasion': event.occasion})}"}
        stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        entry = {
            "metadata": {**name, "namespace": metadata["namespace"]},
            "eventTime": stamp,
            "reportingController": "quire.dev/operator",
            "reportingInstance": socket.gethostname()[:128],
            "action": event.action,
            "reason": event.reason,
            "note": event.message.encode()[:NOTE_BYTES].decode(errors="ignore"),
            "type": event.kind,
            "regarding": {
                "apiVersion": labels.API_VERSION,
                "kind": kind,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
        }
        try:
            await self.client.create(kinds.Event.from_dict(entry))
        except (ApiError, httpx2.HTTPError) as error:
            if event.occasion and isinstance(error, ApiError) and error.status.code == 409:
                return
            log.warning("event %s of %s/%s is lost: %s", event.reason, metadata["namespace"], metadata["name"], error)
        telemetry.WRITES.labels(kind="Event").inc()

    async def listed(self, kind: kinds.Kind, namespace: str, marks: Mapping[str, str]) -> list[Body]:
        """Those with all the labels `marks`; the objects of a list carry no kind."""
        return [item async for item in self.client.list(kind, namespace=namespace, labels=dict(marks), chunk_size=500)]

    async def _children(self, kind: kinds.Kind, key: Key) -> list[Body]:
        return await self.listed(kind, key.namespace, {labels.DEPLOYMENT: key.name})

    async def _refusable(self, where: tuple[str, str, str], request: Awaitable[Any]) -> Any:
        kind, namespace, name = where
        try:
            return await request
        except ApiError as error:
            if not _is_refusal(error):
                raise
            raise ApplyError(
                f"{kind} {namespace}/{name} is refused by the API server: {error.status.message}"
            ) from error
        except httpx2.HTTPStatusError as error:
            if error.response.status_code != 404:
                raise
            raise ApplyError(
                f"{kind} {namespace}/{name} cannot be made: this cluster has no {_group_of(kind)}; install what brings it, "
                "upgrade the cluster, or do without it"
            ) from error


def _complain(where: tuple[str, str, str], lost: str | None) -> None:
    """The API server answers well when it throws a field away; without the field the pods would fail for no visible reason."""
    if lost is not None:
        kind, namespace, name = where
        raise ApplyError(
            f"{kind} {namespace}/{name} was taken without {lost}, which this cluster does not support: "
            "turn on the feature gate, upgrade the cluster, or do without the field"
        )


def is_missing(error: httpx2.HTTPStatusError) -> bool:
    """There is no such kind, or no right to see it. A path that nobody serves is refused in plain text, which is no ApiError."""
    return error.response.status_code in (403, 404)


def _group_of(kind: str) -> str:
    resource = kinds.OF[kind]._api_info.resource
    return f"{resource.group}/{resource.version}".removeprefix("/")


def _is_refusal(error: ApiError) -> bool:
    """The server judged the object, rather than failing to; trying again alone will not help."""
    code, message = error.status.code or 0, error.status.message or ""
    return (400 <= code < 500 and code != 429) or any(words in message for words in _REFUSED)


def _comparable(status: Mapping[str, Any]) -> dict[str, Any]:
    """Conditions are a map by type: their order says nothing."""
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    return {**status, "conditions": conditions}
