"""`status`: what the operator reports. Written by server-side apply, and only when something in it changed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from quire_operator.api.base import Reported

Phase = Literal["Pending", "Loading", "Ready", "Progressing", "Degraded", "ScaledToZero", "Failed"]
MetricState = Literal["Fresh", "Stale", "Missing"]

_TIME: dict[str, Any] = {"format": "date-time"}


class Condition(Reported):
    """One aspect of the state. `lastTransitionTime` moves only when `status` does."""

    type: str = Field(
        description="Ready, Available, Progressing, RolloutHealthy, ModelCached, MetricsAvailable, ScalingActive or AdaptersLoaded."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    reason: str = Field(description="One word for programs.")
    message: str = Field(description="One sentence for people.")
    last_transition_time: str = Field(json_schema_extra=_TIME, description="When `status` last changed.")
    observed_generation: int = Field(description="metadata.generation this was computed from.")


class RevisionStatus(Reported):
    """One revision that has pods, or should have."""

    name: str = Field(description="Hash of the rendered pod template; its workload is <metadata.name>-<name>.")
    track: Literal["stable", "candidate"] = Field(
        description="stable: it serves, or is returned to. candidate: it is on its way in or out."
    )
    model: str | None = Field(default=None, description="spec.model.source of its pods.")
    replicas: int = Field(description="Pods that exist and are not being deleted.")
    ready: int = Field(description="Of those, the ready ones.")
    weight: int | None = Field(
        default=None,
        description=(
            "Percent of the requests it gets; 0 without ready pods, else they add up to 100. The router follows it while strategy Canary or "
            "BlueGreen is under way, otherwise each ready pod takes its share."
        ),
    )
    unrouted_at: str | None = Field(
        default=None,
        json_schema_extra=_TIME,
        description="Since when it gets no requests although pods of it are ready.",
    )


class RolloutStatus(Reported):
    """The rollout under way; absent when there is none."""

    revision: str | None = Field(default=None, description="The revision it moves to.")
    strategy: str | None = Field(default=None, description="The strategy it follows.")
    step: int | None = Field(default=None, description="Step of the strategy, from 1; above `of` while it ends.")
    of: int | None = Field(default=None, description="Number of steps.")
    step_at: str | None = Field(
        default=None, json_schema_extra=_TIME, description="When the step had its pods and its share of the requests."
    )
    started_at: str = Field(json_schema_extra=_TIME, description="When it began.")
    progressed_at: str = Field(json_schema_extra=_TIME, description="When it last came nearer to its end.")
    peak: int = Field(default=0, description="Most pods of its revision that were ready at one time.")
    broken_at: str | None = Field(
        default=None,
        json_schema_extra=_TIME,
        description="When a BlueGreen's new set, after it had been whole, first lost pods that ended by themselves.",
    )
    message: str = Field(description="One sentence about where it is.")


class RolloutControl(Reported):
    """What the annotation quire.dev/rollout asked for, as far as it still holds."""

    paused: bool | None = Field(default=None, description="No rollout moves on until resume.")
    aborted: str | None = Field(
        default=None, description="Revision that is not rolled out until retry, or until another edit."
    )
    why: str | None = Field(default=None, description="Why it was aborted.")
    promoted: str | None = Field(default=None, description="Revision whose remaining steps are left out.")
    handled: str | None = Field(default=None, description="Value of the annotation that was carried out last.")


class MetricStatus(Reported):
    """One metric, averaged over the ready pods."""

    name: str = Field(description="queueSize or gpuCacheUsage.")
    value: str | None = Field(default=None, description="Average over the pods that answer; absent when none does.")
    state: MetricState = Field(description="Fresh, Stale (the last value is too old) or Missing (never seen).")


class AutoscalingStatus(Reported):
    """What is measured, and what the autoscaler wants."""

    desired: int | None = Field(
        default=None, description="Replicas the autoscaler wants; absent without spec.autoscaling."
    )
    asleep: bool | None = Field(
        default=None, description="True: at zero until a request comes (autoscaling.minReplicas 0); otherwise absent."
    )
    metrics: tuple[MetricStatus, ...] = Field(
        default=(),
        description="The measured metrics.",
    )


class AdapterStatus(Reported):
    """One LoRA adapter, over the ready pods."""

    name: str = Field(description="Name that requests put into `model`.")
    loaded: int = Field(description="Ready pods that have it.")
    of: int = Field(description="Ready pods there are.")


class Status(Reported):
    """What the operator last saw and did."""

    observed_generation: int | None = Field(
        default=None, description="metadata.generation this status was computed from."
    )
    phase: Phase | None = Field(
        default=None, description="One word: Pending, Loading, Ready, Progressing, Degraded, ScaledToZero or Failed."
    )
    conditions: tuple[Condition, ...] = Field(
        default=(),
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        description=(
            "Ready (a completion went through the router on the observed generation), Available (at least one pod answers), "
            "Progressing (pods are being replaced or added), RolloutHealthy (no rollout is in trouble), ModelCached (the files of a model "
            "that is downloaded are there), MetricsAvailable, ScalingActive (copied from the autoscaler), "
            "AdaptersLoaded (every ready pod has every adapter)."
        ),
    )
    replicas: int | None = Field(
        default=None, description="Pods of the stable track that exist and are not being deleted."
    )
    ready_replicas: int | None = Field(default=None, description="Of those, the ready ones.")
    summary: str | None = Field(default=None, description="Ready and wanted replicas, as 1/2.")
    selector: str | None = Field(default=None, description="Label selector of those pods, for /scale.")
    url: str | None = Field(default=None, description="OpenAI base URL inside the cluster.")
    current_revision: str | None = Field(
        default=None, description="The stable revision: what serves, and what an abort returns to."
    )
    updated_revision: str | None = Field(default=None, description="The revision that the spec asks for.")
    revisions: tuple[RevisionStatus, ...] = Field(
        default=(),
        description="Revisions with pods; the wanted one first.",
    )
    rollout: RolloutStatus | None = Field(default=None, description="The rollout under way; absent when there is none.")
    control: RolloutControl | None = Field(default=None, description="What the annotation quire.dev/rollout asked for.")
    autoscaling: AutoscalingStatus | None = Field(
        default=None, description="What is measured, and what the autoscaler wants."
    )
    adapters: tuple[AdapterStatus, ...] = Field(
        default=(), description="LoRA adapters that its pods should have, from spec.adapters and from LLMAdapters."
    )

    def condition(self, kind: str) -> Condition | None:
        """The one of that type."""
        return next((each for each in self.conditions if each.type == kind), None)
