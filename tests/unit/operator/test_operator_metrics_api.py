"""custom.metrics.k8s.io over real TLS on loopback: what the aggregator gets, and what everybody else gets."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from operator_kit import KEY, pod
from quire_operator import labels
from quire_operator.metrics_api.app import build_app
from quire_operator.metrics_api.certificates import renewed, service_names
from quire_operator.metrics_api.front_proxy import FrontProxy, read_front_proxy
from quire_operator.metrics_api.service import load_certificate, server_context
from quire_operator.observation import pod_views
from quire_operator.probe import Samples
from quire_operator.probe.samples import Target

NAMES = service_names("quire-operator", "quire-system")
IDENTITY = {"X-Remote-User": "system:serviceaccount:kube-system:horizontal-pod-autoscaler"}
BASE = "/apis/custom.metrics.k8s.io/v1beta2"
QUEUE = "quire_scheduler_queue_size"


class Authority:
    """A CA and the client certificates it signs, as files `ssl` can read."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.pem = self._sign(self._subject, self._key, ca=True).public_bytes(serialization.Encoding.PEM).decode()

    def client(self, common_name: str) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]), key, ca=False)
        path = self._folder / f"{common_name}-{id(self)}.pem"
        form = serialization.PrivateFormat.PKCS8
        path.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        return path

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.Certificate:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )


class Server:
    """The app behind TLS, and clients for it."""

    def __init__(self, folder: Path) -> None:
        self.front, self.cluster = Authority(folder, "front-ca"), Authority(folder, "cluster-ca")
        bundle = renewed(None, NAMES, datetime.now(UTC))
        assert bundle is not None
        self.bundle = bundle
        self.front_proxy = FrontProxy(self.front.pem, ("front-proxy-client",), ("X-Remote-User",))
        self.samples = Samples(stale_after_s=10)
        self.context = server_context(bundle, self.front_proxy)
        self.port = 0

    async def get(
        self, path: str, client: Path | None, headers: dict[str, str] | None = None, ca: str | None = None
    ) -> tuple[int, Any]:
        """Over a connection of its own, to the name the aggregator would use."""
        context = ssl.create_default_context(cadata=ca or self.bundle.ca_bundle)
        if client is not None:
            context.load_cert_chain(client)
        url = f"https://{NAMES[2]}:{self.port}{path}"
        connector = aiohttp.TCPConnector(resolver=Loopback(), force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=10)) as session,
            session.get(url, ssl=context, headers=headers) as response,
        ):
            assert response.content_type == "application/json"
            return response.status, await response.json()


class Loopback(aiohttp.abc.AbstractResolver):
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[aiohttp.abc.ResolveResult]:
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        pass


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path)
    runner = web.AppRunner(build_app(made.samples, lambda: made.front_proxy))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=made.context)
    await site.start()
    made.port = runner.addresses[0][1]
    try:
        yield made
    finally:
        await runner.cleanup()


@pytest.fixture
def aggregator(server: Server) -> Path:
    return server.front.client("front-proxy-client")


def measure(server: Server, **values: float | None) -> None:
    server.samples.set_pods(KEY, pod_views([pod(name, "r") for name in values]))
    for name, value in values.items():
        found = None if value is None else {QUEUE: value}
        server.samples.record(Target(KEY, name, "198.18.1.9"), found, at=time.monotonic(), wall=1767225600)


async def test_discovery_is_what_the_aggregator_checks(server: Server, aggregator: Path) -> None:
    status, document = await server.get(BASE, aggregator, IDENTITY)
    assert (status, document["kind"], document["groupVersion"]) == (
        200,
        "APIResourceList",
        "custom.metrics.k8s.io/v1beta2",
    )
    assert {entry["name"] for entry in document["resources"]} == {f"pods/{QUEUE}", "pods/quire_gpu_cache_usage"}
    assert (await server.get("/apis", aggregator, IDENTITY))[1]["kind"] == "APIGroupList"
    assert (await server.get("/apis/custom.metrics.k8s.io", aggregator, IDENTITY))[1]["kind"] == "APIGroup"


