"""From an object as the API server sends it to the frozen types, and to what one LLMDeployment wants.

The schema of the CRD has refused most bad input already; what still does not parse (an object stored under another
schema) becomes one SpecError that names the field. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from quire_operator import labels
from quire_operator.api import Spec, Status
from quire_operator.errors import SpecError

IDLE_AFTER = "15m"
"""Where spec.autoscaling.scaleDown.idleAfter says nothing."""


@dataclass(frozen=True)
class Key:
    """Identity of one LLMDeployment in the work queue."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Deployment:
    """One LLMDeployment, parsed."""

    key: Key
    uid: str
    generation: int
    spec: Spec
    status: Status
    command: str | None = None
    """Value of the annotation quire.dev/rollout."""

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def namespace(self) -> str:
        return self.key.namespace

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names that requests may use, the served name first."""
        return self.spec.model.names(self.key.name)

    @property
    def wanted_replicas(self) -> int:
        """The owner of spec.replicas has the say; absent, one (or the autoscaler's minimum)."""
        if self.spec.replicas is not None:
            return self.spec.replicas
        return self.initial_replicas

    @property
    def unit_size(self) -> int:
        """Pods of each replica: as many as its ranks need, with the GPUs that each pod has (without GPUs a rank each)."""
        engine, resources = self.spec.engine, self.spec.resources
        ranks = (engine.tensor_parallel_size or 1) * (engine.pipeline_parallel_size or 1)
        each = resources.devices.count if resources.devices is not None else resources.gpus
        return -(-ranks // max(each, 1))

    @property
    def initial_replicas(self) -> int:
        """At least one, which proves that the model can start, also where it may go to zero afterwards."""
        return max(self.spec.autoscaling.min_replicas, 1) if self.spec.autoscaling is not None else 1

    @property
    def idle_after(self) -> str | None:
        """How long nobody may have asked before the last replica goes; None where it stays."""
        scaling = self.spec.autoscaling
        if scaling is None or scaling.min_replicas > 0:
            return None
        return scaling.scale_down.idle_after or IDLE_AFTER


def parse(body: Mapping[str, Any]) -> Deployment:
    """Raises SpecError with one sentence for the first bad field."""
    metadata = body["metadata"]
    try:
        spec = Spec.model_validate(body.get("spec") or {})
    except ValidationError as error:
        raise SpecError(_sentence("spec", error)) from None
    return Deployment(
        key=Key(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        generation=metadata["generation"],
        spec=spec,
        status=parse_status(body),
        command=(metadata.get("annotations") or {}).get(labels.ROLLOUT),
    )


def parse_status(body: Mapping[str, Any]) -> Status:
    """What was reported last; a field that cannot be read is as absent, for the status is rewritten as a whole."""
    told = body.get("status") or {}
    try:
        return Status.model_validate(told)
    except ValidationError as error:
        unreadable = {each["loc"][0] for each in error.errors() if each["loc"]}
        return Status.model_validate({name: value for name, value in told.items() if name not in unreadable})


def _sentence(root: str, error: ValidationError) -> str:
    first = error.errors()[0]
    path = ".".join((root, *(str(part) for part in first["loc"])))
    if first["type"] == "extra_forbidden":
        return f"{path} is not a field this operator knows: remove it or upgrade the operator"
    return f"{path}={first['input']!r} is not acceptable: {first['msg']}"
