"""A whole router on loopback for tests: a scripted Kubernetes API that speaks list and watch, and scripted pods.

Everything is real but the far ends: `Router` with its own listeners, sockets, watches. Waits name what they wait for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import httpx2
from aiohttp import web

from quire_router.app import Router
from quire_router.endpoints import EndpointState
from quire_router.settings import Settings

DEADLINE_S = 30.0

Object = dict[str, Any]
Script = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def eventually(what: str, holds: Callable[[], bool]) -> None:
    """Return once `holds()`; fail with the name of the condition after the deadline."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():  # noqa: ASYNC110 - the conditions belong to code that knows nothing of tests
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_S} s: {what}") from None


# -- manifests


def llmdeployment(
    name: str,
    *,
    namespace: str = "demo",
    created: str = "2026-01-01T00:00:00Z",
    least: int | None = None,
    **model: Any,
) -> Object:
    """`least`: autoscaling.minReplicas; None: no autoscaling."""
    scaling = {} if least is None else {"autoscaling": {"minReplicas": least, "maxReplicas": 4}}
    return {
        "apiVersion": "quire.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": created},
        "spec": {"model": {"source": "file:///models/x.gguf", **model}, **scaling},
    }


def llmadapter(
    name: str, deployment: str, *, namespace: str = "demo", created: str = "2026-01-01T00:00:00Z", **spec: Any
) -> Object:
    return {
        "apiVersion": "quire.dev/v1alpha1",
        "kind": "LLMAdapter",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": created},
        "spec": {"deployment": deployment, "source": "hf://org/lora", **spec},
    }


def endpointslice(
    deployment: str,
    *endpoints: Object,
    name: str = "",
    namespace: str = "demo",
    port: int | None = 8000,
    family: str = "IPv4",
) -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name or f"{deployment}-abcde",
            "namespace": namespace,
            "labels": {"quire.dev/deployment": deployment},
        },
        "addressType": family,
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": list(endpoints),
    }


def pod(address: str, name: str = "", *, ready: bool | None = True, terminating: bool | None = None) -> Object:
    conditions: Object = {"ready": ready, "serving": ready, "terminating": terminating}
    return {
        "addresses": [address],
        "conditions": {key: value for key, value in conditions.items() if value is not None},
        "targetRef": {"kind": "Pod", "name": name or f"pod-{address}"},
    }


# -- the Kubernetes API


