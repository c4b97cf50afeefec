"""Requests through a real router to scripted pods: choice, retries, errors, headers, bodies."""

from __future__ import annotations

import asyncio
import gzip
import json

import aiohttp
import pytest
from aiohttp import web

from quire_router.endpoints import EndpointState
from router_kit import FakePod, Kit, eventually, llmadapter, running


async def reset(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def refuse(_: web.Request) -> web.StreamResponse:
    body = {"error": {"message": "draining", "type": "service_unavailable", "code": "draining", "param": None}}
    return web.json_response(body, status=503, headers={"Retry-After": "7"})


async def test_a_request_reaches_the_pod_with_its_body_and_query_intact() -> None:
    async with running() as kit:
        pod = await kit.pod("a")
        await kit.deploy("m", pod)
        raw = b'{ "messages" : [ ], "model":"m","seed": 12345678901234567890, "x":1.10 }'
        async with kit.client.post(f"{kit.url}/v1/chat/completions?a=b%20c", data=raw) as response:
            assert response.status == 200
            assert (await response.json())["object"] == "chat.completion"
        assert pod.bodies == [raw]
        assert pod.paths == ["/v1/chat/completions?a=b%20c"]


async def test_a_name_the_pods_do_not_know_is_replaced_and_nothing_else() -> None:
    async with running() as kit:
        pod = await kit.pod("a")
        await kit.deploy("m", pod, servedName="smol", aliases=["small"])
        for name, sent in (("smol", "smol"), ("small", "small"), ("demo/m", "smol")):
            body = '{"model":"%s","seed":12345678901234567890,"temperature":0.10}'
            async with kit.client.post(f"{kit.url}/v1/completions", data=(body % name).encode()) as response:
                assert response.status == 200
            assert pod.bodies.pop() == (body % sent).encode()
        assert (await kit.chat("m"))[0] == 404


async def test_headers_cross_the_router_without_those_of_one_hop() -> None:
    async def script(_: web.Request) -> web.StreamResponse:
        response = web.Response(
            body=b"{}",
            content_type="application/json",
            headers={"X-Engine": "1", "Keep-Alive": "x", "X-Request-Id": "mine"},
        )
        response.headers.add("Set-Cookie", "a=1")
        response.headers.add("Set-Cookie", "b=2")
        return response

    async with running() as kit:
        pod = await kit.pod("a", script)
        await kit.deploy("m", pod)
        sent = {
            "Authorization": "Bearer k",
            "Connection": "x-private",
            "X-Private": "1",
            "TE": "trailers",
            "X-Request-Id": "r-1",
        }
        async with kit.client.post(f"{kit.url}/v1/completions", data=b'{"model":"m"}', headers=sent) as response:
            assert response.headers["X-Engine"] == "1"
            assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
            assert response.headers["X-Request-Id"] == "r-1"
            assert "Keep-Alive" not in response.headers
        got = {name.lower(): value for name, value in pod.headers[0].items()}
        assert got["authorization"] == "Bearer k"
        assert got["x-request-id"] == "r-1"
        assert got["x-forwarded-for"] == "127.0.0.1"
        assert got["host"] == f"127.0.0.1:{pod.port}"
        assert not {"x-private", "te"} & got.keys()
        # Cookies of one client must never reach the next one.
        await kit.chat()
        assert "cookie" not in {name.lower() for name in pod.headers[1]}


async def test_every_answer_has_a_request_id_and_a_bad_one_is_replaced() -> None:
    async with running() as kit:
        async with kit.client.get(f"{kit.url}/nowhere") as response:
            assert len(response.headers["X-Request-Id"]) == 32
        async with kit.client.get(f"{kit.url}/v1/models", headers={"X-Request-Id": "x" * 200}) as response:
            assert len(response.headers["X-Request-Id"]) == 32


async def test_a_compressed_body_is_decoded_once() -> None:
    async with running() as kit:
        pod = await kit.pod("a")
        await kit.deploy("m", pod)
        raw = json.dumps({"model": "m", "prompt": "x" * 5000}).encode()
        async with kit.client.post(
            f"{kit.url}/v1/completions", data=gzip.compress(raw), headers={"Content-Encoding": "gzip"}
        ) as response:
            assert response.status == 200
        assert pod.bodies == [raw]
        assert "Content-Encoding" not in pod.headers[0]


async def test_a_body_that_cannot_be_decoded_gets_400() -> None:
    async with running() as kit:
        packed = gzip.compress(b'{"model":"m"}')[:-12] + b"garbage"
        async with kit.client.post(
            f"{kit.url}/v1/completions", data=packed, headers={"Content-Encoding": "gzip"}
        ) as response:
            assert response.status == 400


@pytest.mark.parametrize(
    ("raw", "status", "code", "says"),
    [
        (b"", 400, "invalid_json", "valid JSON"),
        (b"{", 400, "invalid_json", "valid JSON"),
        (b'{"model":"m"} x', 400, "invalid_json", "valid JSON"),
        (b"[1]", 400, "invalid_json", "JSON object"),
        (b"\xff\xfe", 400, "invalid_json", "valid JSON"),
        (b'{"messages":[]}', 400, "missing_model", "GET /v1/models"),
        (b'{"model":7}', 400, "bad_model", "string"),
        (b'{"model":""}', 400, "bad_model", "string"),
        (b'{"model":null}', 400, "bad_model", "string"),
        (b'{"model":"gone"}', 404, "model_not_found", "'gone' does not exist; GET /v1/models"),
        (b'{"model":"m","x":"' + b"y" * 4096 + b'"}', 413, "body_too_large", "4096 bytes"),
    ],
)
async def test_a_request_that_cannot_be_routed_gets_an_openai_error(
    raw: bytes, status: int, code: str, says: str
) -> None:
    async with running(max_body_bytes=4096) as kit:
        pod = await kit.pod("a")
        await kit.deploy("m", pod)
        async with kit.client.post(f"{kit.url}/v1/chat/completions", data=raw) as response:
            assert response.status == status
            error = (await response.json())["error"]
        assert error["code"] == code
        assert says in error["message"]
        assert error["type"] == "invalid_request_error"
        assert pod.bodies == []
        assert await kit.metric("quire_router_requests_total", model="", code=str(status)) == 1


async def test_a_body_without_a_length_is_bounded_too() -> None:
    async def endless() -> object:
        while True:
            yield b"x" * 1024

    async with (
        running(max_body_bytes=4096) as kit,
        kit.client.post(f"{kit.url}/v1/completions", data=endless()) as response,
    ):
        assert response.status == 413


async def test_unknown_routes_and_methods_get_openai_errors() -> None:
    async with running() as kit:
        for method, path, status in (
            ("GET", "/v1/chat/completions", 405),
            ("DELETE", "/v1/models", 405),
            ("POST", "/v1/../metrics", 404),
            ("GET", "/metrics", 404),
            ("POST", "/v1/unheard-of", 404),
        ):
            url = aiohttp.client.URL(kit.url + path, encoded=True)
            async with kit.client.request(method, url) as response:
                assert response.status == status, path
                assert (await response.json())["error"]["message"]


async def test_models_are_merged_and_found_by_any_name() -> None:
    async with running() as kit:
        pod = await kit.pod("a")
        await kit.deploy("m", pod, aliases=["small"])
        await kit.deploy("org-model", created="2026-02-01T00:00:00Z", servedName="org/model")
        async with kit.client.get(f"{kit.url}/v1/models") as response:
            listing = await response.json()
        assert [item["id"] for item in listing["data"]] == ["m", "org/model", "small"]
        assert listing["data"][0]["created"] == 1767225600
        assert [item["ready_replicas"] for item in listing["data"]] == [1, 0, 1]
        for name, status in (("org/model", 200), ("demo/org-model", 200), ("nope", 404)):
            async with kit.client.get(f"{kit.url}/v1/models/{name}") as response:
                assert response.status == status


async def unknown(_: web.Request) -> web.StreamResponse:
    error = {"error": {"message": "the model is not here", "code": "model_not_found"}}
    return web.json_response(error, status=404)


async def test_a_request_for_an_adapter_reaches_a_pod_that_has_it() -> None:
    async with running() as kit:
        has, lacks = await kit.pod("has"), await kit.pod("lacks", unknown)
        await kit.deploy("m", has, lacks)
        await kit.kube.put("llmadapters", llmadapter("support", "m"))
        await eventually("support is known", lambda: kit.router.registry.resolve("support") is not None)
        for _ in range(20):
            assert (await kit.chat("support"))[0] == 200
        assert {json.loads(body)["model"] for body in has.bodies} == {"support"}, "under the name that the pods know"
        assert lacks.bodies and await kit.metric("quire_router_retries_total", model="m", reason="missing") == len(
            lacks.bodies
        )
        async with kit.client.get(f"{kit.url}/v1/models/support") as response:
            told = await response.json()
        assert (told["root"], told["parent"], told["ready_replicas"]) == ("support", "m", 0)

        has.script = unknown
        status, body, headers = await kit.chat("support")
        assert (status, body["error"]["message"]) == (404, "the model is not here"), (
            "nobody has it: the pod's own words"
        )
        assert "Retry-After" not in headers


async def test_a_pod_that_does_not_know_its_model_is_passed_on() -> None:
    """Only adapters come and go in a pod."""
    async with running() as kit:
        pods = [await kit.pod(name, unknown) for name in "ab"]
        await kit.deploy("m", *pods)
        assert (await kit.chat())[0] == 404
        assert sum(len(each.bodies) for each in pods) == 1


async def test_with_none_ready_the_answer_is_503_at_once_with_a_hint() -> None:
    async with running() as kit:
        pod = await kit.pod("a")
        await kit.deploy("m")
        await kit.condition("m", pod, ready=False)
        await eventually("starting", lambda: kit.states("m") == {"a": EndpointState.NOT_READY})
        status, body, headers = await kit.chat()
        assert status == 503
        assert headers["Retry-After"] == "5"
        assert body["error"]["code"] == "no_ready_endpoint"
        assert "kubectl describe llmdeployment -n demo m" in body["error"]["message"]
        assert pod.bodies == []


async def test_pods_that_were_ready_are_the_last_choice_and_those_on_their_way_out_none() -> None:
    async with running() as kit:
        pods = [await kit.pod(name) for name in "ab"]
        await kit.deploy("m", *pods)
        for pod in pods:
            await kit.condition("m", pod, ready=False)
        await eventually("all are late", lambda: not kit.ready("m"))
        for _ in range(8):
            assert (await kit.chat())[0] == 200
        await kit.condition("m", pods[1], ready=True)
        await eventually("one is back", lambda: kit.ready("m") == ["b"])
        before = len(pods[0].bodies)
        for _ in range(8):
            assert (await kit.chat())[0] == 200
        assert len(pods[0].bodies) == before
        for pod in pods:
            await kit.condition("m", pod, ready=False, terminating=True)
        await eventually("both go", lambda: set(kit.states("m").values()) == {EndpointState.TERMINATING})
        status, body, _ = await kit.chat()
        assert (status, body["error"]["code"]) == (503, "no_ready_endpoint")


async def test_a_pod_that_was_ready_and_cannot_be_reached_is_no_ready_endpoint() -> None:
    async with running() as kit:
        pod = await kit.pod("a")
        await kit.deploy("m", pod)
        await kit.condition("m", pod, ready=False)
        await eventually("it is late", lambda: not kit.ready("m"))
        await pod.stop()
        status, body, _ = await kit.chat()
        assert (status, body["error"]["code"]) == (503, "no_ready_endpoint")


async def test_a_terminating_pod_gets_nothing_more() -> None:
    async with running() as kit:
        old, new = await kit.pod("old"), await kit.pod("new")
        await kit.deploy("m", old, new)
        await kit.condition("m", old, ready=True, terminating=True)
        await eventually("only the new one", lambda: kit.ready("m") == ["new"])
        for _ in range(8):
            assert (await kit.chat())[0] == 200
        assert len(old.bodies) == 0
        assert len(new.bodies) == 8
        assert await kit.metric("quire_router_endpoints", deployment="m", state="terminating") == 1


async def test_a_refused_connection_is_retried_on_another_pod_and_counted() -> None:
    async with running(suspect_s=60) as kit:
        dead, good = await kit.pod("dead"), await kit.pod("good")
        await kit.deploy("m", dead, good)
        await dead.stop()
        for _ in range(12):
            assert (await kit.chat())[0] == 200
        assert len(good.bodies) == 12
        # After its first failure the dead one is chosen no more while it is suspect.
        assert await kit.metric("quire_router_retries_total", model="m", reason="connect") <= 1


async def test_a_suspect_pod_is_still_tried_when_it_is_the_only_one() -> None:
    async with running(suspect_s=60) as kit:
        pod = await kit.pod("a")
        await kit.deploy("m", pod)
        await pod.stop()
        status, body, headers = await kit.chat()
        assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "upstream_unreachable", "1")
        await pod.start()
        assert (await kit.chat())[0] == 200


