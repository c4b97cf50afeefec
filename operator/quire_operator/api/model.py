"""`spec.model`: which weights, under which name they answer."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from quire_operator.api.base import ApiModel, ObjectName, ServedName, rule, rules, text_rule

_SOURCE = (
    r"hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*"
    r"|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^/]+)*"
    r"|file://(/[^/]+)+"
)
_SOURCE_MESSAGE = (
    "source must be hf://ORG/NAME (a hub model), pvc://CLAIM/PATH (a file or folder on a PersistentVolumeClaim of this "
    "namespace) or file:///PATH (a file or folder in the image)"
)


def _check_source(value: str) -> str:
    if re.fullmatch(_SOURCE, value) is None or "/../" in f"{value}/":
        raise ValueError(f"{_SOURCE_MESSAGE}, got {value!r}")
    return value


Source = Annotated[
    str,
    Field(
        max_length=512,
        json_schema_extra=rules(
            text_rule(f"self.matches('^(?:{_SOURCE})$') && !(self + '/').contains('/../')", _SOURCE_MESSAGE)
        ),
    ),
    AfterValidator(_check_source),
]


class SecretKey(ApiModel):
    """One key of one named Secret in the namespace of the LLMDeployment."""

    name: ObjectName = Field(description="Name of the Secret, in the namespace of the LLMDeployment.")
    key: str = Field(
        default="token", min_length=1, max_length=253, description="Key in the Secret whose value is the token."
    )


class Model(ApiModel):
    """Which weights are served, and the names requests may use for them."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.endpoint) || self.source.startsWith('hf://')",
                "endpoint has an effect only with an hf:// source: remove it or change source",
            ),
            rule(
                "!has(self.tokenSecretRef) || self.source.startsWith('hf://')",
                "tokenSecretRef has an effect only with an hf:// source: remove it or change source",
            ),
        )
    )

    source: Source = Field(
        description=(
            "Where the weights are. hf://ORG/NAME is downloaded from the hub by every pod; pvc://CLAIM/PATH is a file or folder "
            "on a claim of the same namespace, mounted read-only; file:///PATH is inside the image. A change rolls the pods."
        )
    )
    revision: str = Field(
        default="main",
        min_length=1,
        max_length=128,
        description="Branch, tag or commit of a hub model. No effect on pvc:// and file:// sources.",
    )
    served_name: ServedName | None = Field(
        default=None, description="Name that requests put into `model`. Default: metadata.name."
    )
    aliases: tuple[ServedName, ...] = Field(
        default=(),
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "set"},
        description="Further names that requests may use; at most 16.",
    )
    token_secret_ref: SecretKey | None = Field(
        default=None,
        description=(
            "Secret with the hub token for gated or private models. The pod refers to it by name; the value is never copied. "
            "Pods wait until it exists."
        ),
    )
    endpoint: str | None = Field(
        default=None,
        max_length=512,
        json_schema_extra=rules(
            text_rule(
                "self.matches('^https?://[^/ ]+[^ ]*$')",
                "endpoint must be an http:// or https:// address of a hub mirror",
            )
        ),
        description="Address of a hub mirror, as HF_ENDPOINT. Default: the public hub.",
    )

    def names(self, default: str) -> tuple[str, ...]:
        """The served name first, then the aliases, without repetition; `default` is metadata.name."""
        return tuple(dict.fromkeys((self.served_name or default, *self.aliases)))
