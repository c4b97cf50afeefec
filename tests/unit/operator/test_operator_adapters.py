"""Adapters: real objects on a real API server, pods played by small engines that load, refuse or know no adapters, and by the real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from lightkube.generic_resource import create_api_info

from live_server import live_server
from operator_kit import body
from quire_operator import labels
from quire_operator.cluster import Cluster, kinds
from quire_operator.controllers import Adapters
from quire_operator.policy.adapters import (
    FIRST_S,
    MOST_S,
    UNSUPPORTED_S,
    Failure,
    PodPlan,
    Wanted,
    failed,
    plan_pod,
    winners,
)
from quire_operator.spec import Key, parse
from real_api import RealApi
from scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(3600)  # the programs are built where they are not there yet

ONE = Wanted("one", "support", "org/lora", "2026-01-01T00:00:00Z")
TWO = Wanted("two", "support", "org/other", "2026-01-02T00:00:00Z")


def test_a_pod_gets_what_is_missing_and_loses_what_nobody_asks_for() -> None:
    assert plan_pod([ONE], {}) == PodPlan((), (ONE,))
    assert plan_pod([ONE], {"support": "org/lora"}) == PodPlan((), ())
    assert plan_pod([ONE], {"support": "org/older"}) == PodPlan(("support",), (ONE,)), "a changed source is loaded anew"
    assert plan_pod([], {"left": "x"}) == PodPlan(("left",), ())


def test_of_two_with_one_name_the_older_wins_and_the_spec_over_both() -> None:
    assert winners([TWO, ONE]) == {"support": ONE}
    assert plan_pod([TWO, ONE], {}) == PodPlan((), (ONE,))
    own = Wanted(None, "support", "org/own")
    assert plan_pod([TWO, ONE, own], {"support": "org/lora"}) == PodPlan(("support",), (own,))


def test_what_failed_is_tried_more_and_more_seldom() -> None:
    last: Failure | None = None
    waits = []
    for _ in range(12):
        last = failed(last, "no", now=50.0)
        waits.append(last.left_s(50.0))
    assert waits[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S] and waits[-1] == MOST_S and waits == sorted(waits)
    task = ("support", "org/lora")
    assert plan_pod([ONE], {}, {task: last}, now=50.0) == PodPlan((), (), (task,))
    assert plan_pod([ONE], {}, {task: last}, now=50.0 + MOST_S) == PodPlan((), (ONE,))
    better = replace(ONE, path="org/better")
    assert plan_pod([better], {}, {task: last}, now=50.0) == PodPlan((), (better,)), "another source is another matter"
    never = failed(None, "it has none", now=50.0, supported=False)
    assert never.left_s(50.0) == UNSUPPORTED_S
    assert plan_pod([], {"left": "x"}, {("left", None): never}, now=51.0) == PodPlan((), (), (("left", None),))


class Engine:
    """One pod's engine, at an address of its own on loopback."""

    def __init__(self, ip: str) -> None:
        self.ip = ip
        self.loaded: dict[str, str] = {}
        self.refuse: int | None = None
        self.together: asyncio.Barrier | None = None
        self.silent = False
        self.asked = asyncio.Event()
        self.hold: asyncio.Event | None = None
        """Until then it does not say what it has."""
        self.calls: list[str] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/load_lora_adapter", self.load)
        app.router.add_post("/v1/unload_lora_adapter", self.unload)
        return app

    async def models(self, _: web.Request) -> web.Response:
        self.asked.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.silent:
            return web.Response(status=500)
        data: list[dict[str, Any]] = [{"id": "base", "root": "base", "parent": None}]
        data += [{"id": name, "root": path, "parent": "base"} for name, path in self.loaded.items()]
        return web.json_response({"object": "list", "data": data})

    async def load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(f"load {body['lora_name']} {body['lora_path']}")
        if self.together is not None:
            await self.together.wait()
        if self.refuse is not None:
            return web.json_response({"error": {"message": "rank 512 is too large"}}, status=self.refuse)
        self.loaded[body["lora_name"]] = body["lora_path"]
        return web.Response()

    async def unload(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(f"unload {body['lora_name']}")
        del self.loaded[body["lora_name"]]
        return web.Response()


@pytest.fixture
async def engines(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Engine]]:
    made, runners, port = [Engine(f"127.0.0.{n}") for n in (2, 3)], [], 0
    for engine in made:
        runner = web.AppRunner(engine.app(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, engine.ip, port).start()
        port = runner.addresses[0][1]
        runners.append(runner)
    monkeypatch.setattr(labels, "ENGINE_PORT", port)
    yield made
    for runner in runners:
        await runner.cleanup()


class Bench:
    """An LLMDeployment `smol`, whose pods are made by hand, in a namespace of its own."""

    def __init__(self, api: RealApi, cluster: Cluster) -> None:
        self.api = api
        self.namespace = api.namespace()
        self.key = Key(self.namespace, "smol")
        self.now = 1000.0
        self.changed: list[Key] = []
        self.asked: list[Key] = []
        self.controller = Adapters(
            cluster, changed=self.changed.append, wanted=self.asked.append, clock=lambda: self.now
        )
        self.adapters = f"/apis/quire.dev/v1alpha1/namespaces/{self.namespace}/llmadapters"
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"

    def adapter(self, name: str, **spec: Any) -> None:
        body = {
            "apiVersion": "quire.dev/v1alpha1",
            "kind": "LLMAdapter",
            "metadata": {"name": name},
            "spec": {"deployment": "smol", "source": "hf://org/lora", **spec},
        }
        assert self.api.create(self.adapters, body, dry_run=False).status_code == 201

    def own(self, *adapters: dict[str, str]) -> None:
        """`spec.adapters` of the LLMDeployment, which is made where it is not there."""
        where = f"/apis/quire.dev/v1alpha1/namespaces/{self.namespace}/llmdeployments"
        if self.api.get(f"{where}/smol") is None:
            made = {"apiVersion": "quire.dev/v1alpha1", "kind": "LLMDeployment", "metadata": {"name": "smol"}}
            spec = {"model": {"source": "file:///m"}}
            assert self.api.create(where, {**made, "spec": spec}, dry_run=False).status_code == 201
        self.api.patch(f"{where}/smol", {"spec": {"adapters": list(adapters)}})

    def pod(self, engine: Engine, *, ready: bool = True) -> str:
        name = f"p-{engine.ip.rpartition('.')[2]}"
        spec = {"containers": [{"name": "engine", "image": "i"}]}
        marks = labels.stable_selector("smol")
        made = self.api.create(self.pods, {"metadata": {"name": name, "labels": marks}, "spec": spec}, dry_run=False)
        assert made.status_code == 201, made.text
        status = {"podIP": engine.ip, "podIPs": [{"ip": engine.ip}], "phase": "Running"}
        self.api.patch(f"{self.pods}/{name}/status", {"status": status})
        if ready:
            self.ready(name)
        return name

    def ready(self, name: str, status: str = "True") -> None:
        condition = {"type": "Ready", "status": status}
        self.api.patch(f"{self.pods}/{name}/status", {"status": {"conditions": [condition]}})

    async def look(self, name: str = "support") -> dict[str, Any]:
        self.again_s = (await self.controller(self.key)).again_s
        found = self.api.get(f"{self.adapters}/{name}")
        return dict(found["status"]) if found is not None else {}


@pytest.fixture
async def bench(api: RealApi, real_cluster: Cluster) -> AsyncIterator[Bench]:
    made = Bench(api, real_cluster)
    yield made
    await made.controller.close()


async def test_every_pod_loads_it_once_and_new_pods_too(bench: Bench, engines: list[Engine]) -> None:
    first, second = engines
    bench.adapter("support")
    condition = (await bench.look())["conditions"][0]
    assert (condition["reason"], condition["message"]) == (
        "NoDeployment",
        "there is no LLMDeployment smol in this namespace",
    )
    bench.own()
    assert (await bench.look())["conditions"][0]["reason"] == "NoPods"
    bench.pod(first)
    status = await bench.look()
    assert (status["summary"], status["conditions"][0]["status"]) == ("1/1", "True")
    bench.pod(second)
    status = await bench.look()
    assert status["summary"] == "2/2" and {pod["state"] for pod in status["pods"]} == {"Loaded"}
    await bench.look()
    assert first.calls == second.calls == ["load support org/lora"]
    first.loaded.clear()  # the pod's container started again
    await bench.look()
    assert first.loaded == {"support": "org/lora"}


async def test_pods_that_are_not_ready_are_not_asked(bench: Bench, engines: list[Engine]) -> None:
    bench.adapter("support")
    bench.pod(engines[0], ready=False)
    assert (await bench.look())["of"] == 0
    assert engines[0].calls == []


@pytest.mark.parametrize("code", [404, 501])
async def test_an_engine_without_adapters_says_so_and_disturbs_no_other(
    bench: Bench, engines: list[Engine], code: int
) -> None:
    engines[0].refuse = code
    bench.adapter("support")
    names = [bench.pod(engine) for engine in engines]
    status = await bench.look()
    assert {pod["name"]: pod["state"] for pod in status["pods"]} == {names[0]: "NotSupported", names[1]: "Loaded"}
    assert status["conditions"][0]["reason"] == "NotSupported" and str(code) in status["conditions"][0]["message"]
    assert bench.again_s == UNSUPPORTED_S and len(engines[0].calls) == 1
    for _ in range(5):
        bench.now += UNSUPPORTED_S / 6
        await bench.look()
    assert len(engines[0].calls) == 1, "no storm"
    bench.now += UNSUPPORTED_S
    engines[0].refuse = None
    assert (await bench.look())["conditions"][0]["status"] == "True"


async def test_a_refusal_is_told_pod_by_pod_and_cleared(bench: Bench, engines: list[Engine]) -> None:
    engines[0].refuse = 400
    bench.adapter("support")
    bench.pod(engines[0])
    status = await bench.look()
    assert status["pods"][0]["state"] == "Failed" and "rank 512 is too large" in status["pods"][0]["message"]
    assert status["conditions"][0]["reason"] == "LoadFailed"
    engines[0].refuse = None
    assert bench.again_s == FIRST_S
    assert (await bench.look())["pods"][0]["state"] == "Failed", "not yet tried again"
    bench.now += FIRST_S
    status = await bench.look()
    assert status["conditions"][0]["status"] == "True" and "message" not in status["pods"][0]


async def test_a_pod_that_does_not_answer_is_told(bench: Bench, engines: list[Engine]) -> None:
    bench.adapter("support")
    silent = Engine("127.0.0.9")
    bench.pod(silent)
    status = await bench.look()
    assert status["pods"][0]["state"] == "Failed" and "cannot be reached" in status["pods"][0]["message"]


async def test_what_is_deleted_is_unloaded_also_after_a_restart_of_the_operator(
    bench: Bench, engines: list[Engine]
) -> None:
    engines[0].loaded = {"left": "org/left"}
    bench.pod(engines[0])
    late = bench.pod(engines[1], ready=False)
    assert bench.controller.concerns(bench.key), "who has just started does not know"
    await bench.look()
    assert engines[0].loaded == {}
    assert bench.controller.concerns(bench.key), "one has not been asked yet"
    bench.ready(late)
    await bench.look()
    assert not bench.controller.concerns(bench.key), "nothing is left to do"
    bench.controller.concern(bench.key)
    assert bench.controller.concerns(bench.key)


async def test_a_pod_without_an_answer_is_asked_again_also_without_adapters(bench: Bench) -> None:
    bench.pod(Engine("127.0.0.9"))
    await bench.look()
    assert bench.controller.concerns(bench.key) and bench.again_s is not None


async def test_a_pod_that_is_not_ready_any_more_is_not_waited_for(bench: Bench, engines: list[Engine]) -> None:
    """Its failure is long over, and nothing is tried before it is ready: looking again at once would never end."""
    engines[0].refuse = 400
    bench.adapter("support")
    name = bench.pod(engines[0])
    await bench.look()
    assert bench.again_s == FIRST_S
    bench.ready(name, "False")
    bench.now += MOST_S
    await bench.look()
    assert bench.again_s is None
    bench.ready(name)
    engines[0].refuse = None
    assert (await bench.look())["summary"] == "1/1"


async def test_a_pod_that_does_not_say_what_it_has_is_asked_more_and_more_seldom(
    bench: Bench, engines: list[Engine]
) -> None:
    """Whatever else it did not do before."""
    engines[0].refuse = 400
    bench.adapter("support")
    bench.pod(engines[0])
    await bench.look()
    engines[0].silent = True
    for wait_s in (FIRST_S, 2 * FIRST_S, 4 * FIRST_S):
        bench.now += MOST_S
        await bench.look()
        assert bench.again_s == wait_s
        await bench.look()
        assert bench.again_s == wait_s, "nothing is tried before"


async def test_an_adapter_that_comes_while_a_look_is_under_way_is_not_overlooked(
    bench: Bench, engines: list[Engine]
) -> None:
    engines[0].hold = asyncio.Event()
    bench.pod(engines[0])
    async with asyncio.timeout(30):
        first = asyncio.create_task(bench.controller(bench.key))
        await engines[0].asked.wait()
        bench.adapter("support")
        bench.controller.concern(bench.key)
        engines[0].hold.set()
        await first
    assert bench.controller.concerns(bench.key), "the queue looks once more, and must not be told that there is nothing"
    assert (await bench.look())["summary"] == "1/1"


async def test_nothing_is_remembered_of_one_that_is_gone(bench: Bench, engines: list[Engine]) -> None:
    bench.own()
    name = bench.pod(engines[0])
    await bench.look()
    assert not bench.controller.concerns(bench.key)
    bench.controller.forget(bench.key)
    bench.api.client.delete(f"/apis/quire.dev/v1alpha1/namespaces/{bench.namespace}/llmdeployments/smol")
    bench.api.client.delete(f"{bench.pods}/{name}", params={"gracePeriodSeconds": 0})
    await bench.look()
    kept = [value for value in vars(bench.controller).values() if isinstance(value, set | dict)]
    assert not any(bench.key in each for each in kept)


async def test_where_the_kind_is_not_served_there_are_none(
    bench: Bench, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that nobody serves is refused in plain text."""

    class Nowhere(kinds.LLMAdapter):
        _api_info = create_api_info("nowhere.quire.dev", "v1", "LLMAdapter", "llmadapters")

    monkeypatch.setattr(kinds, "LLMAdapter", Nowhere)
    bench.own({"name": "mine", "source": "hf://org/mine"})
    bench.pod(engines[0])
    await bench.controller(bench.key)
    assert engines[0].loaded == {"mine": "org/mine"}


async def test_slow_adapters_are_loaded_at_the_same_time(bench: Bench, engines: list[Engine]) -> None:
    names = {"a", "b", "c"}
    for name in names:
        bench.adapter(name)
    engines[0].together = asyncio.Barrier(len(names))
    bench.pod(engines[0])
    async with asyncio.timeout(30):
        await bench.look()
    assert set(engines[0].loaded) == names


async def test_a_changed_source_is_loaded_anew(bench: Bench, engines: list[Engine]) -> None:
    bench.adapter("support")
    bench.pod(engines[0])
    await bench.look()
    bench.api.patch(f"{bench.adapters}/support", {"spec": {"source": "hf://org/better"}})
    await bench.look()
    assert engines[0].calls[1:] == ["unload support", "load support org/better"]


async def test_a_name_that_is_taken(bench: Bench, engines: list[Engine]) -> None:
    bench.adapter("a", servedName="support")
    bench.adapter("b", servedName="support", source="hf://org/other")
    bench.pod(engines[0])
    status = await bench.look("b")
    assert status["conditions"][0]["reason"] == "NameTaken" and "LLMAdapter a" in status["conditions"][0]["message"]
    assert engines[0].loaded == {"support": "org/lora"}


async def test_the_real_server_says_that_it_has_none(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live_server(tmp_path, ScriptedEngine()) as live:
        monkeypatch.setattr(labels, "ENGINE_PORT", live.http.base_url.port)
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            answer = await live.http.post(path, json={"lora_name": "support", "lora_path": "org/lora"})
            error = answer.json()["error"]
            assert (answer.status_code, error["type"], error["code"]) == (
                501,
                "not_implemented_error",
                "adapters_not_supported",
            )
        bench.adapter("support")
        name = bench.pod(Engine("127.0.0.1"))
        status = await bench.look()
    assert [(pod["name"], pod["state"]) for pod in status["pods"]] == [(name, "NotSupported")]
    condition = status["conditions"][0]
    assert condition["reason"] == "NotSupported" and "this engine has no LoRA adapters" in condition["message"]


async def test_adapters_of_the_spec_are_kept_beside_llmadapters(bench: Bench, engines: list[Engine]) -> None:
    bench.adapter("support")
    bench.own({"name": "mine", "source": "hf://org/mine"})
    bench.pod(engines[0])
    await bench.look()
    assert engines[0].loaded == {"mine": "org/mine", "support": "org/lora"}
    owner = parse({**body(), "metadata": {**body()["metadata"], "name": "smol", "namespace": bench.namespace}})
    readings = bench.controller.told(owner)
    assert readings is not None and [(one.name, one.loaded, one.well) for one in readings] == [
        ("mine", 1, True),
        ("support", 1, True),
    ]
    assert bench.changed == [bench.key], "its status is told once"
    await bench.look()
    assert bench.changed == [bench.key]
    bench.own()
    await bench.look()
    assert engines[0].loaded == {"support": "org/lora"} and len(bench.changed) == 2


async def test_adapters_that_are_new_in_a_spec_are_noticed(bench: Bench) -> None:
    bench.own()
    await bench.look()
    assert not bench.controller.concerns(bench.key), "nobody asks for any"
    spec = {"adapters": [{"name": "mine", "source": "file:///a"}]}
    told = {**body(spec), "metadata": {**body()["metadata"], "name": "smol", "namespace": bench.namespace}}
    assert bench.controller.told(parse(told)) is None and bench.asked == [bench.key]
    assert bench.controller.concerns(bench.key)


async def test_what_an_old_container_did_not_do_says_nothing_of_the_next(bench: Bench, engines: list[Engine]) -> None:
    engines[0].refuse = 501
    bench.adapter("support")
    name = bench.pod(engines[0])
    await bench.look()
    engines[0].refuse = None
    state = {"name": "engine", "image": "i", "imageID": "i", "ready": True, "restartCount": 1, "state": {"running": {}}}
    bench.api.patch(f"{bench.pods}/{name}/status", {"status": {"containerStatuses": [state]}})
    assert (await bench.look())["conditions"][0]["status"] == "True"
