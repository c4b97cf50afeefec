"""Bodies as the API server would send them, and a small cluster in memory that the reconcile loop works on.

The cluster stands at the seam `quire_operator.cluster.Cluster`: it keeps what is applied, plays the Deployment
controller one step at a time when told to, and counts writes. It validates nothing; a real API server does that in e2e.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from typing import Any

from quire_operator import labels
from quire_operator.cluster.drift import marked, settled
from quire_operator.errors import ApplyError
from quire_operator.observation import Observation
from quire_operator.policy import revision_of
from quire_operator.resources import PodDefaults, build_pod_template, build_workload
from quire_operator.resources.units import build_workers
from quire_operator.spec import Deployment, Key, parse
from quire_operator.status import Event

DEFAULTS = PodDefaults("quire/runtime:test", "IfNotPresent")
KEY = Key("demo", "smol")


def body(
    spec: Mapping[str, Any] | None = None, *, generation: int = 1, status: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """An LLMDeployment; `spec` is laid over a minimal one."""
    return {
        "apiVersion": labels.API_VERSION,
        "kind": labels.KIND,
        "metadata": {
            "name": KEY.name,
            "namespace": KEY.namespace,
            "uid": "uid-1",
            "generation": generation,
            "resourceVersion": "1",
        },
        "spec": {"model": {"source": "file:///models/smollm2.gguf"}, **(spec or {})},
        **({"status": status} if status is not None else {}),
    }


def owner(spec: Mapping[str, Any] | None = None, *, generation: int = 1) -> Deployment:
    return parse(body(spec, generation=generation))


def revision(of: Deployment) -> str:
    return revision_of(build_pod_template(of, DEFAULTS))


def workloads(of: Deployment, replicas: int = 1) -> list[dict[str, Any]]:
    """Of one revision `abc`; where its replicas are units, with the workers of the first."""
    template = build_pod_template(of, DEFAULTS)
    if of.unit_size == 1:
        return [build_workload(of, "abc", template, replicas)]
    leaders = build_workload(of, "abc", template, replicas, kind="StatefulSet")
    return [leaders, build_workers(of, leaders, 0)]


def pod(
    name: str,
    revision_name: str,
    *,
    ready: bool = True,
    terminating: bool = False,
    status: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A pod of the LLMDeployment `smol`; `status` is laid over an ordinary one."""
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "True" if ready else "False"},
    ]
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": KEY.namespace,
        "labels": {**labels.stable_selector(KEY.name), labels.REVISION: revision_name},
    }
    if terminating:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    base = {"phase": "Running", "podIP": "198.18.1.9", "conditions": conditions}
    return {"metadata": metadata, "status": {**base, **(status or {})}}


