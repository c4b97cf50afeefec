"""What a download needs beside the address: secrets by name, proxy, certificates, patience."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from quire_operator.api.base import ApiModel, ObjectName, rules, text_rule


class SecretKey(ApiModel):
    """One key of one named Secret in the same namespace."""

    name: ObjectName = Field(description="Name of the Secret, in the same namespace.")
    key: str = Field(
        default="token", min_length=1, max_length=253, description="Key in the Secret whose value is the token."
    )


class SecretName(ApiModel):
    """One named Secret in the same namespace."""

    name: ObjectName = Field(description="Name of the Secret, in the same namespace.")


class ConfigMapKey(ApiModel):
    """One key of one named ConfigMap in the same namespace."""

    name: ObjectName = Field(description="Name of the ConfigMap, in the same namespace.")
    key: str = Field(default="ca.crt", min_length=1, max_length=253, description="Key in the ConfigMap.")


class S3(ApiModel):
    """Region and credentials of a bucket."""

    region: str = Field(
        default="us-east-1",
        max_length=64,
        json_schema_extra=rules(
            text_rule("self.matches('^[a-z0-9-]+$')", "region must be a name such as eu-central-1")
        ),
        description="Region of the bucket. Default: us-east-1.",
    )
    credentials_secret_ref: SecretName | None = Field(
        default=None,
        description=(
            "Secret with the keys AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN where they are temporary. "
            "Default: none, the bucket is public."
        ),
    )


def _proxy(text: str) -> Any:
    return Field(
        default=None,
        max_length=512,
        json_schema_extra=rules(
            text_rule("self.matches('^https?://[^/ @]+/?$')", "httpsProxy must be http://HOST:PORT, without a password")
        ),
        description=text,
    )


class Download(ApiModel):
    """How files are downloaded."""

    parallel: int = Field(default=4, ge=1, le=32, description="Files at a time, 1 to 32. Default: 4.")
    attempts: int = Field(
        default=8,
        ge=1,
        le=1000,
        description=(
            "Tries in a row that bring nothing before the container fails and Kubernetes starts it again; what is there is kept "
            "and resumed. 1 to 1000. Default: 8."
        ),
    )
    offline: bool = Field(
        default=False, description="Download nothing: the files must be in the cache already. Default: false."
    )
    https_proxy: str | None = _proxy("Proxy for downloads, as http://proxy:3128. Default: the chart's, else none.")
    no_proxy: str | None = Field(
        default=None,
        max_length=1024,
        description="Hosts that are reached without the proxy, separated by commas. Default: the chart's, else none.",
    )
    ca_bundle: ConfigMapKey | None = Field(
        default=None,
        description="ConfigMap with PEM certificates to trust beside the system's, for mirrors with a CA of their own. Default: the chart's, else none.",
    )
