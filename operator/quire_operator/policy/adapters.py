"""Which adapters a pod should load and unload now, whose they are, and when to try again what failed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire_operator.backoff import backoff_s

FIRST_S, MOST_S = 2.0, 300.0
"""A load that failed is tried again after 2 s, 4 s, … 5 min."""
UNSUPPORTED_S = 600.0
"""An engine without adapters gets none until its container is another one; asking now and then is for proxies in between."""


@dataclass(frozen=True)
class Wanted:
    """One adapter: the LLMAdapter it is of (None: spec.adapters, without a time), the name requests use, and the path the engine is told."""

    resource: str | None
    served: str
    path: str
    created: str = ""


@dataclass(frozen=True)
class Failure:
    """What one pod did not do, in a row: load that path under that name, or (without a path) unload it."""

    count: int
    at: float
    supported: bool
    message: str

    def left_s(self, now: float) -> float:
        """Seconds until it is worth another try."""
        wait = backoff_s(self.count, FIRST_S, MOST_S) if self.supported else UNSUPPORTED_S
        return max(self.at + wait - now, 0.0)


Task = tuple[str, str | None]
"""Served name, and path (None: unload)."""
Failures = Mapping[Task, Failure]


@dataclass(frozen=True)
class PodPlan:
    """For one pod. Unloading comes first, for a changed source is both. held: what failed, and is not to be tried yet."""

    unload: tuple[str, ...]
    load: tuple[Wanted, ...]
    held: tuple[Task, ...] = ()


def path_of(source: str) -> str:
    """`hf://org/name` to `org/name`, `file:///a` to `/a`: what the engine is told."""
    return source.partition("://")[2]


def winners(wanted: Sequence[Wanted]) -> dict[str, Wanted]:
    """Of each served name the one that has it: spec.adapters before LLMAdapters, the older of these before the younger."""
    first: dict[str, Wanted] = {}
    for each in sorted(wanted, key=lambda each: (each.created, each.resource or "")):
        first.setdefault(each.served, each)
    return first


def plan_pod(
    wanted: Sequence[Wanted], loaded: Mapping[str, str], failures: Failures | None = None, *, now: float = 0.0
) -> PodPlan:
    """`loaded` is what the engine lists: served name to path. What nobody asks for goes."""
    right, known = winners(wanted), failures or {}

    def held(task: Task) -> bool:
        return task in known and known[task].left_s(now) > 0

    surplus = [name for name, path in loaded.items() if name not in right or right[name].path != path]
    missing = [each for name, each in right.items() if loaded.get(name) != each.path]
    tasks: list[Task] = [*((name, None) for name in surplus), *((each.served, each.path) for each in missing)]
    return PodPlan(
        tuple(name for name in surplus if not held((name, None))),
        tuple(each for each in missing if not held((each.served, each.path))),
        tuple(task for task in tasks if held(task)),
    )


def failed(before: Failure | None, message: str, *, now: float, supported: bool = True) -> Failure:
    """Once more."""
    return Failure((before.count if before is not None else 0) + 1, now, supported, message)
