"""Which ready endpoint gets the next request.

A Policy orders nothing and remembers nothing: it picks one of the candidates given the load. The load (requests in flight
through *this* router, endpoints that failed just now) is kept in LoadTable. Pure: the clock and the dice are arguments.
A new policy is a class with `pick` and an entry in the LLMDeployment's routing; the proxy does not change.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from quire_router.endpoints import Endpoint
from quire_router.traffic import Weights, of_one_revision


class LoadTable:
    """Requests in flight by address, and addresses that failed within the last seconds."""

    def __init__(self) -> None:
        self._in_flight: dict[str, int] = {}
        self._suspect_until: dict[str, float] = {}

    def in_flight(self, address: str) -> int:
        return self._in_flight.get(address, 0)

    @contextmanager
    def request(self, address: str) -> Iterator[None]:
        """Count one request as in flight for as long as the block runs."""
        self._in_flight[address] = self._in_flight.get(address, 0) + 1
        try:
            yield
        finally:
            left = self._in_flight[address] - 1
            if left:
                self._in_flight[address] = left
            else:
                del self._in_flight[address]

    def suspect(self, address: str, *, until: float) -> None:
        """The endpoint just failed before its first byte: prefer others until then (monotonic seconds)."""
        self._suspect_until[address] = until

    def trusted(self, endpoints: Sequence[Endpoint], *, now: float) -> list[Endpoint]:
        """Those without a recent failure; all of them when every one has failed."""
        self._suspect_until = {address: until for address, until in self._suspect_until.items() if until > now}
        trusted = [endpoint for endpoint in endpoints if endpoint.address not in self._suspect_until]
        return trusted or list(endpoints)


class Policy(Protocol):
    """Picks one of at least one candidate."""

    def pick(self, candidates: Sequence[Endpoint], load: LoadTable) -> Endpoint: ...


class LeastLoaded:
    """The endpoint with the fewest requests in flight; equal ones share by dice."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def pick(self, candidates: Sequence[Endpoint], load: LoadTable) -> Endpoint:
        least = min(load.in_flight(endpoint.address) for endpoint in candidates)
        return self._dice.choice([endpoint for endpoint in candidates if load.in_flight(endpoint.address) == least])


def choose(
    ready: Sequence[Endpoint],
    load: LoadTable,
    policy: Policy,
    *,
    tried: Collection[str],
    now: float,
    weights: Weights = (),
    dice: random.Random,
) -> Endpoint | None:
    """One of the ready endpoints whose address was not tried yet, or None. `weights` shares requests between revisions."""
    untried = [endpoint for endpoint in ready if endpoint.address not in tried]
    if not untried:
        return None
    trusted = load.trusted(untried, now=now)
    return policy.pick(of_one_revision(trusted, weights, dice) if weights else trusted, load)
