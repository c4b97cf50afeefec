"""Keeps the adapters in the pods of one LLMDeployment as its LLMAdapters say. The key is the LLMDeployment's.

What a pod has is asked, never remembered: a new pod, one that started again and an LLMAdapter that was deleted while the
operator was away are all seen the same way. So no finalizer is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import aiohttp
from pydantic import ValidationError

from quire_operator import labels
from quire_operator.api import AdapterPod, AdapterState, LLMAdapterSpec, LLMAdapterStatus
from quire_operator.cluster import Cluster, kinds
from quire_operator.controllers.report import now_text, ready_condition, ready_event
from quire_operator.observation import Body, PodView, pod_views
from quire_operator.policy.adapters import Wanted, path_of, plan_pod, taken
from quire_operator.probe.adapters import (
    AdapterError,
    NoAdaptersError,
    load_adapter,
    loaded_adapters,
    unload_adapter,
)
from quire_operator.spec import Key
from quire_operator.workqueue import Outcome

log = logging.getLogger(__name__)

AGAIN_S = 30.0
"""After this long a pod that failed is asked again, and one that has no adapters too: its image may have changed."""


@dataclass(frozen=True)
class _Told:
    """What one pod answered about one adapter."""

    state: AdapterState
    message: str | None = None


class Adapters:
    """Call it with the key of an LLMDeployment; it is the work of the queue. One without adapters costs a look at each of its pods, once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clean: set[Key] = set()
        """No LLMAdapter names them and no pod has one: an LLMAdapter deleted while the operator was away left none behind."""
        self._session: aiohttp.ClientSession | None = None

    def concern(self, key: Key) -> None:
        """Some LLMAdapter names it, or did."""
        self._clean.discard(key)

    def concerns(self, key: Key) -> bool:
        """Whether a change of its pods matters here."""
        return key not in self._clean

    async def close(self) -> None:
        """No more calls."""
        if self._session is not None:
            await self._session.close()

    async def __call__(self, key: Key) -> Outcome:
        if not self.concerns(key):
            return Outcome()
        bodies = [
            each
            for each in await self._cluster.listed(kinds.LLMAdapter, key.namespace, {})
            if (each.get("spec") or {}).get("deployment") == key.name and "deletionTimestamp" not in each["metadata"]
        ]
        wanted = [found for each in bodies if (found := _wanted(each)) is not None]
        pods = pod_views(await self._cluster.listed(kinds.Pod, key.namespace, labels.leader_selector(key.name)))
        ready = [pod for pod in pods if pod.ready and pod.ip]
        answers = await asyncio.gather(*(self._one(pod, wanted) for pod in ready))
        by_pod = dict(zip((pod.name for pod in ready), answers, strict=True))
        for body in bodies:
            await self._report(body, by_pod, taken(wanted))
        well = all(told.state == "Loaded" for told in (each for answer in answers for each in answer.values()))
        if not bodies and well and all(pod in ready or pod.terminating for pod in pods):
            self._clean.add(key)
        return Outcome(again_s=None if well else AGAIN_S)

    async def _one(self, pod: PodView, wanted: Sequence[Wanted]) -> dict[str, _Told]:
        """By name of the LLMAdapter; under "" what keeps the pod from being cleaned up."""
        if self._session is None:
            self._session = aiohttp.ClientSession()
        ip = pod.ip or ""
        lost = taken(wanted)
        try:
            plan = plan_pod(wanted, await loaded_adapters(self._session, ip))
        except AdapterError as error:
            return {each: _Told("Failed", str(error)) for each in ("", *(one.resource for one in wanted))}
        # At the same time, so that slow ones take the deadline of one call and not the sum.
        kept = [each for each in await asyncio.gather(*(self._unload(pod, name) for name in plan.unload)) if each]
        loaded = await asyncio.gather(*(self._load(ip, each) for each in plan.load))
        right = {each.resource: _Told("Loaded") for each in wanted if each.resource not in lost}
        now = {each.resource: told for each, told in zip(plan.load, loaded, strict=True)}
        return {**right, **now, **({"": kept[0]} if kept else {})}

    async def _unload(self, pod: PodView, name: str) -> _Told | None:
        assert self._session is not None
        try:
            await unload_adapter(self._session, pod.ip or "", name)
        except AdapterError as error:
            log.warning("pod %s/%s keeps the adapter %s: %s", pod.namespace, pod.name, name, error)
            return _Told("Failed", str(error))
        return None

    async def _load(self, ip: str, each: Wanted) -> _Told:
        assert self._session is not None
        try:
            await load_adapter(self._session, ip, each.served, each.path)
        except NoAdaptersError as error:
            return _Told("NotSupported", str(error))
        except AdapterError as error:
            return _Told("Failed", str(error))
        return _Told("Loaded")

    async def _report(self, body: Body, by_pod: dict[str, dict[str, _Told]], lost: dict[str, str]) -> None:
        metadata, now = body["metadata"], now_text()
        name, before = metadata["name"], _status(body)
        pods = tuple(
            AdapterPod(name=pod, state=told[name].state, message=told[name].message)
            for pod, told in sorted(by_pod.items())
            if name in told
        )
        loaded = sum(pod.state == "Loaded" for pod in pods)
        status, reason, message = _verdict(body, pods, len(by_pod), loaded, lost.get(name))
        ready = ready_condition(
            before.conditions, status=status, reason=reason, message=message, generation=metadata["generation"], now=now
        )
        after = LLMAdapterStatus(
            observed_generation=metadata["generation"],
            conditions=(ready,),
            loaded=loaded,
            of=len(by_pod),
            summary=f"{loaded}/{len(by_pod)}",
            pods=pods,
        )
        shown = after.model_dump(by_alias=True, exclude_none=True, mode="json")
        if await self._cluster.write_status(body, shown, kind=labels.ADAPTER_KIND):
            for event in ready_event(before.conditions, ready, quiet=frozenset()):
                await self._cluster.post_event(body, event, kind=labels.ADAPTER_KIND)


def _verdict(
    body: Body, pods: Sequence[AdapterPod], ready: int, loaded: int, older: str | None
) -> tuple[Literal["True", "False", "Unknown"], str, str]:
    if _wanted(body) is None:
        return "False", "InvalidSpec", "the object was stored under another schema: apply it again"
    if older is not None:
        return "False", "NameTaken", f"the LLMAdapter {older} serves under that name already: give another servedName"
    if ready == 0:
        return "False", "NoPods", f"no pod of the LLMDeployment {body['spec']['deployment']} is ready"
    if loaded == ready:
        return "True", "Loaded", f"all {ready} ready pods have it"
    worst = next((pod for pod in pods if pod.state != "Loaded"), None)
    reason = "NotSupported" if worst is not None and worst.state == "NotSupported" else "LoadFailed"
    why = f"pod {worst.name}: {worst.message}" if worst is not None else "they have not been asked"
    return "False", reason, f"{loaded} of {ready} ready pods have it; {why}"


def _wanted(body: Body) -> Wanted | None:
    try:
        spec = LLMAdapterSpec.model_validate(body["spec"])
    except ValidationError:
        return None
    metadata = body["metadata"]
    return Wanted(
        resource=metadata["name"],
        served=spec.served_name or metadata["name"],
        path=path_of(spec.source),
        created=metadata.get("creationTimestamp", ""),
    )


def _status(body: Body) -> LLMAdapterStatus:
    try:
        return LLMAdapterStatus.model_validate(body.get("status") or {})
    except ValidationError:
        return LLMAdapterStatus()
