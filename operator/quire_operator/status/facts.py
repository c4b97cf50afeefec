"""Everything the report is computed from, in one frozen place. Pure data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from quire_operator.api import MetricState
from quire_operator.observation import PodView
from quire_operator.policy import Decision, RevisionView, find
from quire_operator.spec import Deployment
from quire_operator.status.problems import Problem

VERIFICATION_FAILURES = frozenset({"RouterUnreachable", "CompletionFailed", "CompletionTimedOut"})
"""Every reason a failed `Verification` may have."""


@dataclass(frozen=True)
class Verification:
    """Where the completion through the router stands, for one generation."""

    state: Literal["NotAsked", "Pending", "Passed", "Failed"]
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Reading:
    """One metric over the ready pods. `silent` names pods without a fresh value that should have one by now; `tried` is False while none should."""

    name: str
    metric: str
    value: float | None
    state: MetricState
    silent: tuple[str, ...] = ()
    tried: bool = True


@dataclass(frozen=True)
class AdapterReading:
    """One LoRA adapter over the ready pods: how many of them have it, and why not all."""

    name: str
    loaded: int
    of: int
    reason: str
    message: str

    @property
    def well(self) -> bool:
        return self.reason == "Loaded"


@dataclass(frozen=True)
class Facts:
    """One look at one LLMDeployment, after the policy has decided and the children were applied."""

    owner: Deployment
    now: str
    revision: str
    """The one the spec asks for."""
    decision: Decision
    views: Sequence[RevisionView]
    """As they are once the decision is carried out."""
    models: Mapping[str, str]
    """spec.model.source by revision."""
    pods: tuple[PodView, ...]
    problem: Problem | None
    failures: Mapping[str, str]
    """Why pods of a revision cannot be made, by revision."""
    apply_error: str | None
    verification: Verification
    readings: Sequence[Reading]
    hpa: Mapping[str, Any] | None
    url: str
    adapters: tuple[AdapterReading, ...] | None = ()
    """None: the pods have not been asked yet."""
    every: tuple[PodView, ...] = ()
    """With the workers of units; `pods` are those that answer."""
    model_cache: Mapping[str, Any] | None = None
    """The ModelCache that spec.model.source names."""

    def with_verification(self, verification: Verification) -> Facts:
        return replace(self, verification=verification)

    @property
    def wanted(self) -> int:
        return self.owner.wanted_replicas

    @property
    def target(self) -> RevisionView:
        return find(self.views, self.revision)

    @property
    def failure(self) -> str | None:
        """Of the wanted revision, or of the one that everything moves back to."""
        return self.failures.get(self.revision) or self.failures.get(self.decision.goal)

    @property
    def aborted(self) -> str | None:
        """Why the wanted revision is not rolled out, if that was given up."""
        control = self.decision.control
        return (control.why or "no reason given") if control.aborted == self.revision else None

    @property
    def old(self) -> tuple[RevisionView, ...]:
        return tuple(view for view in self.views if view.name != self.revision)

    @property
    def ready(self) -> int:
        """Ready pods of all revisions."""
        return sum(view.ready for view in self.views)

    @property
    def complete(self) -> bool:
        """Every wanted replica is of the wanted revision and ready, and no other is left."""
        target = self.target
        return (
            target.desired == self.wanted
            and target.ready >= self.wanted
            and all(view.desired == 0 for view in self.old)
        )
