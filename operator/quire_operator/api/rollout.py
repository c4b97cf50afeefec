"""`spec.rollout`: how pods move from one revision to the next."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from quire_operator.api.base import ApiModel, Duration, between, rule, rules


class Rollout(ApiModel):
    """How pods move from one revision to the next. None of it but drainTimeout changes the pods themselves."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                # The API server tests the rule on the object's own default, {}, before it fills in those of the fields.
                "!has(self.strategy) || self.strategy == 'Recreate' || self.maxSurge > 0 || self.maxUnavailable > 0",
                "maxSurge and maxUnavailable must not both be 0: no pod could ever be replaced; "
                "set maxUnavailable to 1 where there is no spare GPU",
            )
        )
    )

    strategy: Literal["RollingUpdate", "Recreate"] = Field(
        default="RollingUpdate",
        description=(
            "RollingUpdate replaces pods step by step, within maxSurge and maxUnavailable. Recreate stops all old pods before "
            "the first new one starts. Default: RollingUpdate."
        ),
    )
    max_surge: int = Field(
        default=1,
        ge=0,
        le=1000,
        description="Pods above spec.replicas while rolling; 0 where there is no spare GPU. Default: 1.",
    )
    max_unavailable: int = Field(
        default=0, ge=0, le=1000, description="Pods below spec.replicas that may be missing while rolling. Default: 0."
    )
    progress_deadline: Duration = Field(
        default="30m",
        json_schema_extra=between("10s", "24h"),
        description=(
            "Without progress for this long the condition Progressing turns False with reason ProgressDeadlineExceeded; old pods "
            "keep serving; 10s to 24h. Default: 30m."
        ),
    )
    drain_timeout: Duration = Field(
        # Kubernetes deletes a namespace's pods before its other objects and looks again after half their grace period
        # (ordered namespace deletion, 1.33): a long default would hold up every deletion of a namespace by minutes.
        default="1m",
        json_schema_extra=between("0s", "24h"),
        description=(
            "How long running requests may go on when a pod is stopped; its grace period is longer; 0s to 24h. A change rolls the "
            "pods; the deletion of a namespace waits for half of it. Default: 1m."
        ),
    )
