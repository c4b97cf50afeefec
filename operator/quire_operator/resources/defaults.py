"""What the operator's settings add to every pod. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from quire_operator.settings import Settings


@dataclass(frozen=True)
class PodDefaults:
    """Empty strings are nothing. `ca_config_map` is looked for in each LLMDeployment's namespace, key `ca.crt`."""

    image: str
    image_pull_policy: str
    hub_endpoint: str = ""
    https_proxy: str = ""
    no_proxy: str = ""
    ca_config_map: str = ""
    network_policy: bool = True
    operator_namespace: str = "quire-system"

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The one place where settings become defaults of pods."""
        return cls(
            image=settings.runtime_image,
            image_pull_policy=settings.runtime_image_pull_policy,
            hub_endpoint=settings.hub_endpoint,
            https_proxy=settings.download_https_proxy,
            no_proxy=settings.download_no_proxy,
            ca_config_map=settings.download_ca_config_map,
            network_policy=settings.network_policy,
            operator_namespace=settings.namespace,
        )
