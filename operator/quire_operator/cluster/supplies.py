"""Keeps the small objects around the pods (`resources.supplies`) as they should be.

They change seldom and nothing depends on their state, so they are looked at when what is wanted changed, and else every
few minutes: a steady cluster is asked little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire_operator.cluster import kinds
from quire_operator.cluster.client import Cluster
from quire_operator.cluster.drift import digest
from quire_operator.errors import ApplyError
from quire_operator.observation import owned_by
from quire_operator.spec import Deployment, Key

LOOK_AGAIN_S = 300.0
"""After this long an edit or deletion by somebody else is put right."""


class Supplies:
    """`clock` gives seconds."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._seen: dict[Key, tuple[str, float]] = {}

    async def apply(
        self, owner: Deployment, wanted: Sequence[Mapping[str, Any]], known: Sequence[tuple[str, str]], *, prune: bool
    ) -> None:
        """Apply all; delete those of `known` (kind and name) that are not wanted, if `prune`. Raises the first ApplyError at the end."""
        mark = digest({"uid": owner.uid, "prune": prune, "wanted": list(wanted)})
        last, at = self._seen.get(owner.key, ("", 0.0))
        if mark == last and self._clock() - at < LOOK_AGAIN_S:
            return
        refused: ApplyError | None = None
        for each in wanted:
            kind, name = each["kind"], each["metadata"]["name"]
            try:
                await self._cluster.apply(each, await self._cluster.get(kinds.OF[kind], name, owner.namespace))
            except ApplyError as error:
                refused = refused or error
        if prune:
            names = {(each["kind"], each["metadata"]["name"]) for each in wanted}
            for kind, name in known:
                if (kind, name) not in names:
                    await self._drop(owner, kind, name)
        if refused is not None:
            self._seen.pop(owner.key, None)
            raise refused
        self._seen[owner.key] = (mark, self._clock())

    def forget(self, key: Key) -> None:
        """Of a deleted LLMDeployment."""
        self._seen.pop(key, None)

    async def _drop(self, owner: Deployment, kind: str, name: str) -> None:
        live = await self._cluster.get(kinds.OF[kind], name, owner.namespace)
        if live is not None and owned_by(live, owner.uid):
            await self._cluster.delete(kinds.OF[kind], owner.key, name)
