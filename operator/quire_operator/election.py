"""Several operators, one of which writes: the one that holds the Lease. The others watch and measure, and take over when it falls silent.

`policy.leadership` decides, `cluster.lease` reads and writes, `cluster.fence` keeps what is sent too late from leaving.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

import httpx2
from lightkube.core.exceptions import ApiError

from quire_operator.errors import NotLeadingError
from quire_operator.policy.leadership import LEAD_S, RENEW_S, LeaseView, Sighting, left_s, next_move, sighted

log = logging.getLogger(__name__)

NEVER = float("-inf")


class Leadership(Protocol):
    """What the rest of the operator asks."""

    changed: Callable[[], None]

    @property
    def leading(self) -> bool: ...

    def require(self) -> None:
        """Raises NotLeadingError."""

    async def run(self) -> None: ...

    async def release(self) -> None: ...


class Store(Protocol):
    """`cluster.lease.LeaseStore`. Its calls raise TimeoutError before the lead is over, so that there is another try."""

    async def read(self) -> LeaseView | None: ...

    async def write(self, holder: str, before: LeaseView | None) -> LeaseView | None: ...


class Alone:
    """Without an election: this process leads."""

    leading = True

    def __init__(self) -> None:
        self.changed: Callable[[], None] = _nobody

    def require(self) -> None:
        """Always allowed."""

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.Event().wait()

    async def release(self) -> None:
        """Nothing was held."""


class Election:
    """`changed` is called after each turn that made this process leader, again or for the first time, or found that it is it no more.

    `leading` is a matter of time and not of the loop: a process that slept through its lease knows when it wakes up.
    """

    def __init__(self, store: Store, me: str, *, clock: Callable[[], float] | None = None) -> None:
        self.changed: Callable[[], None] = _nobody
        self._store = store
        self._me = me
        self._clock = clock or _boot_s
        self._seen: Sighting | None = None
        self._until = NEVER
        self._asked = False
        """It may be the holder: it asked to be, and has not seen since that another one is."""
        self._told = False
        self._trouble = ""

    @property
    def leading(self) -> bool:
        return self._clock() < self._until

    def require(self) -> None:
        if not self.leading:
            raise NotLeadingError(f"{self._me} does not hold the lease: another operator may be at work")

    async def run(self) -> None:
        """Until cancelled; then `release`."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self.turn()
                trouble = ""
            except (ApiError, httpx2.HTTPError, TimeoutError) as error:
                trouble = str(error) or type(error).__name__
            if trouble and trouble != self._trouble:
                log.warning("the lease cannot be read or renewed: %s", trouble)
            self._trouble = trouble
            self._tell()
            await asyncio.sleep(max(self._pause_s() - (loop.time() - began), RENEW_S / 10))

    async def turn(self) -> None:
        """Renew what is held; where that is not so, or not so any more, one look at the Lease and what follows from it."""
        if self.leading and self._seen is not None and await self._write(self._seen.lease):
            return
        lease = await self._store.read()
        now = self._clock()
        self._seen = sighted(self._seen, lease, now)
        move = next_move(self._me, self._seen, now)
        if move != "renew" or lease is None:
            self._until = NEVER
        self._asked = move != "wait"
        if self._asked:
            await self._write(lease)

    async def _write(self, before: LeaseView | None) -> bool:
        """Hold it from now on; False when it is not as it was any more."""
        now = self._clock()
        written = await self._store.write(self._me, before)
        if written is None:
            return False
        if not self.leading:
            self._told = False  # between two turns it did not lead, and what was asked of it was left to others
        self._seen = Sighting(written, now)
        self._until = now + LEAD_S
        return True

    async def release(self) -> None:
        """Let another one begin at once. Call it when nothing of this process writes any more."""
        self._until = NEVER
        if not self._asked:
            return
        try:
            lease = await self._store.read()
            if lease is not None and lease.holder == self._me:
                await self._store.write("", lease)
        except (ApiError, httpx2.HTTPError, TimeoutError) as error:
            log.warning("the lease is not given back, it runs out by itself: %s", error)

    def _pause_s(self) -> float:
        """Until the next turn: the moment a silent leader's lease runs out, if that is earlier."""
        if self._seen is None or self._seen.lease.holder == self._me:
            return RENEW_S
        return min(RENEW_S, max(left_s(self._seen, self._clock()), 0.1))

    def _tell(self) -> None:
        if self.leading == self._told:
            return
        self._told = not self._told
        log.info("%s leads now" if self._told else "%s does not lead any more", self._me)
        self.changed()


def _nobody() -> None:
    pass


def _boot_s() -> float:
    """It runs on while the machine sleeps, where there is such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
