"""The router's picture of the cluster through list and watch: resume, 410, pages, faults, silence, scopes."""

from __future__ import annotations

import asyncio
import logging

import httpx2
import pytest

from quire_router.errors import SettingsError
from quire_router.kube import Resource, Sink, Watcher, connect
from quire_router.metrics import Metrics
from router_kit import FakeKube, eventually, llmadapter, llmdeployment, running

PLURALS = ("llmdeployments", "endpointslices")


async def test_what_exists_and_what_comes_and_goes_is_seen() -> None:
    kube = FakeKube()
    await kube.put("llmdeployments", llmdeployment("before"))
    async with running(kube=kube) as kit:
        resolve = kit.router.registry.resolve
        assert resolve("before") is not None
        await kube.put("llmdeployments", llmdeployment("after"))
        await eventually("added", lambda: resolve("after") is not None)
        await kube.put("llmdeployments", llmdeployment("after", servedName="renamed"))
        await eventually("modified", lambda: resolve("renamed") is not None and resolve("after") is None)
        await kube.delete("llmdeployments", "demo", "before")
        await eventually("deleted", lambda: resolve("before") is None)
        assert kube.lists("llmdeployments") == 1
        selectors = {query.get("labelSelector") for path, query in kube.requests if path.endswith("endpointslices")}
        assert selectors == {"quire.dev/deployment"}


async def test_long_lists_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_router.kube.PAGE_SIZE", 3)
    kube = FakeKube()
    for number in range(8):
        await kube.put("llmdeployments", llmdeployment(f"m{number}"))
    async with running(kube=kube) as kit:
        assert all(kit.router.registry.resolve(f"m{number}") for number in range(8))
        assert kube.lists("llmdeployments") == 3


async def test_a_cut_watch_resumes_where_it_was_and_misses_nothing() -> None:
    async with running() as kit:
        await kit.kube.put("llmdeployments", llmdeployment("one"))
        await eventually("one", lambda: kit.router.registry.resolve("one") is not None)
        seen = kit.kube.version
        await kit.kube.bookmark("llmdeployments")
        await eventually("bookmark taken", lambda: kit.router.watches[0]._version == str(seen + 1))
        await kit.kube.cut_watches()
        await kit.kube.put("llmdeployments", llmdeployment("two"))
        await eventually("two", lambda: kit.router.registry.resolve("two") is not None)
        assert kit.kube.lists("llmdeployments") == 1
        assert kit.kube.watches("llmdeployments")[-1] == str(seen + 1)


async def test_a_version_that_is_too_old_leads_to_a_new_list() -> None:
    async with running() as kit:
        await kit.kube.put("llmdeployments", llmdeployment("stays"))
        await kit.kube.put("llmdeployments", llmdeployment("goes"))
        await eventually("goes is there", lambda: kit.router.registry.resolve("goes") is not None)
        kit.kube.mute = True
        await kit.kube.delete("llmdeployments", "demo", "goes")
        await kit.kube.compact()
        await kit.kube.cut_watches()
        await eventually("goes is gone", lambda: kit.router.registry.resolve("goes") is None)
        assert kit.router.registry.resolve("stays") is not None
        assert await kit.metric("quire_router_watch_lists_total", resource="llmdeployments") == 2


async def test_adapters_are_seen_come_and_go() -> None:
    kube = FakeKube()
    await kube.put("llmdeployments", llmdeployment("m"))
    await kube.put("llmadapters", llmadapter("before", "m"))
    async with running(kube=kube) as kit:
        assert kit.router.registry.resolve("before") is not None
        await kube.put("llmadapters", llmadapter("after", "m"))
        await eventually("after", lambda: kit.router.registry.resolve("after") is not None)
        await kube.delete("llmadapters", "demo", "before")
        await eventually("before is gone", lambda: kit.router.registry.resolve("before") is None)


@pytest.mark.parametrize("status", [403, 404])
async def test_a_cluster_without_adapters_holds_nothing_up(status: int) -> None:
    kube = FakeKube(answers={"llmadapters": [status] * 2})
    await kube.put("llmadapters", llmadapter("late", "m"))
    async with running(kube=kube) as kit:
        await kit.deploy("m", await kit.pod("a"))
        async with kit.client.get(f"{kit.url}/health/ready") as response:
            assert (response.status, (await response.json())["stale"]) == (200, [])
        assert (await kit.chat())[0] == 200
        await eventually("they are there now", lambda: kit.router.registry.resolve("late") is not None)