@dataclass
class FakeKube:
    """Lists and watches of any plural, with versions, history, pages, bookmarks, 410 and faults on demand."""

    url: str = ""
    version: int = 100
    oldest: int = 100
    objects: dict[str, dict[tuple[str, str], Object]] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    answers: dict[str, list[int]] = field(default_factory=dict)  # plural -> statuses to answer with, first ones first
    mute: bool = False  # watches stay open and say nothing more
    garble: bool = False  # the next event of each watch is no JSON
    _history: list[tuple[int, str, Object]] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _generation: int = 0

    async def put(self, plural: str, manifest: Object) -> None:
        metadata = manifest["metadata"]
        key = (metadata["namespace"], metadata["name"])
        kind = "MODIFIED" if key in self.objects.get(plural, {}) else "ADDED"
        await self._happened(plural, kind, manifest)
        self.objects.setdefault(plural, {})[key] = manifest

    async def delete(self, plural: str, namespace: str, name: str) -> None:
        await self._happened(plural, "DELETED", self.objects[plural].pop((namespace, name)))

    async def bookmark(self, plural: str) -> None:
        await self._happened(plural, "BOOKMARK", {"metadata": {}})

    async def compact(self) -> None:
        """Forget the history: whoever resumes gets 410."""
        async with self._changed:
            self.version += 1
            self.oldest = self.version
            self._history.clear()

    async def cut_watches(self) -> None:
        """Close every watch."""
        async with self._changed:
            self._generation += 1
            self._changed.notify_all()

    def lists(self, plural: str) -> int:
        return sum(path.endswith("/" + plural) and "watch" not in query for path, query in self.requests)

    def watches(self, plural: str) -> list[str]:
        """The resource version each watch of `plural` began at."""
        return [
            query["resourceVersion"]
            for path, query in self.requests
            if path.endswith("/" + plural) and "watch" in query
        ]

    async def _happened(self, plural: str, kind: str, manifest: Object) -> None:
        async with self._changed:
            self.version += 1
            manifest["metadata"]["resourceVersion"] = str(self.version)
            self._history.append((self.version, plural, {"type": kind, "object": json.loads(json.dumps(manifest))}))
            self._changed.notify_all()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.requests.append((request.path, query))
        parts = request.path.strip("/").split("/")
        plural = parts[-1]
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
        if self.answers.get(plural):
            status = self.answers[plural].pop(0)
            return web.json_response({"kind": "Status", "code": status, "message": f"scripted {status}"}, status=status)
        if "watch" in query:
            return await self._watch(request, plural, namespace, int(query["resourceVersion"]))
        return self._list(plural, namespace, query)

    def _list(self, plural: str, namespace: str, query: dict[str, str]) -> web.Response:
        items = [item for key, item in sorted(self.objects.get(plural, {}).items()) if namespace in ("", key[0])]
        begin, size = int(query.get("continue") or 0), int(query["limit"])
        metadata = {"resourceVersion": str(self.version)}
        if begin + size < len(items):
            metadata["continue"] = str(begin + size)
        return web.json_response({"metadata": metadata, "items": items[begin : begin + size]})

    async def _watch(self, request: web.Request, plural: str, namespace: str, since: int) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        if since < self.oldest:
            gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
            await response.write(json.dumps(gone).encode() + b"\n")
            return response
        generation = self._generation
        while True:
            async with self._changed:
                while self._generation == generation and (self.mute or self.version <= since):
                    await self._changed.wait()
                if self._generation != generation:
                    return response
                fresh = [entry for entry in self._history if entry[0] > since]
                since = self.version
            for _, changed, event in fresh:
                if changed == plural and namespace in ("", event["object"]["metadata"].get("namespace", namespace)):
                    line = json.dumps(event, ensure_ascii=False).encode() + b"\n"
                    await response.write(line[len(line) // 2 :] if self.garble else line)


# -- pods


async def answer(_: web.Request) -> web.StreamResponse:
    return web.json_response({"object": "chat.completion", "choices": []})


@dataclass(eq=False)
class FakePod:
    """A server that answers as its script says and remembers what it got."""

    name: str
    script: Script = answer
    port: int = 0
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    active: int = 0
    left: int = 0
    """How many requests were cancelled because their connection closed."""
    runner: web.AppRunner | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers.append(dict(request.headers))
        self.paths.append(request.raw_path)
        self.active += 1
        try:
            return await self.script(request)
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise
        finally:
            self.active -= 1

    async def start(self) -> None:
        app = web.Application(client_max_size=1024**3)
        app.router.add_route("*", "/{path:.*}", self.handle)
        self.runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()
        self.port = self.runner.addresses[0][1]

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None


@dataclass
class Kit:
    """A running router, the API it watches and its pods."""

    kube: FakeKube
    router: Router
    client: aiohttp.ClientSession
    stop: asyncio.Event
    task: asyncio.Task[None]
    pods: dict[str, FakePod] = field(default_factory=dict)

    @property
    def url(self) -> str:
        host, port = self.router.addresses[0]
        return f"http://{host}:{port}"

    @property
    def metrics_url(self) -> str:
        host, port = self.router.addresses[1]
        return f"http://{host}:{port}/metrics"

    async def pod(self, name: str, script: Script = answer) -> FakePod:
        self.pods[name] = FakePod(name, script)
        await self.pods[name].start()
        return self.pods[name]

    async def deploy(self, model: str, *pods: FakePod, **fields: Any) -> None:
        """An LLMDeployment with these pods ready; each has its own port here, so each has its own slice."""
        await self.kube.put("llmdeployments", llmdeployment(model, **fields))
        for each in pods:
            await self.condition(model, each)
        name = f"{fields.get('namespace', 'demo')}/{model}"
        await eventually(f"{name} routed to {len(pods)} pods", lambda: len(self.ready(name)) == len(pods))
        await eventually(f"{name} known", lambda: self.router.registry.resolve(name) is not None)

    async def condition(self, model: str, each: FakePod, *, ready: bool = True, terminating: bool = False) -> None:
        manifest = endpointslice(
            model,
            pod("127.0.0.1", each.name, ready=ready, terminating=terminating),
            name=f"{model}-{each.name}",
            port=each.port,
        )
        await self.kube.put("endpointslices", manifest)

    def states(self, model: str) -> dict[str, EndpointState]:
        route = self.router.registry.resolve(model)
        return {endpoint.pod: endpoint.state for endpoint in route.endpoints} if route else {}

    def ready(self, model: str) -> list[str]:
        route = self.router.registry.resolve(model)
        return [endpoint.pod for endpoint in route.ready] if route else []

    async def chat(self, model: str = "m", **fields: Any) -> tuple[int, Any, dict[str, str]]:
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}
        async with self.client.post(f"{self.url}/v1/chat/completions", json=body) as response:
            return response.status, await response.json(), dict(response.headers)

    async def metric(self, name: str, **labels: str) -> float:
        async with self.client.get(self.metrics_url) as response:
            text = await response.text()
        for line in text.splitlines():
            if line.startswith(name + "{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                return float(line.rsplit(" ", 1)[1])
        return 0.0


@asynccontextmanager
async def serving_api(kube: FakeKube) -> AsyncIterator[str]:
    """The scripted API server on loopback; yields its URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", kube.handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def running(*, synced: bool = True, kube: FakeKube | None = None, **settings: Any) -> AsyncIterator[Kit]:
    """A router on loopback, watching `kube`; ended and cleaned up on the way out."""
    kube = kube or FakeKube()
    values: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 0,
        "metrics_port": 0,
        "pre_drain_s": 0.0,
        "drain_timeout_s": 5.0,
    } | settings
    stop, started = asyncio.Event(), asyncio.Event()
    async with (
        serving_api(kube) as kube.url,
        httpx2.AsyncClient(base_url=kube.url, trust_env=False) as api_client,
        aiohttp.ClientSession() as client,
    ):
        router = Router(Settings(**values), api_client)
        task = asyncio.create_task(router.serve(stop, started=started.set))
        kit = Kit(kube, router, client, stop, task)
        try:
            await eventually("the router listens", lambda: started.is_set() or task.done())
            if synced:
                await eventually("first lists", lambda: all(watch.synced.is_set() for watch in router.watches))
            yield kit
        finally:
            stop.set()
            async with asyncio.timeout(DEADLINE_S):
                await task
            for each in kit.pods.values():
                await each.stop()
