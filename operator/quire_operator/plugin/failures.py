"""What went wrong, as one sentence with a remedy. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import httpx2
from lightkube.core.exceptions import ApiError, ConfigError

from quire_operator import labels

NO_KIND = (
    f"this cluster knows no {labels.PLURAL}.{labels.GROUP}: install the chart first "
    "(helm upgrade --install quire charts/quire --namespace quire-system --create-namespace)"
)


def explain(error: Exception) -> str | None:
    """None for what is a fault of this program."""
    if isinstance(error, ApiError):
        return _refused(error.status.code or 0, error.status.message or "no reason given")
    if isinstance(error, httpx2.HTTPStatusError):
        if error.response.status_code == 404:
            return NO_KIND  # a missing object comes as an ApiError, a path that nobody serves as plain text
        return _refused(error.response.status_code, f"HTTP {error.response.status_code}")
    if isinstance(error, ConfigError):
        return f"the kubeconfig does not lead to a cluster: {error}"
    if isinstance(error, httpx2.TransportError):
        return f"the cluster does not answer: {str(error) or type(error).__name__}; see kubectl cluster-info"
    return None


def not_found(name: str, namespace: str, others: Sequence[str]) -> str:
    """With the names that look like it."""
    text = f"there is no {labels.KIND} {name} in namespace {namespace}"
    near = difflib.get_close_matches(name, others, n=3, cutoff=0.5)
    if near:
        return f"{text}; did you mean {' or '.join(near)}?"
    if others:
        return f"{text}; there is {', '.join(sorted(others)[:5])}"
    return f"{text}, nor any other; -n names another namespace"


def _refused(code: int, message: str) -> str:
    if code == 401:
        return f"the cluster does not know you: {message}; log in again, or see kubectl config view --minify"
    if code == 403:
        return f"you may not do that: {message}"
    return f"the API server refuses: {message}"
