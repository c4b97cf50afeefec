"""The access log: one line for each request, in words or as the fields of a JSON line."""

from __future__ import annotations

import logging
import re
from typing import Any

from quire.server.jobs import Job

_log = logging.getLogger("quire.access")


def record(
    method: str, path: str, status: int, *, duration_s: float, request_id: str, key: str, job: Job | None, quiet: bool
) -> None:
    """Log a request that is over. key: the name of the key it came with, or nothing. quiet: only with --log-level=debug."""
    level = logging.DEBUG if quiet else logging.INFO
    if not _log.isEnabledFor(level):
        return
    fields: dict[str, Any] = {
        "method": method,
        "path": _printable(path),
        "status": status,
        "duration_s": round(duration_s, 6),
        "request_id": request_id,
    }
    words = [f"{method} {fields['path']} {status}", f"{duration_s:.3f}s", f"id={request_id}"]
    if key:
        fields["key"] = key
        words.append(f"key={key}")
    if job is not None:
        usage = job.usage
        reasons = [choice.finish_reason.value if choice.finish_reason else "-" for choice in job.choices]
        fields |= {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "finish_reasons": reasons,
        }
        words.append(f"prompt={usage.prompt_tokens} cached={usage.cached_tokens} completion={usage.completion_tokens}")
        if job.first_token_s is not None:
            fields["ttft_s"] = round(job.first_token_s - job.arrival_s, 6)
            words.append(f"ttft={fields['ttft_s']:.3f}s")
        words.append("finish=" + ",".join(reasons))
    _log.log(level, " ".join(words), extra={"fields": fields})


def _printable(path: str) -> str:
    return re.sub(r"[^\x21-\x7e]", "?", path)[:200]
