"""Who asks for the models that may go to zero: routers and engines are looked at again and again, and what follows is told.

The reconcile loop says how such an LLMDeployment stands (`look`) and hears what to do; in between, `changed` is called when there is
something to do. What is remembered is of this process: an operator that starts again, or begins to lead, begins every span anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import aiohttp
import httpx2
from lightkube.core.exceptions import ApiError

from quire_operator.policy.zero import Quiet, Sighting, Stance, asked, by_pod, move, next_quiet
from quire_operator.probe.routers import Asked, ask_router
from quire_operator.probe.samples import Samples
from quire_operator.spec import Key

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""Between two looks at all routers."""
WAKE_LOOK_S = 1.0
"""The same while something is at zero: somebody may wait."""
TELL_AGAIN_S = 5.0
"""What was told and not done is told again after this."""

Answers = Mapping[str, Mapping[Key, Asked] | None]
"""What each router said, by its address; None: nothing."""


class Demand:
    """`routers` gives the addresses of all; `clock` gives seconds and only runs forward."""

    def __init__(
        self,
        samples: Samples,
        routers: Callable[[], Awaitable[Sequence[str]]],
        *,
        port: int,
        timeout_s: float,
        changed: Callable[[Key], None],
        leading: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._samples = samples
        self._routers = routers
        self._port = port
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._changed = changed
        self._leading = leading
        self._clock = clock
        self._stances: dict[Key, Stance] = {}
        self._quiet: dict[Key, Quiet] = {}
        self._came: dict[Key, Mapping[str, float]] = {}
        """What routers had counted, by address, as far as they said so last."""
        self._wanted: set[Key] = set()
        self._told: dict[Key, tuple[int | None, float]] = {}
        self._trouble = ""

    def look(self, key: Key, stance: Stance | None) -> int | None:
        """How it stands now (None: it may not go to zero), and the replicas that it should have instead."""
        if stance is None:
            self.forget(key)
            return None
        before = self._stances.get(key)
        if not stance.may_be_quiet or (before is not None and before.pods != stance.pods):
            self._quiet.pop(key, None)
        if stance.replicas > 0:
            self._wanted.discard(key)
        self._stances[key] = stance
        return self._move(key)

    def forget(self, key: Key) -> None:
        """It is gone, may not go to zero, or another operator sees to it."""
        for kept in (self._stances, self._quiet, self._came, self._told):
            kept.pop(key, None)
        self._wanted.discard(key)

    async def run(self) -> None:
        """Until cancelled. Where nothing may go to zero, nobody is asked."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=self._timeout) as session:
            while True:
                started = time.monotonic()
                if not self._leading():
                    for key in list(self._stances):
                        self.forget(key)
                if self._stances:
                    await self.round(session)
                asleep = any(stance.replicas == 0 for stance in self._stances.values())
                pause_s = WAKE_LOOK_S if asleep else LOOK_S
                await asyncio.sleep(max(pause_s - (time.monotonic() - started), 0.05))

    async def round(self, session: aiohttp.ClientSession) -> None:
        """Ask every router once, and tell what follows."""
        try:
            hosts = await self._routers()
            trouble = "" if hosts else "there is none"
        except (ApiError, httpx2.HTTPError) as error:
            hosts, trouble = (), str(error) or type(error).__name__
        if trouble and trouble != self._trouble:
            log.warning("the routers cannot be asked, so nothing goes to zero and nothing at zero starts: %s", trouble)
        self._trouble = trouble
        pages = await asyncio.gather(*(ask_router(session, host, self._port) for host in hosts))
        self.take(dict(zip(hosts, pages, strict=True)))

    def take(self, answers: Answers) -> None:
        """What all routers said at one time."""
        for key, stance in self._stances.items():
            said = {host: page[key] for host, page in answers.items() if page is not None and key in page}
            came, held = {host: each.came for host, each in said.items()}, sum(each.held for each in said.values())
            before = self._came.get(key, {})
            if stance.replicas == 0 and asked(before, came, held):
                self._wanted.add(key)
            # One that did not answer this time may have been asked meanwhile.
            self._came[key] = {host: count for host, count in before.items() if host in answers or not answers} | came
            seen = self._sighting(key, stance, came, held, len(answers))
            quiet = next_quiet(self._quiet.get(key), seen, stance, now=self._clock())
            if quiet is None:
                self._quiet.pop(key, None)
            else:
                self._quiet[key] = quiet
            self._tell(key)

    def _sighting(self, key: Key, stance: Stance, came: Mapping[str, float], held: float, num_routers: int) -> Sighting:
        now = self._clock()
        in_flight, served = self._samples.in_flight(key, at=now), self._samples.served(key, at=now)
        told = stance.pods <= in_flight.keys() & served.keys() and 0 < num_routers == len(came)
        every = {**came, **{by_pod(name): served[name] for name in stance.pods}} if told else None
        return Sighting(every, held + sum(in_flight.values()))

    def _move(self, key: Key) -> int | None:
        return move(self._stances[key], self._quiet.get(key), wanted=key in self._wanted, now=self._clock())

    def _tell(self, key: Key) -> None:
        target, now = self._move(key), self._clock()
        if target is None:
            self._told.pop(key, None)
            return
        before, at = self._told.get(key, (None, now))
        if target != before or now - at >= TELL_AGAIN_S:
            self._told[key] = (target, now)
            self._changed(key)
