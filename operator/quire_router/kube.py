"""The only module that talks to the Kubernetes API: list, then watch, for ever.

One Watcher keeps one resource of one scope (a namespace, or all) in step and hands raw manifests to its Sink. It
lists in pages, watches from the list's resource version, resumes from the last version seen after a cut, lists again
after 410, and backs off with jitter on everything else. A watch lives at most `watch_timeout_s` on the server and is cut
here when silent for longer, so a connection that died without a word is noticed within that time.

lightkube finds the configuration (in-cluster, KUBECONFIG) and gives the authenticated HTTP client. Its own watch loop is not
used: it reconnects at once without a back-off and waits without a deadline.
Nothing outside this module may import lightkube or httpx2.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import httpx2
from lightkube.config.client_adapter import AsyncClient as authenticated_client
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ConfigError

from quire_router.errors import AbsentError, GoneError, SettingsError, WatchError
from quire_router.metrics import Metrics
from quire_router.registry import Registry

log = logging.getLogger(__name__)

PAGE_SIZE = 500
REQUEST_TIMEOUT_S = 10.0
SILENCE_SLACK_S = 10.0
"""How much longer than its agreed life a watch may be silent before it counts as dead."""
HEALTHY_S = 1.0
"""A round that lasted this long was a healthy one, however it ended."""
BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 10.0

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind to watch: API path of its group and version, plural, and the label selector. optional: it may be missing in the cluster."""

    api: str
    plural: str
    selector: str = ""
    optional: bool = False

    def path(self, namespace: str) -> str:
        return f"{self.api}/namespaces/{namespace}/{self.plural}" if namespace else f"{self.api}/{self.plural}"


@dataclass(frozen=True, slots=True)
class Sink:
    """Where manifests go. `replace` takes (namespace, complete list)."""

    replace: Callable[[str, Iterable[Manifest]], None]
    apply: Callable[[Manifest], None]
    remove: Callable[[Manifest], None]


LLMDEPLOYMENTS = Resource("apis/quire.dev/v1alpha1", "llmdeployments")
LLMADAPTERS = Resource("apis/quire.dev/v1alpha1", "llmadapters", optional=True)
ENDPOINTSLICES = Resource("apis/discovery.k8s.io/v1", "endpointslices", selector="quire.dev/deployment")


def connect() -> httpx2.AsyncClient:
    """The API server of the environment; raise SettingsError when there is none or its configuration is unusable."""
    try:
        config = KubeConfig.from_env().get()
        if config is None:
            raise ConfigError("the kubeconfig has no current context")
        return authenticated_client(config, ConnectionParams(timeout=httpx2.Timeout(REQUEST_TIMEOUT_S)))
    except (ConfigError, OSError, ValueError) as error:
        raise SettingsError(
            f"no usable Kubernetes configuration ({error}); run in a pod with a service account, or set KUBECONFIG"
        ) from error


def watchers(
    client: httpx2.AsyncClient, registry: Registry, metrics: Metrics, *, namespaces: tuple[str, ...], timeout_s: float
) -> list[Watcher]:
    """All watchers of one router: three per namespace, or three for all namespaces."""
    sinks = (
        (LLMDEPLOYMENTS, Sink(registry.replace_deployments, registry.apply_deployment, registry.remove_deployment)),
        (LLMADAPTERS, Sink(registry.replace_adapters, registry.apply_adapter, registry.remove_adapter)),
        (ENDPOINTSLICES, Sink(registry.replace_slices, registry.apply_slice, registry.remove_slice)),
    )
    return [
        Watcher(client, resource, namespace, sink, metrics, timeout_s=timeout_s)
        for namespace in namespaces or ("",)
        for resource, sink in sinks
    ]


