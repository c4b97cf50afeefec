"""The operator's own settings: one frozen tree, read once from QUIRE_OPERATOR_* at the start.

Each field is written once with default, unit and meaning; the chart sets them as environment variables of the same
names. A bad value stops the start with one sentence that names the variable. Nothing else in the package reads the
environment (KUBECONFIG and the service-account files belong to the Kubernetes client).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from quire_operator.errors import SettingsError

PREFIX = "QUIRE_OPERATOR_"


class Settings(BaseSettings):
    """What the operator needs to know about its surroundings."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    runtime_image: str = Field(
        default="quire/runtime:latest", min_length=1, description="image of pods whose LLMDeployment names none"
    )
    runtime_image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="imagePullPolicy of the engine container"
    )
    hub_endpoint: str = Field(
        default="",
        pattern=r"^(https?://[^/ ]+\S*)?$",
        description="hub mirror of models whose LLMDeployment names none; empty: the public hub",
    )
    download_https_proxy: str = Field(
        default="",
        pattern=r"^(https?://[^/ ]+/?)?$",
        description="proxy of downloads, unless an LLMDeployment names another",
    )
    download_no_proxy: str = Field(default="", description="hosts reached without that proxy, separated by commas")
    download_ca_config_map: str = Field(
        default="",
        description="ConfigMap in each namespace of LLMDeployments whose key ca.crt downloads trust beside the system's authorities",
    )
    leader_worker_set: bool = Field(
        default=False,
        description="make a LeaderWorkerSet for each new revision whose replicas are several pods; its controller must be in the cluster",
    )
    network_policy: bool = Field(default=True, description="make a NetworkPolicy for each LLMDeployment that wants one")
    namespace: str = Field(default="quire-system", min_length=1, description="namespace the operator runs in")
    service: str = Field(
        default="quire-operator",
        min_length=1,
        description="Service in front of the metrics API; it names the certificate",
    )
    cert_secret: str = Field(
        default="quire-operator-tls",
        min_length=1,
        description="Secret in `namespace` that keeps CA and serving certificate",
    )
    leader_election: bool = Field(
        default=False, description="of several processes let only the one write that holds the Lease"
    )
    lease: str = Field(default="quire-operator", min_length=1, description="name of that Lease in `namespace`")
    router_url: str = Field(
        default="http://quire-router.quire-system",
        pattern=r"^https?://[^/]+$",
        description="where the router answers, without a path; the completion before Ready goes there",
    )
    router_service: str = Field(
        default="quire-router",
        min_length=1,
        description="Service in `namespace` behind which the routers are, who are asked what came for models that may go to zero",
    )
    router_metrics_port: int = Field(default=9090, ge=1, le=65535, description="port of their /metrics")
    watch_namespaces: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="namespaces to serve, separated by commas; empty: all of them"
    )
    workers: int = Field(default=8, ge=1, le=64, description="LLMDeployments that are reconciled at the same time")
    resync_interval_s: float = Field(
        default=60.0, ge=5, le=3600, description="seconds between two looks at every LLMDeployment, events or not"
    )
    scrape_interval_s: float = Field(
        default=2.0, ge=0.2, le=60, description="seconds between two scrapes of every engine pod"
    )
    scrape_timeout_s: float = Field(default=1.5, gt=0, le=30, description="seconds one pod may take to answer a scrape")
    stale_after_s: float = Field(
        default=10.0, gt=0, le=600, description="age in seconds beyond which a sample is stale and no longer served"
    )
    metrics_api: bool = Field(default=True, description="serve custom.metrics.k8s.io for the HorizontalPodAutoscaler")
    host: str = Field(default="0.0.0.0", description="address the three ports listen on")
    metrics_api_port: int = Field(default=8443, ge=0, le=65535, description="HTTPS port of custom.metrics.k8s.io")
    metrics_port: int = Field(default=9090, ge=0, le=65535, description="port of /metrics, the operator's own")
    health_port: int = Field(default=8081, ge=0, le=65535, description="port of /healthz")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level that is logged"
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="one line of text or one JSON object a record"
    )

    @field_validator("watch_namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("log_level", "log_format", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value


def load_settings(overrides: Mapping[str, object] | None = None) -> Settings:
    """Read the environment; raises SettingsError that names the variable, its value and the bound."""
    try:
        return Settings(**dict(overrides or {}))  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = PREFIX + str(first["loc"][0]).upper() if first["loc"] else PREFIX + "*"
        raise SettingsError(f"{name}={first['input']!r} is not acceptable: {first['msg']}") from None