async def test_values_as_the_autoscaler_asks_for_them(server: Server, aggregator: Path) -> None:
    measure(server, a=3, b=0.5, c=None)
    selector = labels.selector_text(labels.stable_selector("smol")).replace("=", "%3D").replace(",", "%2C")
    path = f"{BASE}/namespaces/demo/pods/%2A/{QUEUE}?labelSelector={selector}"
    status, document = await server.get(
        path, aggregator, {**IDENTITY, "Accept": "application/vnd.kubernetes.protobuf, */*"}
    )
    assert status == 200 and document["kind"] == "MetricValueList"
    assert document["items"] == [
        {
            "describedObject": {"kind": "Pod", "namespace": "demo", "name": name, "apiVersion": "v1"},
            "metric": {"name": QUEUE, "selector": None},
            "timestamp": "2026-01-01T00:00:00Z",
            "value": value,
        }
        for name, value in (("a", "3"), ("b", "500m"))
    ], "the pod without a value is left out, not zero"


async def test_selectors_and_names_narrow_the_answer(server: Server, aggregator: Path) -> None:
    measure(server, a=3, b=4)
    other = f"{BASE}/namespaces/demo/pods/%2A/{QUEUE}?labelSelector=quire.dev%2Fdeployment%3Dother"
    assert (await server.get(other, aggregator, IDENTITY))[1]["items"] == []
    one = f"{BASE}/namespaces/demo/pods/b/{QUEUE}"
    assert [item["value"] for item in (await server.get(one, aggregator, IDENTITY))[1]["items"]] == ["4"]
    old = f"/apis/custom.metrics.k8s.io/v1beta1/namespaces/demo/pods/b/{QUEUE}"
    assert (await server.get(old, aggregator, IDENTITY))[1]["items"][0]["metricName"] == QUEUE


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        (f"{BASE}/namespaces/demo/pods/%2A/unknown", 404, "there are quire_scheduler_queue_size"),
        (f"{BASE}/namespaces/demo/pods/nobody/{QUEUE}", 404, "demo/nobody"),
        (f"{BASE}/namespaces/demo/pods/%2A/{QUEUE}?labelSelector=a+b", 400, "cannot be read"),
        (f"{BASE}/namespaces/demo/services/x/{QUEUE}", 404, "nothing at"),
        ("/openapi/v2", 404, "nothing at"),
    ],
)
async def test_failures_are_status_objects(server: Server, aggregator: Path, path: str, code: int, words: str) -> None:
    status, document = await server.get(path, aggregator, IDENTITY)
    assert (status, document["kind"], document["code"]) == (code, "Status", code)
    assert words in document["message"]


async def test_a_spoofed_identity_is_refused(server: Server) -> None:
    status, document = await server.get(
        BASE, None, {"X-Remote-User": "system:admin", "X-Remote-Group": "system:masters"}
    )
    assert (status, document["kind"]) == (401, "Status")


async def test_a_wrong_common_name_of_the_right_ca_is_refused(server: Server) -> None:
    assert (await server.get(BASE, server.front.client("somebody"), IDENTITY))[0] == 401


async def test_the_aggregator_without_a_user_is_refused(server: Server, aggregator: Path) -> None:
    assert (await server.get(BASE, aggregator))[0] == 401


async def test_another_ca_does_not_get_a_connection(server: Server) -> None:
    with pytest.raises(aiohttp.ClientError):
        await server.get(BASE, server.cluster.client("front-proxy-client"), IDENTITY)


async def test_a_new_certificate_holds_without_a_new_listener(server: Server, aggregator: Path) -> None:
    other = renewed(None, NAMES, datetime.now(UTC))
    assert other is not None
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await server.get(BASE, aggregator, IDENTITY, ca=other.ca_bundle)
    load_certificate(server.context, other)
    assert (await server.get(BASE, aggregator, IDENTITY, ca=other.ca_bundle))[0] == 200


def test_the_front_proxy_is_read_from_the_published_config_map() -> None:
    data = {
        "requestheader-client-ca-file": "PEM",
        "requestheader-allowed-names": '["front-proxy-client"]',
        "requestheader-username-headers": '["X-Remote-User"]',
    }
    assert read_front_proxy({"data": data}) == FrontProxy("PEM", ("front-proxy-client",), ("X-Remote-User",))
    assert read_front_proxy({"data": {}}) is None and read_front_proxy(None) is None
