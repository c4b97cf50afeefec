"""What the policy sees of a revision, and what it is told to respect. Pure data; times are seconds since 1970."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

StrategyName = Literal["RollingUpdate", "Recreate", "BlueGreen", "Canary"]


@dataclass(frozen=True)
class RevisionView:
    """One revision's workload as seen. `pods` includes those being deleted, `ready` does not.

    crashing: a pod of it keeps ending by itself. in_flight: requests its pods work on or hold; None when one of them did
    not say. weight, unrouted_at: as reported last, so as the router knows them. settling: for each pod that is ready
    but not for long enough to prove anything, the seconds until it is. fallen: pods that ended by themselves and have not
    proven themselves since. places: of a workload that shrinks from the end, whatever is ready there, the indices of the ready pods
    and whether each has proven itself; None where unready pods go first.
    """

    name: str
    desired: int
    ready: int
    pods: int
    created: str = ""
    crashing: bool = False
    in_flight: int | None = 0
    weight: int = 0
    unrouted_at: float | None = None
    settling: tuple[float, ...] = ()
    fallen: int = 0
    places: Mapping[int, bool] | None = None

    @property
    def proven(self) -> RevisionView:
        """With the pods alone that have been ready for long enough."""
        places = None if self.places is None else {index: True for index, proven in self.places.items() if proven}
        return replace(self, ready=self.ready - len(self.settling), settling=(), places=places)

    def ready_at(self, size: int) -> int:
        """Ready pods that stay when the workload gets that size."""
        return min(self.ready, size) if self.places is None else sum(index < size for index in self.places)

    @property
    def kept_ready(self) -> int:
        """Ready pods that stay if the workload keeps its size."""
        return self.ready_at(self.desired)

    @property
    def unready(self) -> int:
        """Pods that a smaller size can take without a ready one."""
        if self.places is None:
            return self.desired - self.kept_ready
        return self.desired - max((index + 1 for index in self.places if index < self.desired), default=0)


@dataclass(frozen=True)
class Limits:
    """How far the number of pods may stray from the wanted one."""

    max_surge: int
    max_unavailable: int

    def most(self, wanted: int) -> int:
        return wanted + self.max_surge

    def least(self, wanted: int) -> int:
        return max(wanted - self.max_unavailable, 0)


@dataclass(frozen=True)
class Step:
    """One stage of a weighted strategy. `pause_s` None: until a person says so."""

    weight: int
    pause_s: float | None = 0.0


@dataclass(frozen=True)
class Strategy:
    """spec.rollout in seconds and numbers."""

    name: StrategyName
    limits: Limits
    steps: tuple[Step, ...] = ()
    deadline_s: float = 1800.0
    drain_s: float = 60.0
    keep_old_s: float = 0.0
    history: int = 2

    @property
    def by_weight(self) -> bool:
        """The router follows the weights; otherwise each ready pod takes its share."""
        return self.name in ("Canary", "BlueGreen")


@dataclass(frozen=True)
class Progress:
    """The rollout under way, as the status keeps it. step counts from 0; len(steps): the end is reached for.

    broken_since: when the candidate of a BlueGreen, after it had been whole, first lost pods that ended by themselves.
    """

    revision: str
    started: float
    progressed: float
    step: int = 0
    step_since: float | None = None
    peak: int = 0
    broken_since: float | None = None


@dataclass(frozen=True)
class Control:
    """What people asked for by annotation and still holds."""

    paused: bool = False
    aborted: str | None = None
    why: str | None = None
    promoted: str | None = None
    handled: str | None = None


@dataclass(frozen=True)
class Situation:
    """Everything a decision rests on. `target` is the revision the spec asks for.

    verdict: the seam for an analysis of the candidate: `wait` holds the step, `fail` aborts the rollout.
    """

    target: str
    wanted: int
    views: tuple[RevisionView, ...]
    strategy: Strategy
    now: float
    stable: str | None = None
    progress: Progress | None = None
    control: Control = field(default_factory=Control)
    command: str | None = None
    verdict: Literal["pass", "wait", "fail"] = "pass"


def find(views: Iterable[RevisionView], name: str) -> RevisionView:
    """The view of that name; one without pods where there is no workload yet."""
    return next((view for view in views if view.name == name), RevisionView(name, 0, 0, 0))
