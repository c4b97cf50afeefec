"""The one Service of an LLMDeployment; the router finds the endpoints through its EndpointSlices. Pure."""

from __future__ import annotations

from typing import Any

from quire_operator import labels
from quire_operator.resources.meta import child_metadata
from quire_operator.spec import Deployment


def build_service(owner: Deployment) -> dict[str, Any]:
    """Every ready pod of every revision answers behind it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(owner, owner.name),
        "spec": {
            "type": "ClusterIP",
            "selector": labels.leader_selector(owner.name),
            "ports": [
                {
                    "name": labels.PORT_NAME,
                    "port": labels.SERVICE_PORT,
                    "targetPort": labels.PORT_NAME,
                    "protocol": "TCP",
                }
            ],
        },
    }
