"""Asks one router what was asked of it: requests that came, and those that wait for a first pod, for each LLMDeployment.

Read from its /metrics, which it shows anyway: the router, which faces the world, needs no right to write anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from quire_operator import labels
from quire_operator.spec import Key

CAME = "quire_router_requests_came_total"
HELD = "quire_router_requests_held"
PAGE_LIMIT_BYTES = 16 << 20


@dataclass(frozen=True)
class Asked:
    """Of one LLMDeployment at one router."""

    came: float
    held: float


async def ask_router(session: aiohttp.ClientSession, host: str, port: int) -> Mapping[Key, Asked] | None:
    """By LLMDeployment that the router knows; None when it does not answer, or not with such a page."""
    try:
        async with session.get(f"http://{host}:{port}{labels.PATH_METRICS}") as response:
            if response.status != 200:
                return None
            page = await response.content.read(PAGE_LIMIT_BYTES)
            while len(page) < PAGE_LIMIT_BYTES and (more := await response.content.read(PAGE_LIMIT_BYTES - len(page))):
                page += more
        return read_page(page.decode("utf-8", "replace"))
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None


def read_page(text: str) -> dict[Key, Asked]:
    """An LLMDeployment that only one of both metrics names is not known. Raises ValueError for what is no such page."""
    # Only these lines are parsed: the page of a router with many models is long, and read every second.
    wanted = "".join(f"{line}\n" for line in text.split("\n") if line.startswith((CAME, HELD)))
    found: dict[str, dict[Key, float]] = {CAME: {}, HELD: {}}
    for family in text_string_to_metric_families(wanted):
        for sample in family.samples:
            if sample.name in found and {"namespace", "deployment"} <= sample.labels.keys():
                found[sample.name][Key(sample.labels["namespace"], sample.labels["deployment"])] = sample.value
    return {key: Asked(came, found[HELD][key]) for key, came in found[CAME].items() if key in found[HELD]}
