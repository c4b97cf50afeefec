"""One Lease (coordination.k8s.io/v1), written only against the version that was read: of two who try, one succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any

from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.types import PatchType

from quire_operator import labels
from quire_operator.cluster import kinds
from quire_operator.observation import Body
from quire_operator.policy.leadership import LEASE_S, REQUEST_S, LeaseView


class LeaseStore:
    """`client` is one of its own: the fence of the others would hold it up. Each call raises TimeoutError after REQUEST_S."""

    def __init__(self, client: AsyncClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    async def read(self) -> LeaseView | None:
        """None where there is none."""
        try:
            return _view(await _bounded(self._client.get(kinds.Lease, self._name, namespace=self._namespace)))
        except ApiError as error:
            if error.status.code == 404:
                return None
            raise

    async def write(self, holder: str, before: LeaseView | None) -> LeaseView | None:
        """Make `holder` the holder from now on; empty: give it back. None when it is not as it was `before` any more, or gone."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        same = before is not None and before.holder == holder
        spec: dict[str, Any] = {
            "holderIdentity": holder or None,
            "leaseDurationSeconds": LEASE_S if holder else 1,
            "acquireTime": before.acquired if before is not None and same else now,
            "renewTime": now,
            "leaseTransitions": (before.transitions if before is not None else 0) + (0 if same or not holder else 1),
        }
        try:
            if before is None:
                marks = {"app.kubernetes.io/managed-by": labels.FIELD_MANAGER, "app.kubernetes.io/part-of": "quire"}
                metadata = {"name": self._name, "namespace": self._namespace, "labels": marks}
                new = kinds.Lease.from_dict({"metadata": metadata, "spec": spec})
                return _view(await _bounded(self._client.create(new)))
            patch = {"metadata": {"resourceVersion": before.version}, "spec": spec}
            request = self._client.patch(
                kinds.Lease, self._name, patch, namespace=self._namespace, patch_type=PatchType.MERGE
            )
            return _view(await _bounded(request))
        except ApiError as error:
            if error.status.code == 409 or (error.status.code == 404 and before is not None):
                return None
            raise


async def _bounded(request: Awaitable[Any]) -> Any:
    """The client's own limits are for each part of a request: together they may take longer."""
    try:
        async with asyncio.timeout(REQUEST_S):
            return await request
    except TimeoutError:
        raise TimeoutError(f"no answer within {REQUEST_S:g} s") from None


def _view(body: Body) -> LeaseView:
    spec = body.get("spec") or {}
    return LeaseView(
        holder=spec.get("holderIdentity") or "",
        version=body["metadata"]["resourceVersion"],
        duration_s=float(spec.get("leaseDurationSeconds") or LEASE_S),
        transitions=int(spec.get("leaseTransitions") or 0),
        acquired=spec.get("acquireTime"),
    )