@pytest.mark.parametrize("status", [410, 500, 403, 404, 401])
async def test_faults_of_the_first_lists_delay_readiness_and_nothing_else(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    kube = FakeKube(answers={plural: [status] * 3 for plural in PLURALS})
    await kube.put("llmdeployments", llmdeployment("m"))
    with caplog.at_level(logging.WARNING, "quire_router"):
        async with running(kube=kube, synced=False) as kit:
            async with kit.client.get(f"{kit.url}/health/ready") as response:
                assert response.status == 503
                waiting = (await response.json())["waiting_for"]
                assert [plural for plural in PLURALS if f"{plural} in all namespaces" in waiting] == [*PLURALS]
            assert (await kit.chat())[0] == 503
            await eventually("synced", lambda: kit.router.registry.resolve("m") is not None)
            await eventually("all synced", lambda: all(watch.synced.is_set() for watch in kit.router.watches))
            async with kit.client.get(f"{kit.url}/health/ready") as response:
                assert response.status == 200
            assert await kit.metric("quire_router_watch_errors_total", resource="llmdeployments") == 3
    assert any("llmdeployments in all namespaces" in message for message in caplog.messages)
    assert sum("llmdeployments" in message for message in caplog.messages) == 1  # not one line an attempt


async def test_an_odd_character_in_an_object_does_not_break_the_watch() -> None:
    async with running() as kit:
        odd = llmdeployment("odd")
        odd["metadata"]["annotations"] = {"note": "a\x85b\u2028c"}
        await kit.kube.put("llmdeployments", odd)
        await eventually("odd", lambda: kit.router.registry.resolve("odd") is not None)
        assert kit.kube.lists("llmdeployments") == 1


async def test_an_object_of_an_unexpected_shape_does_not_stop_the_others() -> None:
    async with running() as kit:
        bad = llmdeployment("bad")
        bad["spec"] = {"model": "text"}
        await kit.kube.put("llmdeployments", bad)
        await kit.kube.put("llmdeployments", llmdeployment("good"))
        await eventually("good", lambda: kit.router.registry.resolve("good") is not None)
        assert kit.router.registry.resolve("bad") is None


async def test_a_line_that_is_no_json_leads_to_a_new_list() -> None:
    async with running() as kit:
        await kit.kube.put("llmdeployments", llmdeployment("m"))
        await eventually("m", lambda: kit.router.registry.resolve("m") is not None)
        kit.kube.garble = True
        await kit.kube.bookmark("llmdeployments")
        await eventually("listed again", lambda: kit.kube.lists("llmdeployments") == 2)
        kit.kube.garble = False
        await kit.kube.put("llmdeployments", llmdeployment("n"))
        await eventually("n", lambda: kit.router.registry.resolve("n") is not None)


async def test_a_dead_api_server_stops_no_traffic_and_is_seen() -> None:
    async with running() as kit:
        pod = await kit.pod("a")
        await kit.deploy("m", pod)
        kit.kube.answers = {plural: [500] * 1000 for plural in PLURALS}
        await kit.kube.cut_watches()
        await eventually("trying again", lambda: len(kit.kube.answers["endpointslices"]) < 998)
        assert (await kit.chat())[0] == 200
        async with kit.client.get(f"{kit.url}/health/ready") as response:
            assert response.status == 200
        assert await kit.metric("quire_router_watch_errors_total", resource="endpointslices") >= 2
        kit.kube.answers.clear()
        await kit.kube.put("llmdeployments", llmdeployment("new"))
        await eventually("back", lambda: kit.router.registry.resolve("new") is not None)


async def test_a_watch_that_goes_silent_is_cut_and_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    # The server never closes it and never sends: 0.2 s stands for the 60 s + 10 s of a real one.
    monkeypatch.setattr("quire_router.kube.SILENCE_SLACK_S", 0.1)
    kube, seen = FakeKube(), []
    async with running(kube=kube) as kit, httpx2.AsyncClient(base_url=kube.url, trust_env=False) as client:
        sink = Sink(lambda _, items: seen.extend(items), seen.append, seen.append)
        metrics = Metrics(kit.router.registry.count_endpoints)
        watcher = Watcher(client, Resource("apis/quire.dev/v1alpha1", "silent"), "", sink, metrics, timeout_s=0.1)
        assert watcher.stale
        task = asyncio.create_task(watcher.run())
        try:
            await eventually("listed", watcher.synced.is_set)
            assert not watcher.stale
            kube.mute = True
            await kube.put("silent", llmdeployment("unheard"))
            before = len(kube.watches("silent"))
            await eventually("cut and opened again", lambda: len(kube.watches("silent")) > before)
            kube.mute = False
            await kube.bookmark("silent")
            await eventually("heard after all", lambda: [item["metadata"]["name"] for item in seen] == ["unheard"])
            assert kube.lists("silent") == 1
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_a_watch_that_ends_at_once_does_not_spin() -> None:
    kube = FakeKube()
    async with running(kube=kube) as kit:
        for _ in range(20):
            await kube.cut_watches()
            await asyncio.sleep(0)
        before = len(kube.requests)
        kube.answers = {"llmdeployments": [200] * 1000}  # 200, one useless line, end
        await kube.cut_watches()
        began = asyncio.get_running_loop().time()
        await eventually("five rounds", lambda: len(kube.requests) >= before + 5)
        assert asyncio.get_running_loop().time() - began > 0.5
        assert kit.router.watches[0].synced.is_set()


async def test_only_the_named_namespaces_are_asked_for_and_lists_of_one_leave_the_others() -> None:
    kube = FakeKube()
    for namespace in ("a", "b", "c"):
        await kube.put("llmdeployments", llmdeployment(f"m-{namespace}", namespace=namespace))
    async with running(kube=kube, watch_namespaces=("a", "b")) as kit:
        resolve = kit.router.registry.resolve
        assert resolve("m-a") and resolve("m-b") and resolve("m-c") is None
        assert {path for path, _ in kube.requests} == {
            f"/apis/{api}/namespaces/{namespace}/{plural}"
            for namespace in ("a", "b")
            for api, plural in (
                ("quire.dev/v1alpha1", "llmdeployments"),
                ("quire.dev/v1alpha1", "llmadapters"),
                ("discovery.k8s.io/v1", "endpointslices"),
            )
        }
        await kube.compact()
        await kube.cut_watches()
        await eventually("listed again", lambda: kube.lists("llmdeployments") == 4)
        await eventually("still both", lambda: bool(resolve("m-a") and resolve("m-b")))


async def test_the_age_of_each_watch_is_exported() -> None:
    async with running() as kit:
        for plural in PLURALS:
            assert 0 < await kit.metric("quire_router_watch_age_seconds", resource=plural) < 5


def test_without_a_cluster_the_start_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SettingsError, match="set KUBECONFIG"):
        connect()
