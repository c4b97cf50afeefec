"""`spec.autoscaling`: targets for the HorizontalPodAutoscaler that the operator creates.

While it is set, `spec.replicas` belongs to the autoscaler, which writes it through `/scale`; the way to zero and back is the operator's.
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
    idle_after: Duration | None = Field(
        default=None,
        json_schema_extra=between("10s", "24h"),
        description=(
            "With minReplicas 0: how long nothing may have come to the routers, nor run or waited in the last replica, before that goes "
            "too; 10s to 24h. Whatever is not known begins the span anew. Default: 15m."
        ),
    )


class Autoscaling(ApiModel):
    """Lets the demand choose the number of replicas."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.minReplicas <= self.maxReplicas",
                "minReplicas must not be above maxReplicas: lower the one or raise the other",
            ),
            rule(
                "!has(self.scaleDown) || !has(self.scaleDown.idleAfter) || self.minReplicas == 0",
                "scaleDown.idleAfter says when the last replica goes, which minReplicas keeps: set minReplicas to 0, or remove idleAfter",
            ),
        )
    )

    min_replicas: int = Field(
        default=1,
        ge=0,
        le=1000,
        description=(
            "Fewest replicas, 0 to 1000. 0: the last one goes when nobody asked for scaleDown.idleAfter, and the next request through the "
            "router, which holds it meanwhile, starts one. Default: 1."
        ),
    )
    max_replicas: int = Field(ge=1, le=1000, description="Most replicas, 1 to 1000.")
    targets: Targets = Field(description="What each replica should carry.")
    scale_down: ScaleDown = Field(default_factory=ScaleDown, description="How reluctantly replicas are taken away.")
