"""The API server's audit log: what is in it, and how it is read. Pure."""

import json
from typing import Any

POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}
"""Requests of all ServiceAccounts but the cluster's own, without bodies, once they are answered."""
MAX_MB = 200
"""Of a file; then the next one begins, and the one before it is kept."""


def of_user(text: str, user: str) -> list[dict[str, Any]]:
    """Events of one user, oldest first. A line without an end is still being written."""
    lines = (line for line in text.splitlines(keepends=True) if user in line and line.endswith("\n"))
    return [event for event in map(json.loads, lines) if event["user"]["username"] == user]
