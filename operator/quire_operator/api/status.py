"""`status`: what the operator reports. Written by server-side apply, and only when something in it changed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from quire_operator.api.base import ApiModel

Phase = Literal["Pending", "Loading", "Ready", "Progressing", "Degraded", "ScaledToZero", "Failed"]
MetricState = Literal["Fresh", "Stale", "Missing"]

_TIME: dict[str, Any] = {"format": "date-time"}


class Condition(ApiModel):
    """One aspect of the state. `lastTransitionTime` moves only when `status` does."""

    type: str = Field(description="Ready, Available, Progressing, MetricsAvailable or ScalingActive.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    reason: str = Field(description="One word for programs.")
    message: str = Field(description="One sentence for people.")
    last_transition_time: str = Field(json_schema_extra=_TIME, description="When `status` last changed.")
    observed_generation: int = Field(description="metadata.generation this was computed from.")


class RevisionStatus(ApiModel):
    """One revision that has pods."""

    name: str = Field(description="Hash of the rendered pod template; its workload is <metadata.name>-<name>.")
    track: Literal["stable", "candidate"] = Field(description="stable, or candidate while it is being judged.")
    replicas: int = Field(description="Pods that exist and are not being deleted.")
    ready: int = Field(description="Of those, the ready ones.")


class RolloutStatus(ApiModel):
    """The rollout under way; absent when there is none."""

    started_at: str = Field(json_schema_extra=_TIME, description="When it began.")
    progressed_at: str = Field(json_schema_extra=_TIME, description="When a pod of the new revision last became ready.")
    message: str = Field(description="One sentence about where it is.")


class MetricStatus(ApiModel):
    """One metric, averaged over the ready pods."""

    name: str = Field(description="queueSize or gpuCacheUsage.")
    value: str | None = Field(default=None, description="Average over the pods that answer; absent when none does.")
    state: MetricState = Field(description="Fresh, Stale (the last value is too old) or Missing (never seen).")


class AutoscalingStatus(ApiModel):
    """What is measured, and what the autoscaler wants."""

    desired: int | None = Field(
        default=None, description="Replicas the autoscaler wants; absent without spec.autoscaling."
    )
    metrics: tuple[MetricStatus, ...] = Field(
        default=(),
        description="The measured metrics.",
    )


class Status(ApiModel):
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
            "Progressing (pods are being replaced or added), MetricsAvailable, ScalingActive (copied from the autoscaler)."
        ),
    )
    replicas: int | None = Field(
        default=None, description="Pods of the stable track that exist and are not being deleted."
    )
    ready_replicas: int | None = Field(default=None, description="Of those, the ready ones.")
    summary: str | None = Field(default=None, description="Ready and wanted replicas, as 1/2.")
    selector: str | None = Field(default=None, description="Label selector of those pods, for /scale.")
    url: str | None = Field(default=None, description="OpenAI base URL inside the cluster.")
    revisions: tuple[RevisionStatus, ...] = Field(
        default=(),
        description="Revisions with pods; the wanted one first.",
    )
    rollout: RolloutStatus | None = Field(default=None, description="The rollout under way; absent when there is none.")
    autoscaling: AutoscalingStatus | None = Field(
        default=None, description="What is measured, and what the autoscaler wants."
    )