async def test_a_reset_before_the_first_byte_is_retried_once_on_another_pod() -> None:
    async with running() as kit:
        bad, good = await kit.pod("bad", reset), await kit.pod("good")
        await kit.deploy("m", bad, good)
        while not bad.bodies:
            assert (await kit.chat())[0] == 200
        assert good.bodies[-1] == bad.bodies[-1]
        assert await kit.metric("quire_router_retries_total", model="m", reason="reset") == 1


async def test_a_request_that_kills_pods_is_sent_twice_at_most() -> None:
    async with running(max_attempts=10) as kit:
        pods = [await kit.pod(name, reset) for name in "abcd"]
        await kit.deploy("m", *pods)
        status, body, _ = await kit.chat()
        assert (status, body["error"]["code"]) == (503, "upstream_unreachable")
        assert sum(len(pod.bodies) for pod in pods) == 2


async def test_a_lone_pod_that_closed_a_pooled_connection_is_tried_again() -> None:
    fail = [True]

    async def once(request: web.Request) -> web.StreamResponse:
        return await reset(request) if fail.pop() else web.json_response({})

    async with running() as kit:
        pod = await kit.pod("a", once)
        await kit.deploy("m", pod)
        fail[:] = [False, True]
        assert (await kit.chat())[0] == 200
        assert len(pod.bodies) == 2


