"""The LLMAdapter: a LoRA adapter that every pod of an LLMDeployment has loaded, without a rollout."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from quire_operator.api.base import ApiModel, ObjectName, Reported, ServedName, rule, rules, text_rule
from quire_operator.api.status import Condition

AdapterState = Literal["Loaded", "Failed", "NotSupported"]

_SOURCE = r"hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*|file://(/[^/]+)+"
_MESSAGE = "source must be hf://ORG/NAME or file:///PATH, a folder in the pods (mount it with spec.template of the LLMDeployment)"


def _check(value: str) -> str:
    if re.fullmatch(_SOURCE, value) is None or "/../" in f"{value}/":
        raise ValueError(f"{_MESSAGE}, got {value!r}")
    return value


AdapterSource = Annotated[
    str,
    Field(
        max_length=512,
        json_schema_extra=rules(
            text_rule("self.matches('^(?:" + _SOURCE + ")$') && !(self + '/').contains('/../')", _MESSAGE)
        ),
    ),
    AfterValidator(_check),
]


class Adapter(ApiModel):
    """A LoRA adapter of an LLMDeployment's own."""

    name: ServedName = Field(description="Name that requests put into `model`.")
    source: AdapterSource = Field(
        description="Where the adapter is: on the hub, or a folder in the pods. A change loads it anew in every pod."
    )


class LLMAdapterSpec(ApiModel):
    """What is wanted."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.deployment == oldSelf.deployment",
                "deployment cannot change: the adapter was trained for one model; make another LLMAdapter",
            )
        )
    )

    deployment: ObjectName = Field(description="The LLMDeployment, in the same namespace, whose pods load it.")
    source: AdapterSource = Field(
        description="Where the adapter is: on the hub, or a folder in the pods. A change loads it anew in every pod."
    )
    served_name: ServedName | None = Field(
        default=None, description="Name that requests put into `model`. Default: metadata.name."
    )


class AdapterPod(Reported):
    """The adapter in one pod."""

    name: str = Field(description="Name of the pod.")
    state: AdapterState = Field(
        description="Loaded, Failed (see message) or NotSupported (its engine has no adapters)."
    )
    message: str | None = Field(default=None, description="What the engine said.")


class LLMAdapterStatus(Reported):
    """What the operator last saw and did."""

    observed_generation: int | None = Field(default=None, description="metadata.generation this was computed from.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        description="Ready: every ready pod of the LLMDeployment has it loaded.",
    )
    loaded: int | None = Field(default=None, description="Ready pods that have it.")
    of: int | None = Field(default=None, description="Ready pods there are.")
    summary: str | None = Field(default=None, description="Both numbers, as 1/2.")
    pods: tuple[AdapterPod, ...] = Field(default=(), description="Pod by pod.")


class LLMAdapter(ApiModel):
    """A LoRA adapter that every pod of an LLMDeployment has loaded; new pods get it too. No pod is replaced for it."""

    spec: LLMAdapterSpec = Field(description="What is wanted.")
    status: LLMAdapterStatus | None = Field(
        default=None, description="What the operator last saw and did. Written by the operator only."
    )
