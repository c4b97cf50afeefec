"""Messages of a conversation as chat templates expect them: the content is text, the role one the template knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import RequestError, shown

PARTS_JOINT = "\n"


def plain_message(message: Mapping[str, Any], index: int, *, knows_developer: bool) -> dict[str, Any]:
    """A message whose content is text; parts of type text are joined by line breaks.

    index: its place, for the error. knows_developer: the template has that role; else it is written as system. Other fields stay.
    Raises RequestError that names the field.
    """
    where = f"messages.{index}"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"{where} must be a mapping with role and content", param=where, code="invalid_value")
    role = message["role"]
    if role == "developer" and not knows_developer:
        role = "system"
    return {**message, "role": role, "content": _text(message.get("content"), role, f"{where}.content") or ""}


def _text(content: object, role: str, where: str) -> str | None:
    if content is None and role == "assistant":
        return None
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a text or text parts", param=where, code="invalid_value")
    texts: list[str] = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(text, str):
            raise RequestError(
                f"{where}.{number} has type {shown(kind)}; this model takes text parts only",
                param=f"{where}.{number}",
                code="unsupported_content",
            )
        texts.append(text)
    return PARTS_JOINT.join(texts)
