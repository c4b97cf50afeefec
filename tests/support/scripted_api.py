"""A Kubernetes API on loopback that keeps objects by path: enough for clients, with nothing of the server's judgement.

It knows get, list by label equality, create, merge and apply patches, delete, resource versions, and refusals on demand.
Every request that writes is noted. What a real API server would validate is tested on a real one in e2e.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig

Body = dict[str, Any]
COLLECTIONS = frozenset(
    {
        "llmdeployments",
        "deployments",
        "statefulsets",
        "pods",
        "services",
        "horizontalpodautoscalers",
        "events",
        "secrets",
        "configmaps",
        "endpointslices",
    }
)


class ScriptedApi:
    """`objects` maps `/apis/apps/v1/namespaces/demo/deployments/x` to the object there."""

    def __init__(self) -> None:
        self.objects: dict[str, Body] = {}
        self.writes: list[tuple[str, str]] = []
        self.refuse: dict[tuple[str, str], tuple[int, str]] = {}
        self.url = ""
        self.num_requests = 0
        self._request = asyncio.Event()
        self._versions = itertools.count(100)

    def put(self, path: str, body: Body) -> Body:
        """As another client would write it."""
        stored: Body = json.loads(json.dumps(body))
        stored.setdefault("metadata", {})["resourceVersion"] = str(next(self._versions))
        stored["metadata"].setdefault("name", path.rsplit("/", 1)[1])
        self.objects[path] = stored
        return stored

    def client(self) -> AsyncClient:
        config = KubeConfig.from_dict(
            {
                "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
        return AsyncClient(config=config, field_manager="quire-operator", trust_env=False)

    async def until(self, what: str, true: Callable[[], bool], *, deadline_s: float = 30) -> None:
        """Look again after each request until it is true."""
        try:
            async with asyncio.timeout(deadline_s):
                while not true():
                    self._request.clear()
                    await self._request.wait()
        except TimeoutError:
            raise AssertionError(f"not within {deadline_s} s: {what}") from None

    async def requests(self, count: int) -> None:
        """Wait for so many more requests."""
        goal = self.num_requests + count
        await self.until(f"{count} more requests", lambda: self.num_requests >= goal)

    async def _serve(self, request: web.Request) -> web.Response:
        try:
            return await self._answer(request)
        finally:
            self.num_requests += 1
            self._request.set()

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path
        if request.method != "GET":
            self.writes.append((request.method, path))
        if (request.method, path) in self.refuse:
            return _status(*self.refuse[request.method, path])
        if request.method == "GET":
            return self._read(request)
        if request.method == "DELETE":
            return _json({}) if self.objects.pop(path, None) is not None else _status(404, "not found")
        body = json.loads(await request.text())
        if request.method == "POST":
            name = body["metadata"].get("name") or f"{body['metadata']['generateName']}{next(self._versions)}"
            where = f"{path}/{name}"
            if where in self.objects:
                return _status(409, "already exists")
            body["metadata"]["name"] = name
            return _json(self.put(where, body), status=201)
        return self._patch(path, body, request.headers["Content-Type"])

    def _read(self, request: web.Request) -> web.Response:
        path = request.path
        if path in self.objects:
            return _json(self.objects[path])
        if path.rsplit("/", 1)[1] not in COLLECTIONS:
            return _status(404, "not found")
        wanted = dict(part.split("=", 1) for part in request.query.get("labelSelector", "").split(",") if "=" in part)
        name = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        prefix = path + "/"
        items = [
            {key: value for key, value in item.items() if key not in ("kind", "apiVersion")}
            for where, item in self.objects.items()
            if where.startswith(prefix + name) and wanted.items() <= item["metadata"].get("labels", {}).items()
        ]
        return _json({"items": items, "metadata": {"resourceVersion": "1"}})

    def _patch(self, path: str, patch: Body, kind: str) -> web.Response:
        path, subresource, _ = path.partition("/status")
        old = self.objects.get(path)
        if old is None and (kind != "application/apply-patch+yaml" or subresource):
            return _status(404, "not found")
        old = old or {}
        version = patch.get("metadata", {}).get("resourceVersion")
        if version is not None and version != old.get("metadata", {}).get("resourceVersion"):
            return _status(409, "the object has been modified")
        return _json(self.put(path, _merged(old, patch)))


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(old, dict):
        return patch
    return {**old, **{key: _merged(old.get(key), value) for key, value in patch.items()}}


def _json(body: Body, status: int = 200) -> web.Response:
    # Without a charset, as the API server sends it: clients compare the header as a whole.
    return web.Response(body=json.dumps(body).encode(), status=status, headers={"Content-Type": "application/json"})


def _status(code: int, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return _json(body, status=code)


@asynccontextmanager
async def scripted_api() -> AsyncIterator[ScriptedApi]:
    """Serves until left."""
    api = ScriptedApi()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api._serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        await runner.cleanup()
