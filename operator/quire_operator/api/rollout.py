"""`spec.rollout`: how pods move from one revision to the next."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from quire_operator.api.base import ApiModel, Duration, between, rule, rules, seconds, text_rule

INDEFINITE = "indefinite"
_MAX_PAUSE_S = 7 * 24 * 3600
_PAUSE_MESSAGE = "must be a duration up to 168h such as 10m, or indefinite to wait for a person"


def _check_pause(value: str) -> str:
    try:
        good = value == INDEFINITE or (0 <= seconds(value) <= _MAX_PAUSE_S and value != "")
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"{_PAUSE_MESSAGE}, got {value!r}")
    return value


Pause = Annotated[
    str,
    Field(
        max_length=16,
        json_schema_extra=rules(
            text_rule(
                f"self == '{INDEFINITE}' || (self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self != '' && "
                "duration(self) <= duration('168h'))",
                _PAUSE_MESSAGE,
            )
        ),
    ),
    AfterValidator(_check_pause),
]


class CanaryStep(ApiModel):
    """One step: a share of the requests, and how long it is held."""

    weight: int = Field(ge=1, le=100, description="Percent of the requests that the candidate gets, 1 to 100.")
    pause: Pause = Field(
        default="0s",
        description=(
            "How long the step is held once its pods are ready and get their share: a duration up to 168h, or indefinite (until "
            "the annotation quire.dev/rollout says resume or promote). Default: 0s."
        ),
    )


class Canary(ApiModel):
    """The steps of strategy Canary. After the last one the candidate becomes the stable revision."""

    steps: tuple[CanaryStep, ...] = Field(
        min_length=1,
        max_length=20,
        json_schema_extra=rules(
            rule(
                "self.all(one, self.exists_one(other, other.weight == one.weight)) && "
                "self.map(one, one.weight).isSorted()",
                "the weights of canary.steps must rise from step to step: order them, and merge equal ones",
            )
        ),
        description=(
            "Shares of the requests, rising; 1 to 20 steps. The candidate has as many pods as its share of spec.replicas, at least one."
        ),
    )


class BlueGreen(ApiModel):
    """Details of strategy BlueGreen."""

    pause: Pause = Field(
        default="0s",
        description=(
            "How long the whole new set is held, ready and without requests, before all of them go there: a duration up to 168h, or "
            "indefinite (until the annotation quire.dev/rollout says resume or promote). Default: 0s."
        ),
    )
    scale_down_delay: Duration = Field(
        default="30s",
        json_schema_extra=between("0s", "24h"),
        description="How long the old set is kept after the switch, so that the way back is immediate; 0s to 24h. Default: 30s.",
    )


class Rollout(ApiModel):
    """How pods move from one revision to the next. None of it but drainTimeout changes the pods themselves."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                # The API server tests the rule on the object's own default, {}, before it fills in those of the fields.
                "!has(self.strategy) || self.strategy in ['Recreate', 'BlueGreen'] || self.maxSurge > 0 || self.maxUnavailable > 0",
                "maxSurge and maxUnavailable must not both be 0: no pod could ever be replaced; "
                "set maxUnavailable to 1 where there is no spare GPU",
            ),
            rule(
                "!has(self.strategy) || self.strategy != 'Canary' || has(self.canary)",
                "strategy Canary needs canary.steps: say which share of the requests the candidate gets, and for how long",
            ),
        )
    )

    strategy: Literal["RollingUpdate", "Recreate", "BlueGreen", "Canary"] = Field(
        default="RollingUpdate",
        description=(
            "RollingUpdate replaces pods step by step, within maxSurge and maxUnavailable. Recreate stops all old pods before "
            "the first new one starts. BlueGreen starts a whole new set beside the old one (twice the pods, whatever maxSurge) and "
            "then moves all requests at once. Canary gives the new revision a rising share of the requests. Default: RollingUpdate."
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
    canary: Canary | None = Field(
        default=None, description="Steps of strategy Canary; without effect on the others. Default: none."
    )
    blue_green: BlueGreen = Field(
        default_factory=BlueGreen, description="Details of strategy BlueGreen; without effect on the others."
    )
    revision_history_limit: int = Field(
        default=2,
        ge=0,
        le=20,
        description=(
            "Old revisions whose workload is kept, with no pods, so that a return to them brings back the very same pods; 0 to 20. "
            "Default: 2."
        ),
    )
    progress_deadline: Duration | None = Field(
        default=None,
        json_schema_extra=between("10s", "24h"),
        description=(
            "Without progress for this long the condition Progressing turns False with reason ProgressDeadlineExceeded; old pods "
            "keep serving, and with maxSurge 0 or BlueGreen get their room back; 10s to 24h. Default: 30m, or twice the time to start that follows "
            "from model.size or startupTimeout where that is longer, for the download comes before it."
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
