"""How long a pod may take to start, from what is known of its model. Pure."""

from __future__ import annotations

from quire_operator.api import Spec, seconds, size_bytes

UNKNOWN_S = 2 * 60 * 60
"""Where neither startupTimeout nor model.size is given."""

BASE_S = 10 * 60
BYTES_PER_MINUTE = 3_000_000_000
"""50 MB/s: a slow network disk, read once. Faster ones are ready earlier; nothing waits for the deadline but a pod that hangs."""

MAX_S = 24 * 60 * 60
PROGRESS_S = 30 * 60


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


def progress_s(spec: Spec) -> int:
    """Seconds a rollout may stand still. A model that is known to be large is downloaded for about as long as it is loaded."""
    if spec.rollout.progress_deadline is not None:
        return seconds(spec.rollout.progress_deadline)
    return min(max(PROGRESS_S, 2 * startup_s(spec)), MAX_S) if startup_is_known(spec) else PROGRESS_S


def duration_text(span_s: int) -> str:
    """5400 to `1h30m`, as people write it in a spec."""
    parts = ((span_s // 3600, "h"), (span_s % 3600 // 60, "m"), (span_s % 60, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"
