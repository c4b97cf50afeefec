"""What a download needs beside the address: secrets by name, proxy, certificates, patience."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from quire_operator.api.base import ApiModel, ObjectName, rule, rules, text_rule


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


class WebIdentity(ApiModel):
    """The pod's ServiceAccount takes on a role, and no key lies in the cluster."""

    role_arn: str = Field(
        max_length=2048,
        json_schema_extra=rules(
            text_rule(
                "self.matches('^arn:[^ ]+$')", "roleArn must be an ARN such as arn:aws:iam::123456789012:role/models"
            )
        ),
        description=(
            "Role that the ServiceAccount takes on. Its trust policy names the cluster's issuer and the subject "
            "system:serviceaccount:NAMESPACE:SERVICEACCOUNT."
        ),
    )
    audience: str = Field(
        default="sts.amazonaws.com",
        min_length=1,
        max_length=253,
        description="Audience of the token that is projected for it; no other service takes that token. Default: sts.amazonaws.com.",
    )
    endpoint: str | None = Field(
        default=None,
        max_length=512,
        json_schema_extra=rules(
            text_rule(
                "self.matches('^https?://[^/ ]+[^ ]*$')",
                "endpoint of webIdentity must be an http:// or https:// address that answers AssumeRoleWithWebIdentity",
            )
        ),
        description="Address that gives out keys for the token, of stores other than AWS. Default: AWS's for the region.",
    )


class S3(ApiModel):
    """Region and credentials of a bucket."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!(has(self.credentialsSecretRef) && has(self.webIdentity))",
                "credentialsSecretRef and webIdentity exclude each other: keys are in a Secret or come with a role, remove one",
            )
        )
    )

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
            "Default: none; the bucket is public, or the pod gets an identity (webIdentity, or a ServiceAccount that its cloud knows)."
        ),
    )
    web_identity: WebIdentity | None = Field(
        default=None,
        description=(
            "Role that the pod's ServiceAccount takes on, instead of keys. A short-lived token for that is projected into the "
            "container fetch, and into no other. Default: none."
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
