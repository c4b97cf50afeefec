"""A Reconciler on a cluster in memory, with a router that answers as the test says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from operator_kit import KEY, MemoryCluster, body
from quire_operator.probe import Demand, Samples
from quire_operator.reconcile import Reconciler
from quire_operator.settings import Settings
from quire_operator.spec import Key
from quire_operator.status import AdapterReading, Verification
from quire_operator.workqueue import Outcome


class Router:
    """Stands for `Verifier`: answers as told, and counts the questions."""

    def __init__(self) -> None:
        self.answer = Verification("Passed")
        self.asked: list[tuple[int, str]] = []

    def ask(self, key: Key, *, uid: str, generation: int, revision: str, model: str) -> Verification:
        self.asked.append((generation, model))
        return self.answer

    def forget(self, key: Key) -> None:
        pass


async def _nowhere() -> Sequence[str]:
    return ()


def demand(
    samples: Samples,
    changed: Callable[[Key], None] = lambda key: None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Demand:
    """Without routers; tests say with `take` what they said."""
    return Demand(samples, _nowhere, port=1, timeout_s=1, changed=changed, clock=clock)


class Bench:
    """A reconcile loop with all its surroundings."""

    def __init__(self, spec: dict[str, Any] | None = None) -> None:
        self.cluster = MemoryCluster(body(spec))
        self.router = Router()
        settings = Settings(runtime_image="quire/runtime:test")
        self.adapters: tuple[AdapterReading, ...] | None = None
        self.samples = Samples(10)
        self.told: list[Key] = []
        """Whom `Demand` wanted looked at."""
        self.clock = 1000.0
        self.demand = demand(self.samples, self.told.append, clock=lambda: self.clock)
        self.loop = Reconciler(
            self.cluster,  # type: ignore[arg-type]
            settings,
            self.samples,
            self.router,  # type: ignore[arg-type]
            demand=self.demand,
            adapters=lambda owner: self.adapters,
        )

    async def look(self) -> Outcome:
        return await self.loop(KEY)

    async def settle(self, broken: frozenset[str] = frozenset(), rounds: int = 20) -> None:
        for _ in range(rounds):
            await self.look()
            self.cluster.play(broken=broken)
        await self.look()

    def condition(self, kind: str) -> tuple[str, str]:
        found = self.cluster.condition(kind)
        return found["status"], found["reason"]

    def reasons(self) -> list[str]:
        return [event.reason for event in self.cluster.events]