async def test_a_draining_pod_is_replaced_and_its_answer_is_the_last_resort() -> None:
    async with running() as kit:
        draining, good = await kit.pod("draining", refuse), await kit.pod("good")
        await kit.deploy("m", draining, good)
        while not draining.bodies:
            assert (await kit.chat())[0] == 200
        assert await kit.metric("quire_router_retries_total", model="m", reason="unavailable") == 1
        await kit.condition("m", good, ready=False)
        await eventually("one left", lambda: kit.ready("m") == ["draining"])
        status, body, headers = await kit.chat()
        assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "draining", "7")


@pytest.mark.parametrize("code", ["queue_timeout", "try_again"])
async def test_a_request_that_waited_or_may_be_the_cause_is_not_sent_to_the_next_pod(code: str) -> None:
    async def timed_out(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "waited 30 s", "code": code}}, status=503)

    async with running() as kit:
        pods = [await kit.pod(name, timed_out) for name in "ab"]
        await kit.deploy("m", *pods)
        status, body, headers = await kit.chat()
        assert (status, body["error"]["code"], headers["Retry-After"]) == (503, code, "1")
        assert sum(len(pod.bodies) for pod in pods) == 1


async def test_other_answers_of_a_pod_pass_as_they_are() -> None:
    async def script(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=400, reason="Bad Request", headers={"X-A": "b"})

    async with running() as kit:
        pod = await kit.pod("a", script)
        await kit.deploy("m", pod)
        status, body, headers = await kit.chat()
        assert (status, body, headers["X-A"]) == (400, {"error": {"message": "no"}}, "b")
        assert await kit.metric("quire_router_requests_total", model="m", code="400") == 1