class Watcher:
    """Keeps one resource of one scope in step. `run` never returns; it is cancelled."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        resource: Resource,
        namespace: str,
        sink: Sink,
        metrics: Metrics,
        *,
        timeout_s: float,
        dice: random.Random | None = None,
    ) -> None:
        self.resource = resource
        self.namespace = namespace
        self.synced = asyncio.Event()
        self._client = client
        self._sink = sink
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._dice = dice or random.Random()
        self._version: str | None = None  # None: list first
        self._last_sign_s: float | None = None
        self._failures = 0
        metrics.watch_is(resource.plural, namespace, last_sign_s=lambda: self._last_sign_s)

    @property
    def where(self) -> str:
        return f"{self.resource.plural} in {f'namespace {self.namespace}' if self.namespace else 'all namespaces'}"

    @property
    def stale(self) -> bool:
        """True when nothing was heard for longer than a healthy watch can be silent, or never."""
        limit_s = self._timeout_s + 2 * SILENCE_SLACK_S
        return self._last_sign_s is None or time.monotonic() - self._last_sign_s > limit_s

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            started_s = time.monotonic()
            failure: WatchError | None = None
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
            except WatchError as error:
                failure = error
            # Every round that ends at once backs off, also one that ended well: a proxy in between could make it spin.
            if time.monotonic() - started_s >= HEALTHY_S:
                self._failures = 0
                if failure is None:
                    continue
            self._failures += 1
            if failure is not None:
                self._failed(failure)
            await asyncio.sleep(self._backoff_s())

    def _failed(self, error: WatchError) -> None:
        self._metrics.watch_errors.labels(self.resource.plural, self.namespace).inc()
        if isinstance(error, GoneError):
            self._version = None
        if isinstance(error, AbsentError) and self.resource.optional:
            self._alive()  # the API server answers: there are none, or they are not for us
            self.synced.set()
        if self._failures in (1, 5) or self._failures % 30 == 0:
            serving = (
                "the last known state keeps serving" if self.synced.is_set() else "not ready before the first list"
            )
            log.warning("%s; attempt %d, trying again; %s", error, self._failures, serving)

    def _backoff_s(self) -> float:
        ceiling_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(self._failures - 1, 10))
        return self._dice.uniform(ceiling_s / 2, ceiling_s)

    def _alive(self) -> None:
        self._last_sign_s = time.monotonic()

    async def _list(self) -> None:
        items: list[Manifest] = []
        params = self._params() | {"limit": str(PAGE_SIZE)}
        while True:
            try:
                response = await self._client.get(self.resource.path(self.namespace), params=params)
                self._check(response.status_code, response.content)
                page = response.json()
            except (httpx2.HTTPError, ValueError) as error:
                raise WatchError(f"cannot list {self.where}: {_reason(error)}") from error
            items.extend(page.get("items") or ())
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                break
            params["continue"] = metadata["continue"]
        self._sink.replace(self.namespace, items)
        self._version = metadata.get("resourceVersion")
        self._alive()
        self._metrics.watch_lists.labels(self.resource.plural, self.namespace).inc()
        if not self.synced.is_set():
            log.info("listed %d %s", len(items), self.where)
            self.synced.set()

    async def _watch(self) -> None:
        async with aclosing(self._events()) as events:
            async for event in events:
                self._take(event)

    async def _events(self) -> AsyncGenerator[dict[str, Any], None]:
        params = self._params() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(int(self._timeout_s)),
        }
        timeout = httpx2.Timeout(REQUEST_TIMEOUT_S, read=self._timeout_s + SILENCE_SLACK_S)
        request = self._client.build_request("GET", self.resource.path(self.namespace), params=params, timeout=timeout)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):  # for the headers; the read time-out is for a quiet watch
                response = await self._client.send(request, stream=True)
            async with aclosing(response):
                if response.status_code != 200:
                    self._check(response.status_code, await response.aread())
                self._alive()
                async for line in _lines(response.aiter_bytes()):
                    yield json.loads(line)
        except TimeoutError as error:
            raise WatchError(f"the watch of {self.where} did not begin within {REQUEST_TIMEOUT_S:g} s") from error
        except httpx2.HTTPError as error:
            raise WatchError(f"the watch of {self.where} broke: {_reason(error)}") from error
        except ValueError as error:
            raise GoneError(f"the watch of {self.where} delivered what is no JSON: {error}") from error

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, manifest = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            self._check(int(manifest.get("code") or 500), json.dumps(manifest).encode())
        self._alive()
        self._failures = 0
        self._version = (manifest.get("metadata") or {}).get("resourceVersion") or self._version
        if kind in ("ADDED", "MODIFIED"):
            self._sink.apply(manifest)
        elif kind == "DELETED":
            self._sink.remove(manifest)
        if kind != "BOOKMARK":
            self._metrics.watch_events.labels(self.resource.plural, self.namespace).inc()

    def _params(self) -> dict[str, str]:
        return {"labelSelector": self.resource.selector} if self.resource.selector else {}

    def _check(self, status: int, content: bytes) -> None:
        if status == 200:
            return
        try:
            message = json.loads(content).get("message") or ""
        except (ValueError, AttributeError):
            message = content[:200].decode(errors="replace").strip()
        if status == 410:
            raise GoneError(f"the resource version of {self.where} is too old")
        hint = {
            401: "; the service account's token is not accepted",
            403: "; the router's Role lacks this right, install it with the chart",
            404: "; its definition is not installed yet",
        }.get(status, "")
        kind = AbsentError if status in (403, 404) else WatchError
        raise kind(f"the API server refuses {self.where} with {status}{hint}: {message}".rstrip(": "))


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Split at line feeds and nowhere else: httpx2 would also split at other separators, which may stand in an annotation."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line:
                yield line


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
