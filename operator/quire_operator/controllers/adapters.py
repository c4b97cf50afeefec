"""Keeps the adapters in the pods of one LLMDeployment as its `spec.adapters` and the LLMAdapters say. The key is the LLMDeployment's.

What a pod has is asked, never remembered: a new pod, one that started again and an LLMAdapter that was deleted while the
operator was away are all seen the same way. So no finalizer is needed. Remembered is what failed, to try it more and more seldom.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import aiohttp
import httpx2
from pydantic import TypeAdapter, ValidationError

from quire_operator import labels
from quire_operator.api import Adapter, AdapterPod, AdapterState, LLMAdapterSpec, LLMAdapterStatus
from quire_operator.cluster import Cluster, is_missing, kinds
from quire_operator.controllers.report import now_text, ready_condition, ready_event
from quire_operator.observation import Body, PodView, pod_views
from quire_operator.policy.adapters import Failure, Task, Wanted, failed, path_of, plan_pod, winners
from quire_operator.probe.adapters import (
    AdapterError,
    NoAdaptersError,
    load_adapter,
    loaded_adapters,
    unload_adapter,
)
from quire_operator.spec import Deployment, Key
from quire_operator.status import AdapterReading
from quire_operator.workqueue import Outcome

log = logging.getLogger(__name__)

_ASK: Task = ("", None)
"""Stands for the question what a pod has."""
_DECLARED = TypeAdapter(tuple[Adapter, ...])

_Memory = dict[Task, Failure]


@dataclass(frozen=True)
class _Told:
    """What one pod answered about one adapter."""

    state: AdapterState
    message: str | None = None

    @classmethod
    def of(cls, failure: Failure) -> _Told:
        return cls("Failed" if failure.supported else "NotSupported", failure.message)


@dataclass(frozen=True)
class _Answer:
    """Of one pod: by served name; and whether it has what nobody asks for and does not let go of it."""

    told: Mapping[str, _Told]
    clean: bool


class Adapters:
    """Call it with the key of an LLMDeployment; it is the work of the queue. One without adapters costs a look at each of its pods, once.

    `changed(key)` is called when there is something new for its status (`told`); `clock` gives seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        changed: Callable[[Key], None] = lambda key: None,
        wanted: Callable[[Key], None] = lambda key: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._changed = changed
        self._wanted = wanted
        self._clock = clock
        self._clean: set[Key] = set()
        """Nobody asks for adapters of theirs and no pod has one: an LLMAdapter deleted while the operator was away left none behind."""
        self._news: set[Key] = set()
        """Of which something was heard since the look that is under way began."""
        self._told: dict[Key, tuple[AdapterReading, ...]] = {}
        self._failures: dict[Key, dict[str, _Memory]] = {}
        """By pod: what its present container did not do."""
        self._session: aiohttp.ClientSession | None = None

    def concern(self, key: Key) -> None:
        """Some LLMAdapter names it, or did; or its own adapters are others."""
        self._clean.discard(key)
        self._news.add(key)

    def concerns(self, key: Key) -> bool:
        """Whether a change of its pods matters here."""
        return key not in self._clean

    def forget(self, key: Key) -> None:
        """The LLMDeployment is gone."""
        self._told.pop(key, None)
        self._failures.pop(key, None)
        self._clean.discard(key)
        self._news.discard(key)

    def told(self, owner: Deployment) -> tuple[AdapterReading, ...] | None:
        """For its status; None while the pods have not been asked. Adapters that are new to it are looked at soon."""
        if owner.spec.adapters:
            new = owner.key in self._clean
            self.concern(owner.key)
            if new:
                self._wanted(owner.key)
                return None
        return self._told.get(owner.key)

    async def close(self) -> None:
        """No more calls."""
        if self._session is not None:
            await self._session.close()

    async def __call__(self, key: Key) -> Outcome:
        if not self.concerns(key):
            return Outcome()
        self._news.discard(key)
        owner, bodies, found = await asyncio.gather(
            self._cluster.get(kinds.LLMDeployment, key.name, key.namespace),
            self._named(key),
            self._cluster.listed(kinds.Pod, key.namespace, labels.leader_selector(key.name)),
        )
        try:
            declared = _declared(owner)
        except ValidationError as error:
            log.warning("%s: spec.adapters cannot be understood, and is left alone: %s", key, error)
            return Outcome()
        wanted = [*declared, *(one for each in bodies if (one := _wanted(each)) is not None)]
        pods = pod_views(found)
        ready = [pod for pod in pods if pod.ready and pod.ip]
        memory = self._memory(key, pods)
        answers = await asyncio.gather(*(self._one(pod, wanted, memory[_container(pod)]) for pod in ready))
        by_pod = dict(zip((pod.name for pod in ready), answers, strict=True))
        for body in bodies:
            await self._report(body, by_pod, winners(wanted), gone=owner is None)
        self._tell(key, by_pod, wanted, gone=owner is None)
        well = all(answer.clean for answer in answers)
        if owner is None and not pods:
            self.forget(key)
        elif not wanted and not bodies and well and all(pod in ready or pod.terminating for pod in pods):
            self._failures.pop(key, None)
            if key not in self._news:
                self._clean.add(key)
        now = self._clock()
        # Of the pods that can be asked: what the others did not do is looked at when they are ready again.
        waits = (_left_s(memory[_container(pod)], now) for pod in ready)
        return Outcome(again_s=min((each for each in waits if each is not None), default=None))

    async def _named(self, key: Key) -> list[Body]:
        """The LLMAdapters that name it; none where that kind is not served."""
        try:
            found = await self._cluster.listed(kinds.LLMAdapter, key.namespace, {})
        except httpx2.HTTPStatusError as error:
            if not is_missing(error):
                raise
            return []
        return [
            each
            for each in found
            if (each.get("spec") or {}).get("deployment") == key.name and "deletionTimestamp" not in each["metadata"]
        ]

    def _memory(self, key: Key, pods: Sequence[PodView]) -> dict[str, _Memory]:
        """One for each container that is there; what others failed at says nothing of these."""
        before = self._failures.get(key, {})
        now = {_container(pod): before.get(_container(pod), {}) for pod in pods}
        self._failures[key] = now
        return now

    async def _one(self, pod: PodView, wanted: Sequence[Wanted], memory: _Memory) -> _Answer:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        names, now = {each.served for each in wanted}, self._clock()
        if _ASK in memory and memory[_ASK].left_s(now) > 0:
            return _Answer(dict.fromkeys(names, _Told.of(memory[_ASK])), clean=False)
        try:
            loaded = await loaded_adapters(self._session, pod.ip or "")
        except AdapterError as error:
            memory[_ASK] = failed(memory.get(_ASK), str(error), now=now)
            return _Answer(dict.fromkeys(names, _Told.of(memory[_ASK])), clean=False)
        plan = plan_pod(wanted, loaded, memory, now=now)
        # At the same time, so that slow ones take the deadline of one call and not the sum.
        await asyncio.gather(*(self._do(pod, (name, None), memory) for name in plan.unload))
        await asyncio.gather(*(self._do(pod, (each.served, each.path), memory) for each in plan.load))
        tried: list[Task] = [(name, None) for name in plan.unload]
        tried += [(each.served, each.path) for each in plan.load]
        for task in memory.keys() - {*tried, *plan.held}:
            del memory[task]  # nobody asks for it any more
        told = dict.fromkeys(names, _Told("Loaded"))
        told |= {name: _Told.of(failure) for (name, path), failure in memory.items() if path is not None}
        return _Answer(told, clean=not memory)

    async def _do(self, pod: PodView, task: Task, memory: _Memory) -> None:
        assert self._session is not None
        name, path = task
        try:
            if path is None:
                await unload_adapter(self._session, pod.ip or "", name)
            else:
                await load_adapter(self._session, pod.ip or "", name, path)
        except AdapterError as error:
            what = "keeps" if path is None else "does not load"
            log.warning("pod %s/%s %s the adapter %s: %s", pod.namespace, pod.name, what, name, error)
            supported = not isinstance(error, NoAdaptersError)
            memory[task] = failed(memory.get(task), str(error), now=self._clock(), supported=supported)
        else:
            memory.pop(task, None)

    def _tell(self, key: Key, by_pod: Mapping[str, _Answer], wanted: Sequence[Wanted], *, gone: bool) -> None:
        if gone:
            self._told.pop(key, None)
            return
        now = tuple(_reading(name, by_pod) for name in sorted({each.served for each in wanted}))
        if self._told.get(key, ()) != now:
            self._changed(key)
        self._told[key] = now

    async def _report(
        self, body: Body, by_pod: Mapping[str, _Answer], first: Mapping[str, Wanted], *, gone: bool
    ) -> None:
        metadata, now, before = body["metadata"], now_text(), _status(body)
        mine = _wanted(body)
        older = first[mine.served] if mine is not None and first[mine.served] != mine else None
        shown = by_pod if mine is not None and older is None else {}
        pods = tuple(
            AdapterPod(name=pod, state=told.state, message=told.message)
            for pod, answer in sorted(shown.items())
            if mine is not None and (told := answer.told.get(mine.served)) is not None
        )
        if mine is None:
            reading = AdapterReading(
                "", 0, len(by_pod), "InvalidSpec", "the object was stored under another schema: apply it again"
            )
        elif older is not None:
            text = f"{_owner(older)} serves under that name already: give another servedName"
            reading = AdapterReading(mine.served, 0, len(by_pod), "NameTaken", text)
        elif gone and not by_pod:
            text = f"there is no LLMDeployment {body['spec']['deployment']} in this namespace"
            reading = AdapterReading(mine.served, 0, len(by_pod), "NoDeployment", text)
        else:
            reading = _reading(mine.served, by_pod)
        ready = ready_condition(
            before.conditions,
            status="True" if reading.well else "False",
            reason=reading.reason,
            message=reading.message,
            generation=metadata["generation"],
            now=now,
        )
        after = LLMAdapterStatus(
            observed_generation=metadata["generation"],
            conditions=(ready,),
            loaded=reading.loaded,
            of=reading.of,
            summary=f"{reading.loaded}/{reading.of}",
            pods=pods,
        )
        if await self._cluster.write_status(
            body, after.model_dump(by_alias=True, exclude_none=True, mode="json"), kind=labels.ADAPTER_KIND
        ):
            for event in ready_event(before.conditions, ready, quiet=frozenset()):
                await self._cluster.post_event(body, event, kind=labels.ADAPTER_KIND)