async def test_requests_go_to_the_least_loaded_pod() -> None:
    gate = asyncio.Event()

    async def wait(_: web.Request) -> web.StreamResponse:
        await gate.wait()
        return web.json_response({})

    async with running() as kit:
        pods = [await kit.pod(name, wait) for name in "abc"]
        await kit.deploy("m", *pods)
        tasks = [asyncio.create_task(kit.chat()) for _ in range(30)]
        await eventually("30 waiting", lambda: sum(pod.active for pod in pods) == 30)
        assert [pod.active for pod in pods] == [10, 10, 10]
        assert await kit.metric("quire_router_requests_in_flight", model="m") == 30
        gate.set()
        assert {status for status, _, _ in await asyncio.gather(*tasks)} == {200}


async def test_a_failed_pod_gets_no_request_within_two_seconds_of_its_slice() -> None:
    async def stays_up(kit: Kit, pods: list[FakePod]) -> None:
        await kit.condition("m", pods[0], ready=False)
        await eventually("left", lambda: kit.ready("m") == ["b"])

    async with running() as kit:
        pods = [await kit.pod(name) for name in "ab"]
        await kit.deploy("m", *pods)
        began = asyncio.get_running_loop().time()
        await stays_up(kit, pods)
        assert asyncio.get_running_loop().time() - began < 2
        before = len(pods[0].bodies)
        for _ in range(10):
            assert (await kit.chat())[0] == 200
        assert len(pods[0].bodies) == before
