"""The seam to the engine process: what the server needs of it, and nothing more.

`quire.engine.client.EngineClient` is the real one; tests bring scripted ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from quire.request import AddRequest, EngineReady, PoolRequest, StepOutputs


class Engine(Protocol):
    """A started engine."""

    @property
    def ready(self) -> EngineReady:
        """What it reported when it came up."""
        ...

    async def add(self, request: AddRequest | PoolRequest, /) -> None:
        """Hand over a request."""
        ...

    async def abort(self, request_ids: Sequence[str], /) -> None:
        """Forget sequences; unknown ids are ignored."""
        ...

    def outputs(self) -> AsyncIterator[StepOutputs]:
        """All reports, in order; raises EngineDeadError when the process ends."""
        ...

    async def close(self, *, at_once: asyncio.Event | None = None) -> None:
        """End the process, without waiting for its own end once `at_once` is set."""
        ...


EngineStart = Callable[[], Awaitable[Engine]]
"""Starts the engine and returns it when it can take requests; raises ModelError, ConfigError or EngineDeadError."""
