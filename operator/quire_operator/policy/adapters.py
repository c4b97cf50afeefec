"""Which adapters a pod should load and unload, and whose they are. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Wanted:
    """One LLMAdapter: its own name, the name requests use, and the path the engine is told."""

    resource: str
    served: str
    path: str
    created: str


@dataclass(frozen=True)
class PodPlan:
    """For one pod, by served name; unloading comes first, for a changed source is both."""

    unload: tuple[str, ...]
    load: tuple[Wanted, ...]


def path_of(source: str) -> str:
    """`hf://org/name` to `org/name`, `file:///a` to `/a`: what the engine is told."""
    return source.partition("://")[2]


def taken(wanted: Sequence[Wanted]) -> dict[str, str]:
    """LLMAdapters whose served name an older one has already, and that one."""
    first: dict[str, Wanted] = {}
    for each in sorted(wanted, key=lambda each: (each.created, each.resource)):
        first.setdefault(each.served, each)
    return {each.resource: first[each.served].resource for each in wanted if first[each.served] is not each}


def plan_pod(wanted: Sequence[Wanted], loaded: Mapping[str, str]) -> PodPlan:
    """`loaded` is what the engine lists: served name to path. What no LLMAdapter asks for goes."""
    lost = taken(wanted)
    right = {each.served: each for each in wanted if each.resource not in lost}
    unload = tuple(name for name, path in loaded.items() if name not in right or right[name].path != path)
    load = tuple(each for name, each in right.items() if loaded.get(name) != each.path)
    return PodPlan(unload, load)
