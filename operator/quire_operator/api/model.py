"""`spec.model`: which weights, under which name they answer, and where their files wait.

`Origin` is what it takes to get a model's files; a ModelCache has one too (see modelcache.py).
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from quire_operator.api.base import ApiModel, ServedName, Size, rule, rules, text_rule
from quire_operator.api.cache import Cache
from quire_operator.api.download import S3, Download, SecretKey

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_SOURCE = (
    rf"hf://{_PART}/{_PART}(/[A-Za-z0-9._/-]+\.gguf)?"
    r"|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^/]+)*"
    r"|s3://[a-z0-9][-a-z0-9.]+[a-z0-9](/[^/ ]+)*"
    r"|https?://[^/ ]+(/[^/ ]+)+"
    r"|oci://[^ ]+"
    r"|cache://[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    r"|file://(/[^/]+)+"
)
_SOURCE_MESSAGE = (
    "source must be hf://ORG/NAME[/FILE.gguf], s3://BUCKET/PATH, https://HOST/FILE.gguf, cache://MODELCACHE, pvc://CLAIM/PATH, "
    "oci://IMAGE@sha256:DIGEST[/PATH] or file:///PATH"
)
_IMAGE = r"oci://[^@ ]+@sha256:[0-9a-f]{64}(/[^/ ]+)*"
_IMAGE_MESSAGE = (
    "an oci:// source must name its image by digest, as oci://REGISTRY/NAME@sha256:64-HEX-DIGITS[/PATH]: a tag could become "
    "another model under running pods"
)
_FILE_MESSAGE = "an https:// source must name a .gguf file, which is a whole model; folders come from hf:// or s3://"

DOWNLOADED = ("hf", "s3", "https", "http")
"""Schemes whose files an init container (or the Job of a ModelCache) brings."""

_IS_DOWNLOADED = "self.source.matches('^(hf|s3|https?)://')"


def _check_source(value: str) -> str:
    for bad, message in (
        (re.fullmatch(_SOURCE, value) is None or "/../" in f"{value}/", _SOURCE_MESSAGE),
        (value.startswith("oci://") and re.fullmatch(_IMAGE, value) is None, _IMAGE_MESSAGE),
        (value.startswith("http") and not value.endswith(".gguf"), _FILE_MESSAGE),
    ):
        if bad:
            raise ValueError(f"{message}, got {value!r}")
    return value


def _quoted(pattern: str) -> str:
    return pattern.replace("\\", "\\\\")


Source = Annotated[
    str,
    Field(
        max_length=512,
        json_schema_extra=rules(
            text_rule(f"self.matches('^(?:{_quoted(_SOURCE)})$') && !(self + '/').contains('/../')", _SOURCE_MESSAGE),
            text_rule(f"!self.startsWith('oci://') || self.matches('^{_quoted(_IMAGE)}$')", _IMAGE_MESSAGE),
            text_rule("!self.startsWith('http') || self.endsWith('.gguf')", _FILE_MESSAGE),
        ),
    ),
    AfterValidator(_check_source),
]

ORIGIN_RULES = (
    rule(
        "!has(self.endpoint) || self.source.matches('^(hf|s3)://')",
        "endpoint has an effect only with an hf:// or s3:// source: remove it or change source",
    ),
    rule(
        "!has(self.tokenSecretRef) || self.source.matches('^(hf|https)://')",
        "tokenSecretRef has an effect only with an hf:// or https:// source: remove it or change source",
    ),
    rule(
        "!has(self.sha256) || self.source.matches('^https?://')",
        "sha256 is for https:// sources: hubs tell their own digests, buckets in a file SHA256SUMS; remove it",
    ),
    rule("!has(self.s3) || self.source.startsWith('s3://')", "s3 has an effect only with an s3:// source: remove it"),
    rule(
        f"!has(self.download) || {_IS_DOWNLOADED}",
        "download has an effect only with an hf://, s3:// or https:// source: remove it or change source",
    ),
)
MODEL_RULES = (
    *ORIGIN_RULES,
    rule(
        f"!has(self.cache) || {_IS_DOWNLOADED}",
        "cache has an effect only with an hf://, s3:// or https:// source, for nothing else is downloaded: remove it",
    ),
)


class Origin(ApiModel):
    """Where a model's files come from, and what it takes to get them."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            *ORIGIN_RULES,
            rule(
                _IS_DOWNLOADED,
                "source of a ModelCache must be hf://, s3:// or https://: anything else is in the cluster already",
            ),
        )
    )

    source: Source = Field(
        description=(
            "Where the weights are. hf://ORG/NAME is on the hub; s3://BUCKET/PATH is a folder or .gguf file in a bucket; "
            "https://HOST/FILE.gguf is one file: these are downloaded before the engine starts. cache://NAME is a ModelCache and "
            "pvc://CLAIM/PATH a file or folder on a claim of the same namespace; oci://IMAGE@sha256:DIGEST/PATH is an image that "
            "is mounted as a volume; file:///PATH is inside the engine's image. A change rolls the pods."
        )
    )
    revision: str = Field(
        default="main",
        min_length=1,
        max_length=128,
        description="Branch, tag or commit of a hub model; name a commit where all pods must serve the same. No effect on other sources.",
    )
    token_secret_ref: SecretKey | None = Field(
        default=None,
        description=(
            "Secret with the token for gated or private models. The pod refers to it by name; the value is never copied. The "
            "engine gets it only with engine.tokenizer, which it asks the hub for itself. Pods wait until it exists."
        ),
    )
    endpoint: str | None = Field(
        default=None,
        max_length=512,
        json_schema_extra=rules(
            text_rule(
                "self.matches('^https?://[^/ ]+[^ ]*$')",
                "endpoint must be an http:// or https:// address of a hub mirror or S3 store",
            )
        ),
        description="Address of a hub mirror, as HF_ENDPOINT, or of a store that speaks S3. Default: the chart's, else the public hub or AWS.",
    )
    sha256: str | None = Field(
        default=None,
        max_length=64,
        json_schema_extra=rules(
            text_rule("self.matches('^[0-9a-f]{64}$')", "sha256 must be 64 hexadecimal digits in lower case")
        ),
        description="SHA-256 that the file of an https:// source must have. Default: not checked.",
    )
    s3: S3 | None = Field(default=None, description="Region and credentials of an s3:// source.")
    download: Download | None = Field(default=None, description="How files are downloaded. Default: as the chart says.")

    @property
    def scheme(self) -> str:
        """What stands before `://`."""
        return self.source.partition("://")[0]

    @property
    def rest(self) -> str:
        """What stands after `://`."""
        return self.source.partition("://")[2]


class Model(Origin):
    """Which weights are served, and the names requests may use for them."""

    model_config = ConfigDict(json_schema_extra=rules(*MODEL_RULES))

    served_name: ServedName | None = Field(
        default=None, description="Name that requests put into `model`. Default: metadata.name."
    )
    aliases: tuple[ServedName, ...] = Field(
        default=(),
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "set"},
        description="Further names that requests may use; at most 16.",
    )
    size: Size | None = Field(
        default=None,
        description=(
            "Size of the model's files, as 15Gi. The time a pod may take to start follows from it; see startupTimeout. Default: unknown."
        ),
    )
    cache: Cache | None = Field(
        default=None,
        description=(
            "Where downloaded files are kept: exactly one of size (a new claim), claimName (one that exists) and hostPath (a folder "
            "of the node). Default: in the pod, so every new pod downloads."
        ),
    )

    def names(self, default: str) -> tuple[str, ...]:
        """The served name first, then the aliases, without repetition; `default` is metadata.name."""
        return tuple(dict.fromkeys((self.served_name or default, *self.aliases)))
