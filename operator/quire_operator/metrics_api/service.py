"""Keeps the metrics API up: certificate, trust of the aggregator, listener. Renews all three without a restart.

A certificate is swapped inside the TLS context (new connections get it). A new front-proxy CA makes a new context and
with it a new listener, because an old CA must not stay trusted. Nothing here stops the operator: a failure is logged
and tried again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx2
from aiohttp import web
from lightkube.core.exceptions import ApiError

from quire_operator import telemetry
from quire_operator.cluster import Cluster, kinds
from quire_operator.cluster.trust import SecretStore, set_ca_bundle
from quire_operator.errors import NotLeadingError, OperatorError
from quire_operator.metrics_api import documents
from quire_operator.metrics_api.app import build_app
from quire_operator.metrics_api.certificates import Bundle, BundleError, renewed, service_names
from quire_operator.metrics_api.front_proxy import CONFIG_MAP, CONFIG_NAMESPACE, FrontProxy, read_front_proxy
from quire_operator.probe import Samples
from quire_operator.settings import Settings

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 60.0
RETRY_INTERVAL_S = 5.0


class NotServableError(OperatorError):
    """The cluster lacks what serving needs; the message says what."""


class MetricsApi:
    """`serving` is True once the listener is up. Where this process does not lead it serves with what the leader has made."""

    def __init__(
        self, cluster: Cluster, settings: Settings, samples: Samples, *, leading: Callable[[], bool] = lambda: True
    ) -> None:
        self._cluster = cluster
        self._leading = leading
        self._woken = asyncio.Event()
        self._settings = settings
        self._names = service_names(settings.service, settings.namespace)
        self._store = SecretStore(cluster, settings.namespace, settings.cert_secret)
        self._front_proxy: FrontProxy | None = None
        self._bundle: Bundle | None = None
        self._context: ssl.SSLContext | None = None
        self._site: web.TCPSite | None = None
        self._runner = web.AppRunner(build_app(samples, self._current_front_proxy), access_log=None)

    @property
    def serving(self) -> bool:
        return self._site is not None

    @property
    def port(self) -> int | None:
        """Where it listens; differs from the setting when that is 0."""
        addresses = self._runner.addresses
        return int(addresses[0][1]) if addresses else None

    @property
    def trusted(self) -> str:
        """The front-proxy CA whose clients may ask."""
        return self._front_proxy.ca_pem if self._front_proxy is not None else ""

    async def run(self) -> None:
        """Until cancelled."""
        await self._runner.setup()
        told = ""
        try:
            while True:
                try:
                    await self._refresh()
                    told, pause = "", CHECK_INTERVAL_S
                except (ApiError, httpx2.HTTPError, NotServableError, NotLeadingError, OSError, ValueError) as error:
                    pause = RETRY_INTERVAL_S
                    if str(error) != told:
                        told = str(error)
                        log.error("custom.metrics.k8s.io is not up to date, trying again every %.0f s: %s", pause, told)
                await self._rest(pause)
        finally:
            await self._runner.cleanup()

    def look_again(self) -> None:
        """Whether this process leads has changed."""
        self._woken.set()

    async def _rest(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    async def _refresh(self) -> None:
        bundle = await self._current_bundle()
        front_proxy = read_front_proxy(await self._cluster.get(kinds.ConfigMap, CONFIG_MAP, CONFIG_NAMESPACE))
        if front_proxy is None:
            raise NotServableError(
                f"ConfigMap {CONFIG_NAMESPACE}/{CONFIG_MAP} names no front-proxy CA: the API server has no aggregation layer"
            )
        new_trust = self._front_proxy is None or front_proxy.ca_pem != self._front_proxy.ca_pem
        self._front_proxy = front_proxy
        if new_trust or self._context is None or self._site is None:
            context = server_context(bundle, front_proxy)
            await self._listen(context)
            self._context = context
        elif bundle != self._bundle:
            load_certificate(self._context, bundle)
            log.info("the metrics API has a new certificate, valid until %s", bundle.expires)
        self._bundle = bundle
        telemetry.CERTIFICATE_EXPIRY.set(bundle.expires.timestamp())
        if not self._leading():
            return
        owner = (self._settings.namespace, self._settings.service)
        for version in documents.VERSIONS:
            await set_ca_bundle(self._cluster, documents.GROUP, version, bundle.ca_bundle, owner)

    async def _current_bundle(self) -> Bundle:
        """From the Secret, renewed and stored where it is time; whoever writes first wins."""
        for _ in range(3):
            stored = await self._read_stored()
            fresh = self._renewed(stored)
            if fresh is None:
                assert stored is not None
                return stored
            if not self._leading():
                raise NotServableError(f"the leader has still to make the certificate in {self._settings.cert_secret}")
            values = {
                "ca.crt": fresh.ca_bundle,
                "ca.key": fresh.ca_key,
                "tls.crt": fresh.certificate,
                "tls.key": fresh.key,
            }
            if await self._store.write(values):
                return fresh
        raise NotServableError(f"Secret {self._settings.cert_secret} changes each time it is to be written")

    async def _read_stored(self) -> Bundle | None:
        values = await self._store.read()
        if values is None:
            return None
        return Bundle(*(values.get(key, "") for key in ("ca.crt", "ca.key", "tls.crt", "tls.key")))

    def _renewed(self, stored: Bundle | None) -> Bundle | None:
        now = datetime.now(UTC)
        try:
            return renewed(stored, self._names, now)
        except BundleError as error:
            log.warning("%s; making a new one", error)
            return renewed(None, self._names, now)

    async def _listen(self, context: ssl.SSLContext) -> None:
        if self._site is not None:
            await self._site.stop()
            self._site = None
        host, port = self._settings.host, self._settings.metrics_api_port
        site = web.TCPSite(self._runner, host, port, ssl_context=context, reuse_address=True)
        await site.start()
        self._site = site
        log.info("custom.metrics.k8s.io is served on %s:%d", host, port)

    def _current_front_proxy(self) -> FrontProxy:
        assert self._front_proxy is not None, "requests come only after the first refresh"
        return self._front_proxy


def server_context(bundle: Bundle, front_proxy: FrontProxy) -> ssl.SSLContext:
    """TLS 1.2 or later; a client certificate is optional, but if given must come from the front-proxy CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=front_proxy.ca_pem)
    load_certificate(context, bundle)
    return context


def load_certificate(context: ssl.SSLContext, bundle: Bundle) -> None:
    """`ssl` reads certificates from files only; the file lives for this call, readable by nobody else."""
    with tempfile.TemporaryDirectory(prefix="quire-operator-") as folder:
        path = Path(folder) / "tls.pem"
        path.touch(mode=0o600)
        path.write_text(bundle.key + bundle.certificate)
        context.load_cert_chain(path)
