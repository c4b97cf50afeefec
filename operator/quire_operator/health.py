"""Whether the operator is alive and ready, and the small HTTP servers that say so.

Alive means: the event loop answers, and the watch of LLMDeployments delivers. A watch can die without an error, so
the periodic list is compared with what the watch has said: a version that is listed but not delivered in time proves
a dead watch, and the kubelet restarts the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from aiohttp import web

from quire_operator import telemetry
from quire_operator.spec import Key

WATCH_GRACE_S = 120.0
"""Longer than kopf takes to notice a silent connection and open a new one (70 s)."""


class WatchMonitor:
    """Fed by both sides; times are monotonic seconds given by the caller."""

    def __init__(self, grace_s: float = WATCH_GRACE_S) -> None:
        self._grace_s = grace_s
        self._delivered: dict[Key, str] = {}
        self._overdue: dict[Key, tuple[float, float]] = {}
        """Since when, and when last, a list said something else than the watch."""

    def delivered(self, key: Key, version: str) -> None:
        """The watch said something about the key: it lives."""
        self._delivered[key] = version
        self._overdue.pop(key, None)

    def listed(self, versions: Mapping[Key, str], *, at: float) -> None:
        """What a fresh list says. A watch may be ahead of a list: only a later list that still differs is evidence."""
        for key, version in versions.items():
            if self._delivered.get(key) == version:
                self._overdue.pop(key, None)
            else:
                since, _ = self._overdue.get(key, (at, at))
                self._overdue[key] = (since, at)
        for gone in (self._overdue.keys() | self._delivered.keys()) - versions.keys():
            self._overdue.pop(gone, None)
            self._delivered.pop(gone, None)

    def dead(self) -> str | None:
        """Why the watch must be taken for dead, or None."""
        late = [key for key, (since, last) in self._overdue.items() if last - since > self._grace_s]
        return f"the watch has not delivered a change of {late[0]} for {self._grace_s:.0f} s" if late else None


@dataclass(frozen=True)
class Probe:
    """`alive` and `ready` give None when all is well, else why not."""

    alive: Callable[[], str | None]
    ready: Callable[[], str | None]


async def start_servers(probe: Probe, *, host: str, health_port: int, metrics_port: int) -> Iterable[web.AppRunner]:
    """/healthz and /readyz on the one port, /metrics on the other; the caller cleans the runners up."""

    async def healthz(_: web.Request) -> web.Response:
        return _answer(probe.alive())

    async def readyz(_: web.Request) -> web.Response:
        return _answer(probe.ready())

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=telemetry.page(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    health = web.Application()
    health.router.add_get("/healthz", healthz)
    health.router.add_get("/readyz", readyz)
    exposition = web.Application()
    exposition.router.add_get("/metrics", metrics)
    runners = []
    for app, port in ((health, health_port), (exposition, metrics_port)):
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, host, port, reuse_address=True).start()
        runners.append(runner)
    return runners


def _answer(problem: str | None) -> web.Response:
    return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)
