"""Which headers cross the router, in both directions (RFC 9110 section 7.6.1). Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

from multidict import CIMultiDict, CIMultiDictProxy

REQUEST_ID = "X-Request-Id"

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# The body is read and decoded here, so what describes its transfer is written anew.
_REQUEST_ONLY = frozenset({"host", "content-length", "content-encoding", "expect", "x-request-id"})
_RESPONSE_ONLY = frozenset({"x-request-id"})
_GOOD_ID = re.compile(r"[\x21-\x7e]{1,128}")


def request_id(headers: Mapping[str, str]) -> str:
    """The client's request id when it is printable and short, else a new one."""
    given = headers.get(REQUEST_ID, "")
    return given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex


def to_upstream(headers: CIMultiDictProxy[str], *, request_id: str, remote: str | None) -> CIMultiDict[str]:
    """Headers of a client's request as the pod gets them."""
    kept = _end_to_end(headers, _REQUEST_ONLY)
    kept[REQUEST_ID] = request_id
    if remote:
        before = headers.getall("X-Forwarded-For", [])
        kept["X-Forwarded-For"] = ", ".join([*before, remote])
    return kept


def to_client(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Headers of a pod's answer as the client gets them; the request id is the router's to add."""
    return _end_to_end(headers, _RESPONSE_ONLY)


def _end_to_end(headers: CIMultiDictProxy[str], dropped: frozenset[str]) -> CIMultiDict[str]:
    named = {
        name.strip().lower() for value in headers.getall("Connection", []) for name in value.split(",") if name.strip()
    }
    unwanted = _HOP_BY_HOP | dropped | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in unwanted)
