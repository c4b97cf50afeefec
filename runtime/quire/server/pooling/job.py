"""One HTTP request whose prompts become vectors.

They may be thousands. The engine has a `Window` of them at a time, the next ones come as vectors do: others that ask meanwhile wait for
a few of its steps, not for all of them, and the request counts as one of those that may wait.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Self
from uuid import uuid4

from quire.metrics import EngineMetrics
from quire.outputs.choice import failure
from quire.request import FinishReason, PoolRequest, TokenDelta
from quire.server.flight.frontend import Frontend
from quire.server.flight.work import Usage, Work

WINDOW_STEPS = 4
"""How many of its steps the engine has work for. Prompts count whole until their vectors are here: one step may be computed, one be on its
way back and a prompt too long for the rest of the window, and there is still one to go on with."""


@dataclass(frozen=True)
class Prompt:
    """Token ids and their segments (see `PoolRequest`), packed: a request brings millions."""

    token_ids: array[int]
    token_type_ids: array[int]

    @classmethod
    def of(cls, token_ids: Sequence[int], token_type_ids: Sequence[int] = ()) -> Self:
        return cls(array("I", token_ids), array("B", token_type_ids))


@dataclass(slots=True)
class Pooled:
    """One prompt, and its vector (float32 in little-endian order) when it is there."""

    request_id: str
    index: int
    prompt: Prompt
    num_cached_tokens: int = 0
    scheduled: bool = False
    finish_reason: FinishReason | None = None
    vector: bytes = b""

    @property
    def prompt_index(self) -> int:
        return self.index

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        return self.prompt.token_ids

    def see(self, delta: TokenDelta) -> bool:
        if self.scheduled:
            return False
        self.scheduled = True
        self.num_cached_tokens = delta.num_cached_tokens
        return True


@dataclass(slots=True)
class Window:
    """What the engine has of one request at a time: as many prompts, and as many tokens of them, but one prompt at least."""

    max_prompts: int
    max_tokens: int
    num_prompts: int = 0
    num_tokens: int = 0

    def takes(self, length: int) -> bool:
        """Whether there is room for a prompt of so many tokens."""
        if not self.num_prompts:
            return True
        return self.num_prompts < self.max_prompts and self.num_tokens + length <= self.max_tokens

    def add(self, length: int) -> None:
        self.num_prompts += 1
        self.num_tokens += length

    def remove(self, length: int) -> None:
        self.num_prompts -= 1
        self.num_tokens -= length


class PoolJob(Work[Pooled]):
    """See the module. hand_over: gives prompts to the engine. settled: told of each that needs nothing more."""

    def __init__(
        self,
        choices: list[Pooled],
        metrics: EngineMetrics,
        abort: Callable[[list[str]], None],
        *,
        queue_timeout_s: float,
        window: Window,
        hand_over: Callable[[PoolJob, list[Pooled]], Awaitable[None]],
        settled: Callable[[str], None],
    ) -> None:
        super().__init__(choices, metrics, abort, queue_timeout_s=queue_timeout_s)
        self._window = window
        self._hand_over = hand_over
        self._settled = settled
        self._held = deque(choices)

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=sum(len(one.prompt_token_ids) for one in self.choices),
            completion_tokens=0,
            cached_tokens=sum(one.num_cached_tokens for one in self.choices),
        )

    @property
    def num_tokens(self) -> int:
        return sum(len(one.prompt_token_ids) for one in self.choices if one.scheduled)

    @property
    def finish_reasons(self) -> list[str]:
        """Each one once: prompts may be thousands."""
        return list(dict.fromkeys(super().finish_reasons))

    async def vectors(self) -> list[bytes]:
        """All of them, in the order of the prompts. Raises what the job failed with."""
        left = len(self.choices)
        await self._fill()
        while left:
            one, delta = await self._next()
            if delta.finish_reason is FinishReason.ERROR:
                fault = failure(delta)
                self.finish(one, FinishReason.ERROR, fault)
                raise fault
            if delta.vector is not None:
                one.vector = delta.vector
                self.finish(one, FinishReason.STOP)
                self._settled(one.request_id)
                self._window.remove(len(one.prompt_token_ids))
                left -= 1
                await self._fill()
        return [one.vector for one in self.choices]

    async def _fill(self) -> None:
        """Hand over the next prompts, as far as the window goes."""
        fed: list[Pooled] = []
        while self._held and self._window.takes(len(self._held[0].prompt_token_ids)):
            fed.append(self._held.popleft())
            self._window.add(len(fed[-1].prompt_token_ids))
        if fed:
            await self._hand_over(self, fed)


@asynccontextmanager
async def pool_job(
    frontend: Frontend, prompts: Sequence[Prompt], *, priority: int = 0, cache_salt: str | None = None
) -> AsyncIterator[PoolJob]:
    """Run prompts that the caller has checked. Raises OverloadedError."""
    engine, config = frontend.admit(1), frontend.config

    async def hand_over(job: PoolJob, ones: list[Pooled]) -> None:
        now = monotonic()  # the place in the queue is that of a prompt's turn, not of the whole request
        await frontend.hand_over(
            engine,
            job,
            ones,
            [
                PoolRequest(
                    request_id=one.request_id,
                    prompt_token_ids=list(one.prompt.token_ids),
                    token_type_ids=list(one.prompt.token_type_ids),
                    arrival_s=now,
                    priority=priority,
                    cache_salt=cache_salt,
                )
                for one in ones
            ],
        )

    key = uuid4().hex
    job = PoolJob(
        [Pooled(f"{key}-{index}", index, prompt) for index, prompt in enumerate(prompts)],
        frontend.metrics,
        partial(frontend.abort, engine),
        queue_timeout_s=config.queue_timeout,
        window=Window(WINDOW_STEPS * config.max_num_seqs, WINDOW_STEPS * config.max_num_batched_tokens),
        hand_over=hand_over,
        settled=frontend.settled,
    )
    if config.log_requests:
        job.texts = []  # prompts are logged, vectors are not
    async with frontend.in_flight(job, engine):
        yield job
