"""Puts the operator together and runs it: queue, watches, resync, scraper, metrics API, health.

A part that ends ends the process, with the reason in the log: a half-dead operator is worse than a restart.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import httpx2
from lightkube.core.exceptions import ApiError

from quire_operator import labels, telemetry
from quire_operator.cluster import Cluster, connect, is_missing, kinds, router_addresses
from quire_operator.cluster.lease import LeaseStore
from quire_operator.controllers import Adapters, ModelCaches
from quire_operator.election import Alone, Election, Leadership
from quire_operator.errors import NotLeadingError
from quire_operator.handlers import Watched, watch
from quire_operator.health import Probe, WatchMonitor, start_servers
from quire_operator.metrics_api import MetricsApi
from quire_operator.observation import Body
from quire_operator.policy.leadership import REQUEST_S
from quire_operator.probe import Demand, Samples, Scraper, Verifier
from quire_operator.reconcile import Reconciler
from quire_operator.resources import PodDefaults
from quire_operator.settings import Settings
from quire_operator.spec import Key
from quire_operator.workqueue import Outcome, WorkQueue

log = logging.getLogger(__name__)

CRD_RETRY_S = 2.0
SMALL_WORKERS = 2
"""ModelCaches, and LLMDeployments with adapters, that are looked at at the same time."""


class Operator:
    """One process's worth of operator."""

    def __init__(self, cluster: Cluster, settings: Settings, leadership: Leadership | None = None) -> None:
        self._cluster = cluster
        self._settings = settings
        self._leadership = leadership or Alone()
        self._leadership.changed = self._leader_changed
        telemetry.LEADER.set_function(lambda: float(self._leadership.leading))
        self._woken = asyncio.Event()
        self._samples = Samples(settings.stale_after_s)
        self._verifier = Verifier(settings.router_url, changed=self._look_again)
        self._demand = Demand(
            self._samples,
            partial(router_addresses, cluster, settings.namespace, settings.router_service),
            port=settings.router_metrics_port,
            timeout_s=settings.scrape_timeout_s,
            changed=self._look_again_at_it,
            leading=lambda: self._leadership.leading,
        )
        self._adapters = Adapters(cluster, changed=self._look_again_at_it, wanted=self._look_at_adapters)
        self._reconciler = Reconciler(
            cluster,
            settings,
            self._samples,
            self._verifier,
            demand=self._demand,
            adapters=self._adapters.told,
            gone=self._adapters.forget,
        )
        self._queue: WorkQueue[Key] = WorkQueue(self._led(self._reconciler, self._reconciler.follow))
        caches = ModelCaches(cluster, PodDefaults.from_settings(settings), changed=self._look_again_at_it)
        self._caches: WorkQueue[Key] = WorkQueue(self._led(caches))
        self._adapter_queue: WorkQueue[Key] = WorkQueue(self._led(self._adapters))
        self._others: tuple[Watched, ...] = ()
        self._monitor = WatchMonitor()
        self._metrics_api = (
            MetricsApi(cluster, settings, self._samples, leading=lambda: self._leadership.leading)
            if settings.metrics_api
            else None
        )
        self._synced = False

    async def run(self) -> None:
        """Until SIGTERM or SIGINT; raises what ended a part of it otherwise."""
        settings = self._settings
        probe = Probe(alive=self._monitor.dead, ready=self._why_not_ready)
        runners = await start_servers(
            probe, host=settings.host, health_port=settings.health_port, metrics_port=settings.metrics_port
        )
        try:
            await self._wait_for_definition()
            self._others = await self._served()
            await self._run_parts()
        finally:
            await self._verifier.close()
            await self._adapters.close()
            for runner in runners:
                await runner.cleanup()

    async def _run_parts(self) -> None:
        settings = self._settings
        scraper = Scraper(
            self._samples,
            interval_s=settings.scrape_interval_s,
            timeout_s=settings.scrape_timeout_s,
            show=self._look_again,
        )
        parts: dict[str, Coroutine[Any, Any, None]] = {
            "watches": watch(settings, self._look_again, self._monitor.delivered, self._others),
            "workers": self._queue.run(settings.workers),
            "workers of ModelCaches": self._caches.run(SMALL_WORKERS),
            "workers of LLMAdapters": self._adapter_queue.run(SMALL_WORKERS),
            "resync": self._resync(),
            "scraper": scraper.run(),
            "demand": self._demand.run(),
            "election": self._leadership.run(),
        }
        if self._metrics_api is not None:
            parts["metrics API"] = self._metrics_api.run()
        tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                log.info("%s ended: stopping", task.get_name())
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._leadership.release()  # nothing writes any more

    async def _wait_for_definition(self) -> None:
        """The chart may create the CRD at the same moment; kopf wants to find it when it starts."""
        told = False
        while True:
            try:
                await self._cluster.list_all(self._settings.watch_namespaces)
                return
            except ApiError as error:
                why = error.status.message or str(error)
            except httpx2.HTTPError as error:
                why = str(error) or type(error).__name__
            if not told:
                log.warning("waiting until %s.%s can be listed: %s", labels.PLURAL, labels.GROUP, why)
                told = True
            await asyncio.sleep(CRD_RETRY_S)

    async def _resync(self) -> None:
        """Everything is looked at now and then, events or not."""
        while True:
            try:
                bodies = await self._cluster.list_all(self._settings.watch_namespaces)
            except (ApiError, httpx2.HTTPError) as error:
                log.warning("resync: LLMDeployments cannot be listed: %s", error)
                await asyncio.sleep(CRD_RETRY_S)
                continue
            versions = {
                Key(body["metadata"]["namespace"], body["metadata"]["name"]): body["metadata"]["resourceVersion"]
                for body in bodies
            }
            self._monitor.listed(versions, at=time.monotonic())
            for key in versions.keys() | set(self._samples.keys()):
                self._look_again(key)
            self._synced = True
            if await self._resync_small_kinds():
                return
            await self._rest()

    async def _rest(self) -> None:
        """Until the next resync: a new leader begins with one."""
        try:
            async with asyncio.timeout(self._settings.resync_interval_s):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    def _leader_changed(self) -> None:
        self._woken.set()
        if self._metrics_api is not None:
            self._metrics_api.look_again()

    def _led(
        self, act: Callable[[Key], Awaitable[Outcome]], follow: Callable[[Key], Awaitable[Outcome]] | None = None
    ) -> Callable[[Key], Awaitable[Outcome]]:
        """`act` where this process leads, else `follow`. What comes too late is no failure: another one does it. An API server in trouble is one,
        and no fault of this program: a line for each look, without a trace."""

        async def work(key: Key) -> Outcome:
            try:
                if not self._leadership.leading:
                    return Outcome() if follow is None else await follow(key)
                return await act(key)
            except NotLeadingError as error:
                log.info("%s is left to another operator: %s", key, error)
                return Outcome()
            except httpx2.HTTPError as error:
                log.warning("%s: the API server does not answer well; it is tried again: %s", key, _said(error))
                telemetry.RECONCILE_ERRORS.labels(reason=type(error).__name__).inc()
                return Outcome(failed=True)

        return work

    def _small_kinds(self) -> tuple[Watched, ...]:
        caches = (("batch", "v1", "jobs"), ("", "v1", "persistentvolumeclaims"))
        return (
            Watched(labels.MODEL_CACHES, _own_key, self._caches.add, caches, labels.MODEL_CACHE),
            Watched(labels.ADAPTERS, _deployment_key, self._look_at_adapters),
        )

    async def _served(self) -> tuple[Watched, ...]:
        """Those of the small kinds that can be watched; the others are waited for, and hold nothing up."""
        kinds_here = [each for each in self._small_kinds() if await self._listable(each) is not None]
        for each in self._small_kinds():
            if each.plural not in {here.plural for here in kinds_here}:
                log.warning("%s.%s cannot be listed: without them until they can be", each.plural, labels.GROUP)
        return tuple(kinds_here)

    async def _listable(self, kind: Watched) -> list[Body] | None:
        """What there is of it; None where its definition or the right to list it is missing."""
        try:
            return await self._cluster.list_all(self._settings.watch_namespaces, kinds.SMALL[kind.plural])
        except httpx2.HTTPStatusError as error:
            if not is_missing(error):
                raise
            log.debug("%s.%s are not served: %s", kind.plural, labels.GROUP, error)
            return None

    async def _resync_small_kinds(self) -> bool:
        """True when a definition appeared that was missing at the start: its watch begins with a restart."""
        watched = {each.plural for each in self._others}
        for each in self._small_kinds():
            try:
                bodies = await self._listable(each)
            except (ApiError, httpx2.HTTPError) as error:
                log.warning("resync: %s cannot be listed: %s", each.plural, error)
                continue
            if bodies is not None and each.plural not in watched:
                log.info("%s.%s can be listed now: starting again to watch them", each.plural, labels.GROUP)
                return True
            for key in {each.key_of(body) for body in bodies or ()} - {None}:
                assert key is not None
                each.look_again(key)
        return False

    def _look_at_adapters(self, key: Key) -> None:
        self._adapters.concern(key)
        self._adapter_queue.add(key)

    def _look_again_at_it(self, key: Key) -> None:
        self._queue.add(key)

    def _look_again(self, key: Key) -> None:
        self._queue.add(key)
        if self._adapters.concerns(key):
            self._adapter_queue.add(key)

    def _why_not_ready(self) -> str | None:
        if not self._synced:
            return "the LLMDeployments have not been listed yet"
        if self._metrics_api is not None and not self._metrics_api.serving:
            return "custom.metrics.k8s.io is not served yet"
        return None


def _said(error: httpx2.HTTPError) -> str:
    """With the request, where there was one."""
    text = str(error) or type(error).__name__
    try:
        return f"{error.request.method} {error.request.url.path}: {text}"
    except RuntimeError:
        return text


def _own_key(body: Mapping[str, Any]) -> Key | None:
    metadata = body["metadata"]
    return Key(metadata["namespace"], metadata["name"])


def _deployment_key(body: Mapping[str, Any]) -> Key | None:
    """Of the LLMDeployment that an LLMAdapter names."""
    name = (body.get("spec") or {}).get("deployment")
    return Key(body["metadata"]["namespace"], name) if name else None


async def operate(settings: Settings) -> None:
    """Connect and run."""
    if not settings.leader_election:
        client = connect()
        try:
            await Operator(Cluster(client, groups=settings.leader_worker_set), settings).run()
        finally:
            await client.close()
        return
    own = connect(timeout_s=REQUEST_S)
    me = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"  # a process that starts again in a pod is another one
    election = Election(LeaseStore(own, settings.namespace, settings.lease), me)
    client = connect(election.require)
    try:
        await Operator(Cluster(client, groups=settings.leader_worker_set), settings, election).run()
    finally:
        await client.close()
        await own.close()
