"""Who may ask: the aggregator, proved by a client certificate of the front-proxy CA with an allowed common name.

Identity headers are trusted on such a connection only; the caller behind the aggregator was authorised by the API
server. A separate CA makes this sound: any other client certificate of the cluster does not verify. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CONFIG_MAP = "extension-apiserver-authentication"
CONFIG_NAMESPACE = "kube-system"


@dataclass(frozen=True)
class FrontProxy:
    """`allowed_names` empty: any certificate of the CA will do (Kubernetes' own rule)."""

    ca_pem: str
    allowed_names: tuple[str, ...]
    user_headers: tuple[str, ...]

    def user_of(self, peer_certificate: Mapping[str, Any] | None, headers: Mapping[str, str]) -> str | None:
        """The caller's name, or None when this connection may not speak for anyone.

        `peer_certificate` is what `ssl` gives for a certificate that verified against `ca_pem`, or nothing.
        """
        if not peer_certificate:
            return None
        names = [value for part in peer_certificate.get("subject", ()) for key, value in part if key == "commonName"]
        if self.allowed_names and not any(name in self.allowed_names for name in names):
            return None
        return next((headers[name] for name in self.user_headers if headers.get(name)), None)


def read_front_proxy(config_map: Mapping[str, Any] | None) -> FrontProxy | None:
    """From the ConfigMap the API server publishes; None where aggregation is not set up."""
    data = (config_map or {}).get("data") or {}
    ca = data.get("requestheader-client-ca-file", "")
    if not ca.strip():
        return None
    return FrontProxy(
        ca_pem=ca,
        allowed_names=tuple(json.loads(data.get("requestheader-allowed-names") or "[]")),
        user_headers=tuple(json.loads(data.get("requestheader-username-headers") or '["X-Remote-User"]')),
    )
