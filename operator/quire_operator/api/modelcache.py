"""The ModelCache: a claim that a Job fills once, and that many LLMDeployments mount as cache://NAME."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from quire_operator.api.base import ApiModel, Duration, ObjectName, Quantity, Reported, Size, between, rule, rules
from quire_operator.api.cache import AccessMode
from quire_operator.api.download import SecretName
from quire_operator.api.model import Origin
from quire_operator.api.status import Condition

MODEL_CACHE_NAME_MAX = 40

CachePhase = Literal["Pending", "Filling", "Ready", "Failed", "Evicted"]

_SAME = "self.model.source == oldSelf.model.source && self.model.revision == oldSelf.model.revision"


class FetchResources(ApiModel):
    """Compute resources of the Job's pod."""

    requests: dict[str, Quantity] = Field(
        default_factory=dict,
        max_length=16,
        description="What the scheduler reserves, as {cpu: 500m, memory: 512Mi}. Default: nothing.",
    )
    limits: dict[str, Quantity] = Field(
        default_factory=dict,
        max_length=16,
        description="What the pod may use at most. A namespace with a quota may ask for both. Default: no limit.",
    )


class ModelCacheSpec(ApiModel):
    """What is wanted."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                _SAME,
                "source and revision of a ModelCache cannot change while pods use its files: make another ModelCache",
            ),
            rule(
                "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
                "size of a claim can grow but not shrink: make another ModelCache",
            ),
            rule(
                "(has(self.storageClassName) ? self.storageClassName : '') == "
                "(has(oldSelf.storageClassName) ? oldSelf.storageClassName : '')",
                "storageClassName of a claim cannot change: make another ModelCache",
            ),
            rule(
                "self.code == oldSelf.code",
                "code of a ModelCache cannot change while pods use its files: make another ModelCache",
            ),
            rule(
                "self.accessModes == oldSelf.accessModes",
                "accessModes of a claim cannot change: make another ModelCache",
            ),
        )
    )

    model: Origin = Field(description="What is downloaded.")
    code: bool = Field(
        default=False,
        description=(
            "Download the Python files of the model too, which engines with --trust-remote-code in extraArgs run. Default: false."
        ),
    )
    size: Size = Field(description="Size of the claim, as 20Gi: the model's files and some room.")
    storage_class_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Class of the claim. Default: the cluster's default class.",
    )
    access_modes: tuple[AccessMode, ...] = Field(
        default=("ReadWriteMany",),
        min_length=1,
        max_length=3,
        description=(
            "Modes of the claim. With ReadWriteOnce all pods that use it must fit on one node, the one of the Job too. "
            "Default: [ReadWriteMany]."
        ),
    )
    evict_after: Duration | None = Field(
        default=None,
        json_schema_extra=between("1m", "8760h"),
        description=(
            "Delete the claim when no LLMDeployment has used it for this long; it is filled again when one does; 1m to 8760h. "
            "Default: never."
        ),
    )
    resources: FetchResources = Field(
        default_factory=FetchResources, description="Compute resources of the Job's pod. Default: none."
    )
    image: str = Field(
        default="",
        max_length=512,
        description="Image of the Job. Default (empty): the runtime image of the operator's chart.",
    )
    service_account_name: ObjectName | None = Field(
        default=None,
        description=(
            "ServiceAccount of the Job's pod, which must exist, for a bucket that knows it (model.s3.webIdentity). Its token for the "
            "cluster is not mounted. Default: the namespace's."
        ),
    )
    image_pull_secrets: tuple[SecretName, ...] = Field(
        default=(),
        max_length=8,
        description="Secrets with registry credentials for the image; at most 8. Default: none.",
    )


class ModelCacheStatus(Reported):
    """What the operator last saw and did."""

    observed_generation: int | None = Field(default=None, description="metadata.generation this was computed from.")
    phase: CachePhase | None = Field(default=None, description="One word: Pending, Filling, Ready, Failed or Evicted.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        description="Ready: the claim holds the whole model, checked.",
    )
    claim: str | None = Field(default=None, description="Name of the claim.")
    used_by: tuple[str, ...] = Field(default=(), description="LLMDeployments whose source is this ModelCache.")
    unused_since: str | None = Field(
        default=None, json_schema_extra={"format": "date-time"}, description="Since when none has used it."
    )


class ModelCache(ApiModel):
    """A model downloaded once into a claim, for many LLMDeployments: their source is cache://NAME."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"self.metadata.name.size() <= {MODEL_CACHE_NAME_MAX} && "
                "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
                f"metadata.name must have at most {MODEL_CACHE_NAME_MAX} characters, lower-case letters, digits and -, and not "
                "end with -: it becomes part of the names of a claim and a Job",
            )
        )
    )

    spec: ModelCacheSpec = Field(description="What is wanted.")
    status: ModelCacheStatus | None = Field(
        default=None, description="What the operator last saw and did. Written by the operator only."
    )
