"""Asks every engine pod for /metrics, all at the same time, each with a time limit; one silent pod delays no other.

After a round it says which LLMDeployments have something new to show, so that the status follows without a write per round.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping

import aiohttp

from quire_operator import labels, telemetry
from quire_operator.probe.exposition import read_gauges
from quire_operator.probe.samples import IN_FLIGHT, SERVED, Samples, Target
from quire_operator.resources.hpa import METRIC_NAMES
from quire_operator.spec import Key
from quire_operator.status import Reading

log = logging.getLogger(__name__)

PAGE_LIMIT_BYTES = 4 << 20
SHOW_EVERY_S = 10.0
"""A changed value alone reaches the status no more often than this; a change of state does at once."""

_REDUCE: Mapping[str, Callable[[Iterable[float]], float]] = {
    METRIC_NAMES["queue_size"]: sum,
    METRIC_NAMES["gpu_cache_usage"]: max,
    **dict.fromkeys((*IN_FLIGHT, SERVED), sum),
}


class Scraper:
    """`show(key)` is called when the status of `key` should be computed again."""

    def __init__(
        self, samples: Samples, *, interval_s: float, timeout_s: float, show: Callable[[Key], None], parallel: int = 64
    ) -> None:
        self._samples = samples
        self._interval_s = interval_s
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._show = show
        self._slots = asyncio.Semaphore(parallel)
        self._shown: dict[Key, tuple[tuple[Reading, ...], float]] = {}

    async def run(self) -> None:
        """Until cancelled; the rounds start `interval_s` apart, or as soon as the last one is done."""
        connector = aiohttp.TCPConnector(limit=0, force_close=False)
        async with aiohttp.ClientSession(connector=connector, timeout=self._timeout) as session:
            while True:
                started = time.monotonic()
                await self.round(session)
                await asyncio.sleep(max(self._interval_s - (time.monotonic() - started), 0.05))

    async def round(self, session: aiohttp.ClientSession) -> None:
        """One scrape of every pod."""
        async with asyncio.TaskGroup() as group:
            for target in self._samples.targets():
                group.create_task(self._one(session, target))
        telemetry.SCRAPE_AGE.set(self._samples.oldest_age_s(at=time.monotonic()))
        self._tell()

    async def _one(self, session: aiohttp.ClientSession, target: Target) -> None:
        async with self._slots:
            values, result = await self._ask(session, target)
        telemetry.SCRAPES.labels(result=result).inc()
        self._samples.record(target, values, at=time.monotonic(), wall=time.time())

    async def _ask(self, session: aiohttp.ClientSession, target: Target) -> tuple[Mapping[str, float] | None, str]:
        host = f"[{target.ip}]" if ":" in target.ip else target.ip
        url = f"http://{host}:{labels.ENGINE_PORT}{labels.PATH_METRICS}"
        try:
            async with session.get(url) as response:
                if response.status != 200:
                    return None, "bad"
                page = await response.content.read(PAGE_LIMIT_BYTES)
                while len(page) < PAGE_LIMIT_BYTES and (
                    more := await response.content.read(PAGE_LIMIT_BYTES - len(page))
                ):
                    page += more
        except TimeoutError:
            return None, "timeout"
        except (aiohttp.ClientError, OSError) as error:
            log.debug("scrape of %s/%s: %s", target.key.namespace, target.pod, error)
            return None, "refused"
        return read_gauges(page.decode("utf-8", "replace"), _REDUCE), "ok"

    def _tell(self) -> None:
        now = time.monotonic()
        keys = self._samples.keys()
        for key in keys:
            readings = self._samples.readings(key, at=now)
            shown, at = self._shown.get(key, ((), 0.0))
            if _states(readings) != _states(shown) or (
                _values(readings) != _values(shown) and now - at >= SHOW_EVERY_S
            ):
                self._shown[key] = (readings, now)
                self._show(key)
        for gone in self._shown.keys() - set(keys):
            del self._shown[gone]


def _states(readings: tuple[Reading, ...]) -> list[tuple[str, str, tuple[str, ...], bool]]:
    return [(reading.name, reading.state, reading.silent, reading.tried) for reading in readings]


def _values(readings: tuple[Reading, ...]) -> list[str]:
    return [f"{reading.value:.2f}" if reading.value is not None else "" for reading in readings]