def _reading(name: str, by_pod: Mapping[str, _Answer]) -> AdapterReading:
    """Of one adapter over all pods."""
    of, told = len(by_pod), {pod: answer.told[name] for pod, answer in by_pod.items()}
    loaded = sum(each.state == "Loaded" for each in told.values())
    if of == 0:
        return AdapterReading(name, 0, 0, "NoPods", "no pod of the LLMDeployment is ready")
    if loaded == of:
        return AdapterReading(name, of, of, "Loaded", f"all {of} ready pods have it")
    pod, worst = next((pod, each) for pod, each in sorted(told.items()) if each.state != "Loaded")
    reason: Literal["NotSupported", "LoadFailed"] = "NotSupported" if worst.state == "NotSupported" else "LoadFailed"
    return AdapterReading(name, loaded, of, reason, f"{loaded} of {of} ready pods have it; pod {pod}: {worst.message}")


def _left_s(memory: _Memory, now: float) -> float | None:
    """Seconds until one pod is worth another try; None: it has done all. One that does not say what it has is not told to do more."""
    if _ASK in memory:
        return memory[_ASK].left_s(now)
    return min((failure.left_s(now) for failure in memory.values()), default=None)


def _owner(wanted: Wanted) -> str:
    return "spec.adapters of the LLMDeployment" if wanted.resource is None else f"the LLMAdapter {wanted.resource}"


def _container(pod: PodView) -> str:
    return f"{pod.body['metadata'].get('uid', pod.name)}/{pod.restarts}"


def _declared(owner: Body | None) -> list[Wanted]:
    """Raises ValidationError."""
    told = ((owner or {}).get("spec") or {}).get("adapters") or ()
    return [Wanted(None, each.name, path_of(each.source)) for each in _DECLARED.validate_python(told)]


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
