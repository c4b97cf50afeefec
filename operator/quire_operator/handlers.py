"""kopf's part: watches that say "look again", and nothing else.

Only `on.event` handlers are used. They leave no trace in the objects: no finalizer, no annotation, no diff base. The
body of an event is never acted on; its namespace and label only name the LLMDeployment to look at.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import kopf

from quire_operator import labels, telemetry
from quire_operator.settings import Settings
from quire_operator.spec import Key

log = logging.getLogger(__name__)

WATCHED_CHILDREN = (
    ("apps", "v1", "deployments"),
    ("apps", "v1", "statefulsets"),
    ("", "v1", "pods"),
    ("", "v1", "services"),
    ("autoscaling", "v2", "horizontalpodautoscalers"),
)


@dataclass(frozen=True)
class Watched:
    """Another kind of the group. `key_of` names whom to look at when one of it changed; `children` carry `label` with its name."""

    plural: str
    key_of: Callable[[Mapping[str, Any]], Key | None]
    look_again: Callable[[Key], None]
    children: tuple[tuple[str, str, str], ...] = ()
    label: str = ""


LookAgain = Callable[[Key], None]
SawVersion = Callable[[Key, str], None]


def build_registry(
    look_again: LookAgain, saw_version: SawVersion, others: Sequence[Watched] = ()
) -> kopf.OperatorRegistry:
    """`saw_version(key, resourceVersion)` tells the watch monitor what the watch of LLMDeployments delivers."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(labels.GROUP, labels.VERSION, labels.PLURAL, registry=registry)
    async def changed(meta: Mapping[str, Any], **_: Any) -> None:
        _count(labels.KIND)
        key = Key(meta["namespace"], meta["name"])
        saw_version(key, meta.get("resourceVersion", ""))
        look_again(key)

    async def child_changed(meta: Mapping[str, Any], resource: kopf.Resource, **_: Any) -> None:
        _count(resource.kind or resource.plural)
        owner = meta.get("labels", {}).get(labels.DEPLOYMENT)
        if owner:
            look_again(Key(meta["namespace"], owner))

    for group, version, plural in WATCHED_CHILDREN:
        kopf.on.event(group, version, plural, id=f"child-{plural}", registry=registry)(child_changed)
    for other in others:
        _register(registry, other)
    return registry


def _register(registry: kopf.OperatorRegistry, other: Watched) -> None:
    async def changed(body: Mapping[str, Any], resource: kopf.Resource, **_: Any) -> None:
        _count(resource.kind or resource.plural)
        key = other.key_of(body)
        if key is not None:
            other.look_again(key)

    async def child_changed(meta: Mapping[str, Any], resource: kopf.Resource, **_: Any) -> None:
        _count(resource.kind or resource.plural)
        owner = meta.get("labels", {}).get(other.label)
        if owner:
            other.look_again(Key(meta["namespace"], owner))

    kopf.on.event(labels.GROUP, labels.VERSION, other.plural, id=other.plural, registry=registry)(changed)
    for group, version, plural in other.children:
        kopf.on.event(group, version, plural, id=f"{other.plural}-{plural}", registry=registry)(child_changed)


def build_settings(others: Sequence[Watched] = ()) -> kopf.OperatorSettings:
    """As kopf's author advises for level-triggered work: explicit time limits, nothing stored, no peering, no scanning."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 30
    settings.watching.reconnect_backoff = 1.0
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.persistence.finalizer = f"operator.{labels.GROUP}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"operator.{labels.GROUP}", v1=False)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"operator.{labels.GROUP}", v1=False)
    for group, version, plural in WATCHED_CHILDREN:
        settings.watching.label_selectors[group, version, plural] = labels.DEPLOYMENT
    for other in others:
        for group, version, plural in other.children:
            settings.watching.label_selectors[group, version, plural] = other.label
    return settings


async def watch(
    settings: Settings, look_again: LookAgain, saw_version: SawVersion, others: Sequence[Watched] = ()
) -> None:
    """Runs kopf until it is told to stop (SIGTERM, SIGINT) or cancelled; raises what ended it otherwise.

    `kopf.operator` would wait 5 s at its end for every task of the process that is younger than it, the workers of the queues among them,
    and then cancel those. Here they end with the process, and kopf's own tasks end themselves when they are cancelled.
    """
    namespaces = settings.watch_namespaces
    tasks = await kopf.spawn_tasks(
        registry=build_registry(look_again, saw_version, others),
        settings=build_settings(others),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
    )
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end


def _count(kind: str) -> None:
    telemetry.WATCH_EVENTS.labels(kind=kind).inc()
    telemetry.LAST_WATCH_EVENT.set(time.time())
