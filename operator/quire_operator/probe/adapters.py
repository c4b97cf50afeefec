"""Asks one engine pod which adapters it has, and to load or unload one.

`GET /v1/models` lists an adapter with its `parent`; `POST /v1/load_lora_adapter` takes `lora_name` and `lora_path`,
`POST /v1/unload_lora_adapter` takes `lora_name`. An engine without adapters answers 501, or 404.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from quire_operator import labels

LIST_TIMEOUT_S = 5.0
LOAD_TIMEOUT_S = 60.0
_NO_ADAPTERS = (404, 405, 501)


class AdapterError(Exception):
    """The pod did not do it; the message says why."""


class NoAdaptersError(AdapterError):
    """Its engine has no adapters at all."""


async def loaded_adapters(session: aiohttp.ClientSession, ip: str) -> Mapping[str, str]:
    """Served name to path. Raises AdapterError."""
    answer = await _ask(session, "GET", ip, "/v1/models", None, LIST_TIMEOUT_S)
    try:
        return {each["id"]: str(each.get("root", "")) for each in answer["data"] if each.get("parent")}
    except (KeyError, TypeError) as error:
        raise AdapterError("the list of models has an unexpected shape") from error


async def load_adapter(session: aiohttp.ClientSession, ip: str, name: str, path: str) -> None:
    """Raises AdapterError, NoAdaptersError where the engine knows none."""
    body = {"lora_name": name, "lora_path": path}
    await _ask(session, "POST", ip, "/v1/load_lora_adapter", body, LOAD_TIMEOUT_S)


async def unload_adapter(session: aiohttp.ClientSession, ip: str, name: str) -> None:
    """Raises AdapterError, NoAdaptersError where the engine knows none."""
    await _ask(session, "POST", ip, "/v1/unload_lora_adapter", {"lora_name": name}, LIST_TIMEOUT_S)


async def _ask(
    session: aiohttp.ClientSession, method: str, ip: str, path: str, body: Mapping[str, str] | None, timeout_s: float
) -> Any:
    host = f"[{ip}]" if ":" in ip else ip
    url = f"http://{host}:{labels.ENGINE_PORT}{path}"
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with session.request(method, url, json=body, timeout=timeout) as response:
            if body is not None and response.status in _NO_ADAPTERS:
                said = _message(await response.text())
                raise NoAdaptersError(f"its engine has no adapters (it answered {response.status}: {said})")
            if response.status >= 400:
                raise AdapterError(f"it answered {response.status}: {_message(await response.text())}")
            return await response.json(content_type=None) if body is None else None
    except TimeoutError as error:
        raise AdapterError(f"no answer within {timeout_s:.0f} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise AdapterError(f"it cannot be reached: {error or type(error).__name__}") from error


def _message(text: str) -> str:
    """The sentence of an OpenAI error, else all there is."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["error"]["message"])
    return " ".join(text.split())[:300] or "nothing"
