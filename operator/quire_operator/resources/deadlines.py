"""How long a pod may take to start, from what is known of its model. Pure."""

from __future__ import annotations

from quire_operator.api import Spec, seconds, size_bytes

UNKNOWN_S = 2 * 60 * 60
"""Where neither startupTimeout nor model.size is given."""

BASE_S = 10 * 60
BYTES_PER_MINUTE = 3_000_000_000
"""50 MB/s: a slow network disk, read once. Faster ones are ready earlier; nothing waits for the deadline but a pod that hangs."""

MAX_S = 24 * 60 * 60


def startup_s(spec: Spec) -> int:
    """Seconds from the start of the engine to ready; the download before it is not counted."""
    if spec.startup_timeout is not None:
        return seconds(spec.startup_timeout)
    if spec.model.size is not None:
        minutes = -(-size_bytes(spec.model.size) // BYTES_PER_MINUTE)
        return min(BASE_S + 60 * minutes, MAX_S)
    return UNKNOWN_S


def startup_is_known(spec: Spec) -> bool:
    """Somebody said something about it, so the engine's own limit follows."""
    return spec.startup_timeout is not None or spec.model.size is not None
