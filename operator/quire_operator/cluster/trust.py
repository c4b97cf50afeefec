"""Cluster objects the metrics API's trust rests on: our Secret, the aggregator's ConfigMap, the APIService's caBundle."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from typing import Any

from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.types import PatchType

from quire_operator import labels
from quire_operator.cluster import kinds
from quire_operator.cluster.client import Cluster
from quire_operator.observation import Body

log = logging.getLogger(__name__)


class SecretStore:
    """One Secret of type kubernetes.io/tls, written only against the version that was read."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._version: str | None = None

    async def read(self) -> dict[str, str] | None:
        """Decoded values; None where there is no such Secret. What is no text becomes text that no certificate is."""
        body = await self._cluster.get(kinds.Secret, self._name, self._namespace)
        self._version = body["metadata"]["resourceVersion"] if body is not None else None
        if body is None:
            return None
        return {
            key: base64.b64decode(value).decode(errors="replace") for key, value in (body.get("data") or {}).items()
        }

    async def write(self, values: Mapping[str, str]) -> bool:
        """False when another operator was faster: read again."""
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        try:
            if self._version is None:
                await self._client.create(kinds.Secret.from_dict(self._new(data)))
            else:
                patch = {"metadata": {"resourceVersion": self._version}, "data": data}
                await self._client.patch(
                    kinds.Secret, self._name, patch, namespace=self._namespace, patch_type=PatchType.MERGE
                )
        except ApiError as error:
            if error.status.code == 409:
                return False
            raise
        return True

    @property
    def _client(self) -> AsyncClient:
        return self._cluster.client

    def _new(self, data: dict[str, str]) -> dict[str, Any]:
        marks = {"app.kubernetes.io/managed-by": labels.FIELD_MANAGER, "app.kubernetes.io/part-of": "quire"}
        metadata = {"name": self._name, "namespace": self._namespace, "labels": marks}
        return {"metadata": metadata, "type": "kubernetes.io/tls", "data": data}


async def set_ca_bundle(cluster: Cluster, group: str, version: str, bundle: str, service: tuple[str, str]) -> None:
    """Tell the aggregator whom to trust, if the APIService is there and is ours (`service` is namespace and name).

    Another program may serve the group: its APIService is left alone, and the log says so.
    """
    name = f"{version}.{group}"
    live: Body | None = await cluster.get(kinds.APIService, name)
    if live is None:
        log.debug("there is no APIService %s", name)
        return
    theirs = live.get("spec", {}).get("service") or {}
    if (theirs.get("namespace"), theirs.get("name")) != service:
        log.warning(
            "APIService %s belongs to %s/%s: HorizontalPodAutoscalers do not see the engine's metrics until it is ours",
            name,
            theirs.get("namespace"),
            theirs.get("name"),
        )
        return
    encoded = base64.b64encode(bundle.encode()).decode()
    if live["spec"].get("caBundle") == encoded:
        return
    patch = {"spec": {"caBundle": encoded}}
    await cluster.client.patch(kinds.APIService, name, patch, patch_type=PatchType.MERGE)
    log.info("APIService %s trusts the operator's CA", name)
