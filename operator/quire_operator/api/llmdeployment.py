"""The LLMDeployment itself: spec and status put together, and the rules that span them."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from quire_operator.api.adapter import Adapter
from quire_operator.api.base import ApiModel, Duration, ObjectName, between, rule, rules
from quire_operator.api.download import SecretName
from quire_operator.api.engine import Engine
from quire_operator.api.model import Model
from quire_operator.api.pods import NetworkPolicy, Resources, Template
from quire_operator.api.rollout import Rollout
from quire_operator.api.scaling import Autoscaling
from quire_operator.api.status import Status

NAME_MAX = 40
UNIT_MAX = 64
"""Pods of a replica."""


def _size(field: str) -> str:
    return f"(has(self.engine) && has(self.engine.{field}) ? self.engine.{field} : 1)"


_RANKS = f"({_size('tensorParallelSize')} * {_size('pipelineParallelSize')})"
_GPUS = (
    "(!has(self.resources) ? 0 : has(self.resources.devices) ? self.resources.devices.count : "
    "has(self.resources.gpus) ? self.resources.gpus : 0)"
)


class Spec(ApiModel):
    """What is wanted."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "oldSelf.hasValue() || !(has(self.replicas) && has(self.autoscaling))",
                "replicas and autoscaling exclude each other: replicas fixes the number, autoscaling lets the demand choose it; "
                "remove one of them",
                optionalOldSelf=True,
            ),
            rule(
                f"{_GPUS} == 0 || {_RANKS} <= {_GPUS} || {_RANKS} % {_GPUS} == 0",
                "engine.tensorParallelSize times engine.pipelineParallelSize must be a multiple of the GPUs of each pod "
                "(resources.gpus, or resources.devices.count): the pods of a replica are alike",
            ),
            rule(
                f"{_RANKS} <= {UNIT_MAX} * ({_GPUS} > 0 ? {_GPUS} : 1)",
                f"engine.tensorParallelSize times engine.pipelineParallelSize needs more than {UNIT_MAX} pods for each replica: "
                "give each pod more GPUs, or lower one of them",
            ),
            rule(
                "!has(self.adapters) || self.adapters.all(one, (!has(self.model.servedName) || one.name != self.model.servedName) && "
                "(!has(self.model.aliases) || !self.model.aliases.exists(alias, alias == one.name)))",
                "adapters must not be named like the model (model.servedName, model.aliases): requests for that name are the model's",
            ),
        )
    )

    model: Model = Field(description="Which weights are served, and under which names.")
    engine: Engine = Field(
        default_factory=Engine, description="Flags of the engine; each is the flag of `quire serve` with the same name."
    )
    adapters: tuple[Adapter, ...] = Field(
        default=(),
        max_length=32,
        json_schema_extra=rules(
            rule(
                "self.all(one, self.exists_one(other, other.name == one.name))",
                "adapters must have names of their own: requests choose one by its name",
            )
        ),
        description=(
            "LoRA adapters that every ready pod loads, beside those of LLMAdapters that name this LLMDeployment; no pod is replaced "
            "for them. Engines of this version have none yet and say so in the condition AdaptersLoaded. At most 32. Default: none."
        ),
    )
    replicas: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description=(
            "Pods that serve, 0 to 1000. Not together with autoscaling, which writes it through /scale. Default: 1, or "
            "autoscaling.minReplicas, or 1 where that is 0."
        ),
    )
    autoscaling: Autoscaling | None = Field(default=None, description="Lets the demand choose the number of replicas.")
    rollout: Rollout = Field(default_factory=Rollout, description="How pods move from one revision to the next.")
    resources: Resources = Field(default_factory=Resources, description="Compute resources of each pod.")
    startup_timeout: Duration | None = Field(
        default=None,
        json_schema_extra=between("1m", "24h"),
        description=(
            "How long a pod may take from the start of its engine to ready before it is started again; 1m to 24h. Default: 10m and "
            "1m more for every 3 GB of model.size; 2h where that is not given."
        ),
    )
    network_policy: NetworkPolicy = Field(default_factory=NetworkPolicy, description="Who may reach the pods.")
    service_account_name: ObjectName | None = Field(
        default=None,
        description=(
            "ServiceAccount of the pods, which must exist. Its token is not mounted. Default: <name>, made by the operator, with "
            "no rights."
        ),
    )
    image_pull_secrets: tuple[SecretName, ...] = Field(
        default=(),
        max_length=8,
        description="Secrets with registry credentials for the pods' images; at most 8. Default: none.",
    )
    template: Template = Field(
        default_factory=Template, description="Patch on the pods, for everything not named above."
    )
    image: str = Field(
        default="",
        max_length=512,
        description="Image of the engine. Default (empty): the runtime image of the operator's chart.",
    )


class LLMDeployment(ApiModel):
    """A large language model, served behind the router's OpenAI endpoint by one pod or many."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"self.metadata.name.size() <= {NAME_MAX} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
                f"metadata.name must have at most {NAME_MAX} characters, lower-case letters, digits and -, beginning with a letter "
                "and not ending with -: it becomes the name of a Service and of the pods",
            )
        )
    )

    spec: Spec = Field(description="What is wanted.")
    status: Status | None = Field(
        default=None, description="What the operator last saw and did. Written by the operator only."
    )
