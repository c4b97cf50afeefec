"""The metrics API's upkeep against a scripted API: certificate stored and renewed, CA published, listener replaced."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from quire_operator.cluster import Cluster
from quire_operator.metrics_api import MetricsApi
from quire_operator.metrics_api.certificates import renewed, service_names
from quire_operator.probe import Samples
from quire_operator.settings import Settings
from scripted_api import ScriptedApi, scripted_api

SECRET = "/api/v1/namespaces/quire-system/secrets/quire-operator-tls"
CONFIG = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta2.custom.metrics.k8s.io"
NAMES = service_names("quire-operator", "quire-system")
OURS = {"service": {"namespace": "quire-system", "name": "quire-operator"}}


def front_ca() -> str:
    made = renewed(None, NAMES, datetime.now(UTC))
    assert made is not None
    return made.ca_bundle


def publish(api: ScriptedApi, ca: str) -> None:
    api.put(
        CONFIG, {"data": {"requestheader-client-ca-file": ca, "requestheader-allowed-names": '["front-proxy-client"]'}}
    )


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    async with scripted_api() as made:
        publish(made, front_ca())
        made.put(SERVICE, {"spec": OURS})
        yield made


@asynccontextmanager
async def serving(api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MetricsApi]:
    monkeypatch.setattr("quire_operator.metrics_api.service.CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr("quire_operator.metrics_api.service.RETRY_INTERVAL_S", 0.02)
    client = api.client()
    made = MetricsApi(Cluster(client), Settings(host="127.0.0.1", metrics_api_port=0), Samples(10))
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def presented(made: MetricsApi) -> str:
    """The certificate a client sees."""
    assert made.port is not None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", made.port, ssl=context)
    seen = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return ssl.DER_cert_to_PEM_cert(seen)


def stored(api: ScriptedApi, key: str) -> str:
    return base64.b64decode(api.objects[SECRET]["data"][key]).decode()


async def test_a_certificate_is_made_stored_published_and_served(
    api: ScriptedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(api, monkeypatch) as made:
        await api.until("the CA is published", lambda: "caBundle" in api.objects[SERVICE]["spec"])
        assert await presented(made) == stored(api, "tls.crt")
        assert base64.b64decode(api.objects[SERVICE]["spec"]["caBundle"]).decode() == stored(api, "ca.crt")
        assert api.objects[SECRET]["type"] == "kubernetes.io/tls"
        writes = len(api.writes)
        port = made.port
        await api.requests(20)
        assert len(api.writes) == writes and made.port == port, "then nothing moves"


async def test_another_process_uses_the_stored_certificate(api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(api, monkeypatch) as made:
        await api.until("it serves", lambda: made.serving)
    first = stored(api, "tls.crt")
    async with serving(api, monkeypatch) as made:
        await api.until("it serves", lambda: made.serving)
        assert await presented(made) == first


async def test_a_certificate_near_its_end_is_replaced_while_serving(
    api: ScriptedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(api, monkeypatch) as made:
        await api.until("it serves", lambda: made.serving)
        port, old = made.port, stored(api, "tls.crt")
        ageing = renewed(None, NAMES, datetime.now(UTC) - timedelta(days=70))
        assert ageing is not None
        values = {
            "ca.crt": ageing.ca_bundle,
            "ca.key": ageing.ca_key,
            "tls.crt": ageing.certificate,
            "tls.key": ageing.key,
        }
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        api.put(SECRET, {"type": "kubernetes.io/tls", "data": data})
        await api.until("it is renewed", lambda: stored(api, "tls.crt") not in (old, ageing.certificate))
        await api.until("the CA is published", lambda: api.objects[SERVICE]["spec"]["caBundle"] == data["ca.crt"])
        assert await presented(made) == stored(api, "tls.crt") and made.port == port


@pytest.mark.parametrize("value", ["", base64.b64encode(b"\xff\xfe no text").decode()])
async def test_a_broken_secret_heals(value: str, api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.put(SECRET, {"type": "kubernetes.io/tls", "data": {"tls.crt": value, "tls.key": value}})
    async with serving(api, monkeypatch) as made:
        await api.until("it serves", lambda: made.serving)
        assert await presented(made) == stored(api, "tls.crt")


async def test_a_foreign_api_service_is_left_alone(api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.put(SERVICE, {"spec": {"service": {"namespace": "monitoring", "name": "adapter"}}})
    async with serving(api, monkeypatch) as made:
        await api.until("it serves", lambda: made.serving)
        await api.requests(10)
    assert "caBundle" not in api.objects[SERVICE]["spec"]


async def test_without_an_aggregation_layer_it_says_so_and_recovers(
    api: ScriptedApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish(api, "")
    async with serving(api, monkeypatch) as made:
        await api.until("it complains", lambda: "no aggregation layer" in caplog.text)
        await api.requests(10)
        assert not made.serving
        publish(api, front_ca())
        await api.until("it serves", lambda: made.serving)
    assert caplog.text.count("no aggregation layer") == 1


async def test_a_new_front_proxy_ca_replaces_the_listener(api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(api, monkeypatch) as made:
        await api.until("it serves", lambda: made.serving)
        before = made.trusted
        publish(api, front_ca())
        await api.until("the new CA is trusted", lambda: made.serving and made.trusted != before)
        assert await presented(made) == stored(api, "tls.crt")


async def test_an_unreadable_front_proxy_configuration_stops_nothing(
    api: ScriptedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = api.objects[CONFIG]["data"]
    api.put(CONFIG, {"data": {**good, "requestheader-allowed-names": "no JSON"}})
    async with serving(api, monkeypatch) as made:
        await api.requests(6)
        assert not made.serving
        api.put(CONFIG, {"data": good})
        await api.until("it serves", lambda: made.serving)


async def test_a_listener_that_cannot_be_replaced_is_tried_again(
    api: ScriptedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(api, monkeypatch) as made:
        await api.until("it serves", lambda: made.serving)
        start, failures = web.TCPSite.start, []

        async def busy_once(site: web.TCPSite) -> None:
            if not failures:
                failures.append(site)
                raise OSError("address already in use")
            await start(site)

        monkeypatch.setattr(web.TCPSite, "start", busy_once)
        publish(api, front_ca())
        await api.until("it serves again", lambda: bool(failures) and made.serving)
