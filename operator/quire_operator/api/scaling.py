"""`spec.autoscaling`: targets for the HorizontalPodAutoscaler that the operator creates.

While it is set, `spec.replicas` belongs to the autoscaler, which writes it through `/scale`.
"""

from __future__ import annotations

from pydantic import ConfigDict, Field

from quire_operator.api.base import ApiModel, Duration, PositiveNumber, Share, between, rule, rules


class Targets(ApiModel):
    """What each replica should carry; the largest demand of those given wins."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.queueSize) || has(self.gpuCacheUsage)",
                "targets needs at least one of queueSize and gpuCacheUsage",
            )
        )
    )

    queue_size: PositiveNumber | None = Field(
        default=None,
        description='Waiting requests per replica (scheduler_queue_size) to hold on average; above 0, as "4". Default: not used.',
    )
    gpu_cache_usage: Share | None = Field(
        default=None,
        description=(
            "Share of the KV pool in use per replica (gpu_cache_usage, whatever the device) to hold on average; above 0 and up "
            'to 1, as "0.80". Default: not used.'
        ),
    )


class ScaleDown(ApiModel):
    """How reluctantly replicas are taken away."""

    stabilization: Duration = Field(
        default="5m",
        json_schema_extra=between("0s", "1h"),
        description="The highest demand of this span decides, so that a short lull removes nothing; 0s to 1h. Default: 5m.",
    )


class Autoscaling(ApiModel):
    """Lets the demand choose the number of replicas."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.minReplicas <= self.maxReplicas",
                "minReplicas must not be above maxReplicas: lower the one or raise the other",
            )
        )
    )

    min_replicas: int = Field(default=1, ge=1, le=1000, description="Fewest replicas, 1 to 1000. Default: 1.")
    max_replicas: int = Field(ge=1, le=1000, description="Most replicas, 1 to 1000.")
    targets: Targets = Field(description="What each replica should carry.")
    scale_down: ScaleDown = Field(default_factory=ScaleDown, description="How reluctantly replicas are taken away.")
