"""One HTTP request whose prompts become vectors."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from quire.outputs.choice import failure
from quire.request import FinishReason, PoolRequest, TokenDelta
from quire.server.flight.frontend import Frontend
from quire.server.flight.work import Usage, Work


@dataclass(frozen=True)
class Prompt:
    """token_type_ids: see `PoolRequest`."""

    token_ids: list[int]
    token_type_ids: list[int]


@dataclass(slots=True)
class Pooled:
    """One prompt, and its vector (float32 in little-endian order) when it is there."""

    request_id: str
    index: int
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    scheduled: bool = False
    finish_reason: FinishReason | None = None
    vector: bytes = b""

    @property
    def prompt_index(self) -> int:
        return self.index

    def see(self, delta: TokenDelta) -> bool:
        if self.scheduled:
            return False
        self.scheduled = True
        self.num_cached_tokens = delta.num_cached_tokens
        return True


class PoolJob(Work[Pooled]):
    """See the module."""

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
        left = len(self.unfinished)
        while left:
            one, delta = await self._next()
            if delta.finish_reason is FinishReason.ERROR:
                self.finish(one, FinishReason.ERROR)
                raise failure(delta)
            if delta.vector is not None:
                one.vector = delta.vector
                self.finish(one, FinishReason.STOP)
                left -= 1
        return [one.vector for one in self.choices]


@asynccontextmanager
async def pool_job(
    frontend: Frontend, prompts: Sequence[Prompt], *, param: str, priority: int = 0, cache_salt: str | None = None
) -> AsyncIterator[PoolJob]:
    """Run prompts that the caller has checked. param: the field that they came from. Raises OverloadedError, or RequestError where they
    are too many."""
    engine = frontend.admit(len(prompts), "the prompts", param)
    key = uuid.uuid4().hex
    job = PoolJob(
        [Pooled(f"{key}-{index}", index, prompt.token_ids) for index, prompt in enumerate(prompts)],
        frontend.metrics,
        partial(frontend.abort, engine),
        queue_timeout_s=frontend.config.queue_timeout,
    )
    if frontend.config.log_requests:
        job.texts = []  # prompts are logged, vectors are not
    requests = [
        PoolRequest(
            request_id=one.request_id,
            prompt_token_ids=prompt.token_ids,
            token_type_ids=prompt.token_type_ids,
            arrival_s=job.arrival_s,
            priority=priority,
            cache_salt=cache_salt,
        )
        for one, prompt in zip(job.choices, prompts, strict=True)
    ]
    async with frontend.in_flight(job, requests, engine):
        yield job
