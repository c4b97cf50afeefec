"""Requests that wait until a model at zero has its first pod: how many, and how many bytes of them.

Called by `proxy`; `registry` says when something changed. A place is given back whatever ends the wait: an endpoint, the deadline, a
client that leaves, the end of this router. No I/O.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from quire_router.endpoints import DeploymentKey

COST_BYTES = 16 * 1024
"""What a request takes besides its body: its connection, its task, its headers."""


class NoPlaceError(Exception):
    """Too many wait already, or too many bytes; the message says which."""


class WaitingRoom:
    """`most` requests for each LLMDeployment, `most_bytes` for all together: one that cannot start takes no other's places by their number."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._held: Counter[DeploymentKey] = Counter()
        self._bytes = 0
        self._bells: set[asyncio.Event] = set()

    def count(self, key: DeploymentKey) -> int:
        """Requests that wait for this LLMDeployment."""
        return self._held[key]

    def look_again(self) -> None:
        """Something changed: whoever waits looks whether it was for them."""
        for bell in self._bells:
            bell.set()

    @contextmanager
    def place(self, key: DeploymentKey, num_bytes: int) -> Iterator[asyncio.Event]:
        """A place for a request with a body of that size. The event is set at each change; raise NoPlaceError."""
        if self._held[key] >= self._most:
            raise NoPlaceError(f"{self._most} requests wait for it already")
        size = num_bytes + COST_BYTES
        if self._bytes + size > self._most_bytes:
            raise NoPlaceError(f"those that wait have {self._bytes} bytes already")
        bell = asyncio.Event()
        self._held[key] += 1
        self._bytes += size
        self._bells.add(bell)
        try:
            yield bell
        finally:
            self._bells.discard(bell)
            self._bytes -= size
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]
