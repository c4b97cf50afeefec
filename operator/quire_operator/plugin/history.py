"""The revisions of one LLMDeployment and what each of them changed in the pods. Pure.

There is no way from a workload back to the spec that it came from, so an old revision cannot be asked for by name:
`abort` goes back during a rollout, and applying the old manifest brings back the very same pods afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire_operator import labels
from quire_operator.api import Status
from quire_operator.observation import Body, pod_template_of, workload_views
from quire_operator.policy import to_seconds

NOT_SAID = frozenset({labels.REVISION, labels.APPLIED_HASH, labels.INTENT_HASH})
"""Labels and annotations that differ between revisions because they are revisions."""


@dataclass(frozen=True)
class Entry:
    """track: stable, candidate, or old. changes: against the revision before it, one line each."""

    name: str
    track: str
    replicas: int
    model: str
    age_s: float
    changes: tuple[str, ...]


def history_of(status: Status, workloads: Sequence[Body], *, now: float) -> tuple[Entry, ...]:
    """The newest first."""
    tracks = {each.name: each.track for each in status.revisions}
    bodies = {str(body["metadata"]["name"]): body for body in workloads}
    views = sorted(workload_views(workloads), key=lambda view: (view.created, view.name))
    entries: list[Entry] = []
    before: Mapping[str, str] | None = None
    for view in views:
        flat = dict(flatten(pod_template_of(bodies[view.name])))
        entries.append(
            Entry(
                name=view.revision,
                track=tracks.get(view.revision, "old"),
                replicas=view.desired,
                model=view.model or "",
                age_s=max(now - to_seconds(view.created), 0.0),
                changes=() if before is None else difference(before, flat),
            )
        )
        before = flat
    return tuple(reversed(entries))


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """`path: old -> new`, `+ path: new`, `- path: old`; by path."""
    lines: list[str] = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        if old is None:
            lines.append(f"+ {path}{_value(new)}")
        elif new is None:
            lines.append(f"- {path}{_value(old)}")
        else:
            lines.append(f"{path}: {old} -> {new}")
    return tuple(lines)


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each leaf by its path. Items of lists go by name; flags among a container's arguments by the flag, so that order says nothing."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in NOT_SAID:
                yield from flatten(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            if isinstance(inner, Mapping):
                yield from flatten(
                    {k: v for k, v in inner.items() if k != "name"}, f"{path}[{inner.get('name', index)}]"
                )
            elif isinstance(inner, str) and inner.startswith("--"):
                flag, _, rest = inner.partition("=")
                yield f"{_owner(path)}{flag}", rest
            else:
                yield f"{path}[{index}]", str(inner)
    else:
        yield path, str(value)


def _owner(path: str) -> str:
    """`spec.containers[engine].args` gives `engine `."""
    inside = path.rpartition("[")[2].partition("]")
    return f"{inside[0]} " if inside[1] else f"{path} "


def _value(value: str | None) -> str:
    return f": {value}" if value else ""
