"""Settings of the router: frozen, read once from `QUIRE_ROUTER_*`, each default written here and nowhere else.

`load()` turns every problem into one SettingsError that names the variable. No other module reads the environment.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from quire_router.errors import SettingsError

ENV_PREFIX = "QUIRE_ROUTER_"


class Settings(BaseSettings):
    """Every field is read from `QUIRE_ROUTER_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    watch_namespaces: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Namespaces whose LLMDeployments are served, comma-separated; empty means all."
    )
    host: str = Field(default="0.0.0.0", description="Address of both listeners.")
    port: int = Field(
        default=8080, ge=0, le=65535, description="Port of the OpenAI surface and the health paths; 0 picks one."
    )
    metrics_port: int = Field(default=9090, ge=0, le=65535, description="Port of /metrics; 0 picks one.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Lowest level that is logged."
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="One line of text, or one JSON object, per record."
    )

    max_body_bytes: int = Field(
        default=32 * 1024 * 1024, ge=1024, le=1024**3, description="Largest request body, bytes; beyond it 413."
    )
    max_attempts: int = Field(default=3, ge=1, le=10, description="Endpoints tried for one request before it gets 503.")
    connect_timeout_s: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="Longest wait for a TCP connection to a pod, seconds; then another pod is tried.",
    )
    suspect_s: float = Field(
        default=2.0,
        ge=0,
        le=60,
        description="How long an endpoint that failed is chosen only when no other is ready, seconds.",
    )
    watch_timeout_s: int = Field(
        default=60,
        ge=5,
        le=3600,
        description="Longest life of one watch, seconds; a watch silent for longer counts as dead.",
    )
    pre_drain_s: float = Field(
        default=5.0,
        ge=0,
        le=300,
        description="After SIGTERM: how long new connections are still served while unready, seconds.",
    )
    hold_timeout_s: float = Field(
        default=300.0,
        gt=0,
        le=3600,
        description="How long a request for a model at zero waits for its first pod before it gets 503, seconds.",
    )
    max_held: int = Field(
        default=256, ge=0, le=10000, description="Such requests for each LLMDeployment; beyond it 503 at once."
    )
    max_held_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=0,
        le=16 * 1024**3,
        description="Such requests for all of them together, bytes of their bodies and 16 KiB each; beyond it 503 at once.",
    )
    drain_timeout_s: float = Field(
        default=120.0, ge=0, le=7200, description="After the pre-drain: how long running requests may finish, seconds."
    )

    @field_validator("watch_namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        return value

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value


def load() -> Settings:
    """Read the environment; raise SettingsError with one sentence per bad variable."""
    try:
        return Settings()
    except ValidationError as error:
        sentences = [
            f"{ENV_PREFIX}{'.'.join(str(part) for part in item['loc']).upper()} is {item['input']!r}: {item['msg']}"
            for item in error.errors()
        ]
        raise SettingsError("; ".join(sentences)) from None