class MemoryCluster:
    """What `Reconciler` needs of `Cluster`. `refuse` makes the next apply of a kind fail with that sentence."""

    def __init__(self, first: dict[str, Any]) -> None:
        self.body: dict[str, Any] | None = first
        self.children: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.events: list[Event] = []
        self.writes: list[str] = []
        self.refuse: dict[str, str] = {}
        self.forgotten: list[Key] = []
        self.model_cache: dict[str, Any] | None = None
        self._occasions: set[str] = set()
        self._numbers = itertools.count(2)

    async def annotate(self, kind: Any, key: Key, name: str, notes: Mapping[str, str]) -> None:
        self.children[kind.__name__, name]["metadata"].setdefault("annotations", {}).update(notes)
        self.writes.append(f"annotate {name}")

    async def mark(self, kind: Any, key: Key, name: str, marks: Mapping[str, str]) -> None:
        self.children[kind.__name__, name]["metadata"].setdefault("labels", {}).update(marks)
        self.writes.append(f"mark {name}")

    async def set_unit_ready(self, key: Key, pod: str, *, ready: bool) -> None:
        conditions = self.pods[pod]["status"]["conditions"]
        conditions[:] = [each for each in conditions if each["type"] != labels.UNIT_READY]
        conditions.append({"type": labels.UNIT_READY, "status": "True" if ready else "False"})
        self.writes.append(f"gate {pod} {ready}")

    def edit(self, **spec: Any) -> None:
        """As kubectl edit: a new generation."""
        assert self.body is not None
        self.body["spec"].update(spec)
        self.body["metadata"]["generation"] += 1
        self.body["metadata"]["resourceVersion"] = f"v{self.body['metadata']['generation']}"

    def command(self, value: str) -> None:
        """As kubectl annotate."""
        assert self.body is not None
        self.body["metadata"].setdefault("annotations", {})[labels.ROLLOUT] = value

    @property
    def status(self) -> dict[str, Any]:
        assert self.body is not None
        return dict(self.body.get("status", {}))

    def condition(self, kind: str) -> dict[str, Any]:
        return next(each for each in self.status["conditions"] if each["type"] == kind)

    def sizes(self) -> dict[str, int]:
        return {
            item["metadata"]["labels"][labels.REVISION]: item["spec"]["replicas"]
            for (kind, _), item in self.children.items()
            if kind == "Deployment"
        }

    async def observe(self, key: Key) -> Observation | None:
        if self.body is None:
            return None
        children = copy.deepcopy(self.children)
        return Observation(
            body=copy.deepcopy(self.body),
            deployments=[_listed(item) for (kind, _), item in children.items() if kind == "Deployment"],
            pods=copy.deepcopy(list(self.pods.values())),
            service=children.get(("Service", key.name)),
            hpa=children.get(("HorizontalPodAutoscaler", key.name)),
            sets=[_listed(item) for (kind, _), item in children.items() if kind == "StatefulSet"],
            model_cache=copy.deepcopy(self.model_cache),
        )

    async def get(self, kind: Any, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        if kind.__name__ == labels.KIND:
            return copy.deepcopy(self.body)
        return copy.deepcopy(self.children.get((kind.__name__, name)))

    async def listed(self, kind: Any, namespace: str, marks: Mapping[str, str]) -> list[dict[str, Any]]:
        assert kind.__name__ == "Pod"
        return copy.deepcopy(list(self.pods.values()))

    async def apply(self, wanted: Mapping[str, Any], live: Mapping[str, Any] | None) -> bool:
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        if kind in self.refuse:
            raise ApplyError(self.refuse[kind])
        full = copy.deepcopy(marked(wanted))
        if live is not None and settled(full, live):
            return False
        stamp = next(self._numbers)
        full["metadata"] |= {"resourceVersion": str(stamp), "creationTimestamp": f"2026-01-01T00:{stamp:02d}:00Z"}
        self.children[kind, name] = full
        self.writes.append(f"apply {kind} {name}")
        return True

    async def resize(self, key: Key, workload: str, replicas: int, kind: str = "Deployment") -> None:
        self.children[kind, workload]["spec"]["replicas"] = replicas
        self.writes.append(f"resize {workload} {replicas}")

    async def delete(self, kind: Any, key: Key, name: str) -> None:
        self.children.pop((kind.__name__, name), None)
        self.writes.append(f"delete {kind.__name__} {name}")

    def forget(self, key: Key) -> None:
        self.forgotten.append(key)

    async def set_scale(self, key: Key, replicas: int, *, version: str) -> bool:
        assert self.body is not None
        if version != self.body["metadata"]["resourceVersion"]:
            return False
        self.edit(replicas=replicas)
        self.writes.append(f"scale {replicas}")
        return True

    async def write_status(self, seen: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
        assert self.body is not None
        if seen.get("status") == status:
            return False
        self.body["status"] = copy.deepcopy(dict(status))
        self.writes.append("status")
        return True

    async def clear_command(self, seen: Mapping[str, Any], command: str) -> None:
        assert self.body is not None
        notes = self.body["metadata"]["annotations"]
        if notes.get(labels.ROLLOUT) == command:
            del notes[labels.ROLLOUT]
            self.writes.append(f"clear {command}")

    async def post_event(self, seen: Mapping[str, Any], event: Event) -> None:
        if event.occasion == "" or event.occasion not in self._occasions:
            self.events.append(event)
        self._occasions.add(event.occasion)

    def play(self, *, broken: frozenset[str] = frozenset()) -> None:
        """The Deployment controller and the kubelets: delete what is too much, start what is missing, get pods ready."""
        for name in [name for name, item in self.pods.items() if "deletionTimestamp" in item["metadata"]]:
            del self.pods[name]
        for item in self.pods.values():
            if item["metadata"]["labels"][labels.REVISION] not in broken:
                item["status"]["conditions"][1]["status"] = "True"
        sizes = self.sizes()
        made = [item for (kind, _), item in self.children.items() if kind == "Deployment"]
        templates = {item["metadata"]["labels"][labels.REVISION]: item["spec"]["template"] for item in made}
        for revision_name, size in sizes.items():
            mine = [item for item in self.pods.values() if item["metadata"]["labels"][labels.REVISION] == revision_name]
            mine.sort(key=lambda item: item["status"]["conditions"][1]["status"] == "True")
            for item in mine[: max(len(mine) - size, 0)]:
                item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            for _ in range(size - len(mine)):
                fresh = pod(f"p-{next(self._numbers)}", revision_name, ready=False)
                fresh["spec"] = templates[revision_name]["spec"]
                self.pods[fresh["metadata"]["name"]] = fresh
        for item in self.pods.values():
            if item["metadata"]["labels"][labels.REVISION] not in sizes:
                item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def _listed(item: dict[str, Any]) -> dict[str, Any]:
    """Items of a list carry neither apiVersion nor kind."""
    return {key: value for key, value in item.items() if key not in ("apiVersion", "kind")}
