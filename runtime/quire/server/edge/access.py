"""The access log: one line for each request, in words or as the fields of a JSON line."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.server.flight.work import AnyWork

_log = logging.getLogger("quire.access")


@dataclass(frozen=True)
class Finished:
    """A request that is over. begin_ns: time of day. key: the name of the key it came with, or nothing. job: what the engine did
    for it."""

    method: str
    path: str
    status: int
    begin_ns: int
    duration_s: float
    request_id: str
    headers: Mapping[str, str]
    key: str = ""
    job: AnyWork | None = None

    @property
    def ttft_s(self) -> float | None:
        """From when the job was made to its first token."""
        job = self.job
        return None if job is None or job.first_token_s is None else job.first_token_s - job.arrival_s

    @property
    def finish_reasons(self) -> list[str]:
        return [] if self.job is None else self.job.finish_reasons


def record(one: Finished, *, quiet: bool) -> None:
    """Log it. quiet: only with --log-level=debug."""
    level = logging.DEBUG if quiet else logging.INFO
    if not _log.isEnabledFor(level):
        return
    fields: dict[str, Any] = {
        "method": one.method,
        "path": _printable(one.path),
        "status": one.status,
        "duration_s": round(one.duration_s, 6),
        "request_id": one.request_id,
    }
    words = [f"{one.method} {fields['path']} {one.status}", f"{one.duration_s:.3f}s", f"id={one.request_id}"]
    if one.key:
        fields["key"] = one.key
        words.append(f"key={one.key}")
    if one.job is not None:
        usage, reasons = one.job.usage, one.finish_reasons
        fields |= {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "finish_reasons": reasons,
        }
        words.append(f"prompt={usage.prompt_tokens} cached={usage.cached_tokens} completion={usage.completion_tokens}")
        if one.ttft_s is not None:
            fields["ttft_s"] = round(one.ttft_s, 6)
            words.append(f"ttft={one.ttft_s:.3f}s")
        words.append("finish=" + ",".join(reasons))
    _log.log(level, " ".join(words), extra={"fields": fields})


def _printable(path: str) -> str:
    return re.sub(r"[^\x21-\x7e]", "?", path)[:200]
