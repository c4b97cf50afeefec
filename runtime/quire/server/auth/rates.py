"""How much each principal may ask: requests and tokens per minute, requests at once.

Rates are token buckets (a minute's worth at most, refilled steadily). A request is taken from its bucket when it comes. Tokens are known
only as they are made: prompt and answer are taken from the bucket at the end, what is running counts as taken meanwhile, and a
request is let in while anything is left. So a bucket may go below zero by what was running, and is paid back before the next request.
No clocks here: times are given, in seconds.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

WINDOW_S = 60.0
ROUNDING = 1e-6
"""What sums of refills may lack; without it the moment that a refusal names could be refused again."""
MAX_PRINCIPALS = 10_000
"""Principals whose buckets are kept at most; an idle one's are full again after a minute or so and are forgotten."""


@dataclass(frozen=True)
class Limits:
    """None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None


NO_LIMITS = Limits()


@dataclass(slots=True)
class Bucket:
    """Refilled from its last use on; level may be negative."""

    capacity: int
    level: float
    at_s: float

    @classmethod
    def full(cls, capacity: int, now_s: float) -> Bucket:
        return cls(capacity, float(capacity), now_s)

    def refill(self, now_s: float) -> None:
        self.level = min(self.capacity, self.level + max(0.0, now_s - self.at_s) * self.capacity / WINDOW_S)
        self.at_s = max(now_s, self.at_s)

    def seconds_until(self, level: float, taken: float = 0.0) -> float:
        """Until so much is there, if nothing but `taken` is taken."""
        return max(0.0, level + taken - self.level) * WINDOW_S / self.capacity


@dataclass(frozen=True)
class Meter:
    """A limit as headers tell it."""

    kind: str
    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True)
class Refusal:
    """Why not now. retry_after_s: when it may go better, at least a second."""

    message: str
    retry_after_s: int


@dataclass(eq=False)
class Lease:
    """A request that was let in, until `Rates.end`. spent: its tokens so far."""

    name: str
    meters: tuple[Meter, ...] = ()
    spent: Callable[[], int] = field(default=lambda: 0)


@dataclass(slots=True)
class _Account:
    limits: Limits
    requests: Bucket | None
    tokens: Bucket | None
    leases: set[Lease] = field(default_factory=set)


class Rates:
    """The accounts of all principals."""

    def __init__(self, *, max_principals: int = MAX_PRINCIPALS) -> None:
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._max_principals = max_principals

    def __len__(self) -> int:
        return len(self._accounts)

    def begin(self, name: str, limits: Limits, now_s: float) -> Lease | Refusal:
        """Let a request in, or say why not; a refusal takes nothing."""
        if limits == NO_LIMITS:
            return Lease(name)
        account = self._account(name, limits, now_s)
        requests, tokens = account.requests, account.tokens
        running = sum(lease.spent() for lease in account.leases) if tokens is not None else 0
        if limits.max_concurrent is not None and len(account.leases) >= limits.max_concurrent:
            return Refusal(
                f"{len(account.leases)} requests of this key are running, {limits.max_concurrent} may at once", 1
            )
        if requests is not None and requests.level < 1 - ROUNDING:
            wait_s = requests.seconds_until(1)
            return _refused(f"this key may make {requests.capacity} requests a minute", wait_s)
        if tokens is not None and tokens.level - running < 1 - ROUNDING:
            wait_s = tokens.seconds_until(1, running)
            return _refused(f"this key may use {tokens.capacity} tokens a minute, prompts and answers together", wait_s)
        if requests is not None:
            requests.level -= 1
        lease = Lease(name, _meters(account, running))
        account.leases.add(lease)
        return lease

    def meters(self, name: str, limits: Limits, now_s: float) -> tuple[Meter, ...]:
        """What is left, without a request."""
        if limits == NO_LIMITS:
            return ()
        account = self._account(name, limits, now_s)
        return _meters(account, sum(lease.spent() for lease in account.leases))

    def end(self, lease: Lease, now_s: float) -> None:
        """The request is over: take its tokens."""
        account = self._accounts.get(lease.name)
        if account is None or lease not in account.leases:
            return
        account.leases.discard(lease)
        if account.tokens is not None:
            account.tokens.refill(now_s)
            account.tokens.level -= lease.spent()

    def _account(self, name: str, limits: Limits, now_s: float) -> _Account:
        account = self._accounts.get(name)
        if account is None:
            self._make_room(now_s)
            account = self._accounts[name] = _Account(
                limits, _bucket(limits.requests_per_minute, now_s), _bucket(limits.tokens_per_minute, now_s)
            )
        self._accounts.move_to_end(name)
        if account.limits != limits:  # the key file was changed
            account.requests = _resized(account.requests, limits.requests_per_minute, now_s)
            account.tokens = _resized(account.tokens, limits.tokens_per_minute, now_s)
            account.limits = limits
        for bucket in (account.requests, account.tokens):
            if bucket is not None:
                bucket.refill(now_s)
        return account

    def _make_room(self, now_s: float) -> None:
        """Forget who is idle and has everything back, from the one seen least lately; beyond the bound forget the others as well,
        but nobody who has a request running."""
        for name in list(self._accounts)[:8]:
            if self._is_whole(self._accounts[name], now_s):
                del self._accounts[name]
        while len(self._accounts) >= self._max_principals:
            idle = next((name for name, account in self._accounts.items() if not account.leases), None)
            if idle is None:
                return
            del self._accounts[idle]

    def _is_whole(self, account: _Account, now_s: float) -> bool:
        buckets = [bucket for bucket in (account.requests, account.tokens) if bucket is not None]
        for bucket in buckets:
            bucket.refill(now_s)
        return not account.leases and all(bucket.level >= bucket.capacity - ROUNDING for bucket in buckets)


def headers_of(meters: tuple[Meter, ...]) -> dict[str, str]:
    """`x-ratelimit-*` as OpenAI writes them."""
    found: dict[str, str] = {}
    for meter in meters:
        found[f"x-ratelimit-limit-{meter.kind}"] = str(meter.limit)
        found[f"x-ratelimit-remaining-{meter.kind}"] = str(meter.remaining)
        found[f"x-ratelimit-reset-{meter.kind}"] = _duration(meter.reset_s)
    return found


def _bucket(capacity: int | None, now_s: float) -> Bucket | None:
    return None if capacity is None else Bucket.full(capacity, now_s)


def _resized(bucket: Bucket | None, capacity: int | None, now_s: float) -> Bucket | None:
    """A bucket of another size, in which as much is missing as before."""
    if bucket is None or capacity is None:
        return _bucket(capacity, now_s)
    bucket.refill(now_s)
    return Bucket(capacity, capacity - (bucket.capacity - bucket.level), now_s)


def _meters(account: _Account, running: int) -> tuple[Meter, ...]:
    found = []
    for kind, bucket, taken in (("requests", account.requests, 0), ("tokens", account.tokens, running)):
        if bucket is not None:
            remaining = max(0, math.floor(bucket.level - taken + ROUNDING))
            found.append(Meter(kind, bucket.capacity, remaining, bucket.seconds_until(bucket.capacity, taken)))
    return tuple(found)


def _refused(what: str, wait_s: float) -> Refusal:
    seconds = max(1, math.ceil(wait_s))
    return Refusal(f"{what}; the next is possible in {seconds} s", seconds)


def _duration(seconds: float) -> str:
    """`250ms`, `6s`, `1m30s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
