"""An engine for server tests that says what it is told: at the server's own seam, without a process or a model.

Every request is answered by `reply(request)` (token ids; the end token follows by itself), one token of each live request
per step. With `pool` it is an engine that makes vectors, `pool(request)` for each prompt. With `hold()` nothing moves until `release()`; `step()` takes exactly one step. No clocks, no sleeps.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.errors import EngineDeadError
from quire.request import (
    AddRequest,
    EngineReady,
    FinishReason,
    PoolingFacts,
    PoolRequest,
    StepOutputs,
    StepStats,
    TokenDelta,
    TokenLogprobs,
    params_of_siblings,
)

Reply = Callable[[AddRequest], Sequence[int]]
Pool = Callable[[PoolRequest], Sequence[float]]
END = 2
NUM_BLOCKS = 100


@dataclass
class Live:
    request: Any
    tokens: list[int]
    produced: int = 0


class ScriptedEngine:
    """See the module. `requests` and `aborted` are what the server sent."""

    def __init__(
        self,
        reply: Reply = lambda _: (),
        *,
        max_model_len: int = 128,
        vocab_size: int = 300,
        per_step: int = 1,
        pool: Pool | None = None,
        facts: PoolingFacts | None = None,
    ) -> None:
        """facts: of the vectors of `pool`."""
        self.reply = reply
        self.pool = pool
        self.ready = EngineReady(
            max_model_len=max_model_len,
            num_blocks=NUM_BLOCKS,
            block_size=16,
            vocab_size=vocab_size,
            info={"version": "0", "device": "cpu", "dtype": "float32"},
            startup_s={"weights": 0.5},
            pooling=facts,
        )
        self.per_step = per_step
        self.requests: list[Any] = []
        self.aborted: list[str] = []
        self.closed = False
        self.num_waiting = 0
        self._live: dict[str, Live] = {}
        self._events: asyncio.Queue[StepOutputs | BaseException] = asyncio.Queue()
        self._held = False
        self._changed = asyncio.Event()
        self._noticed = asyncio.Event()

    # --- the seam ---

    async def add(self, request: AddRequest | PoolRequest, /) -> None:
        """Each sibling counts as a request of its own."""
        if isinstance(request, PoolRequest):
            self.requests.append(request)
            self._live[request.request_id] = Live(request, [])
        else:
            for one in apart(request):
                self.requests.append(one)
                self._live[one.request_id] = Live(one, [*self.reply(one), END])
        self._changed.set()
        self._noticed.set()

    async def abort(self, request_ids: Sequence[str], /) -> None:
        for request_id in request_ids:
            self.aborted.append(request_id)
            self._live.pop(request_id, None)
        self._changed.set()
        self._noticed.set()

    async def outputs(self) -> AsyncIterator[StepOutputs]:
        while not self.closed:
            if self._events.empty() and self._live and not self._held:
                self.step()
                await asyncio.sleep(0)
            if self._events.empty():
                await self._wait()
                continue
            event = self._events.get_nowait()
            if isinstance(event, BaseException):
                raise event
            yield event

    async def close(self, *, at_once: asyncio.Event | None = None) -> None:
        self.closed = True
        self._changed.set()

    # --- what tests do ---

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False
        self._changed.set()

    def step(self) -> None:
        """One token (or `per_step`) for every live request."""
        deltas = [self._advance(live) for live in list(self._live.values())]
        self._events.put_nowait(StepOutputs(deltas=deltas, stats=self.stats(deltas)))
        self._changed.set()

    def fail(self, request_id: str, error: str, *, param: str | None = None) -> None:
        """This request alone cannot go on; param: because of this field."""
        live = self._live.pop(request_id)
        delta = TokenDelta(
            request_id=request_id,
            token_ids=[],
            finish_reason=FinishReason.ERROR,
            error=error,
            error_param=param,
            **introduction(live),
        )
        self._events.put_nowait(StepOutputs(deltas=[delta], stats=self.stats([])))
        self._changed.set()

    def die(self, cause: str) -> None:
        self._events.put_nowait(EngineDeadError(cause))
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the server has done something to this engine."""
        async with asyncio.timeout(30):
            while not condition():
                self._noticed.clear()
                await self._noticed.wait()

    def stats(self, deltas: Sequence[TokenDelta]) -> StepStats:
        return StepStats(
            num_waiting=self.num_waiting,
            num_running=len(self._live),
            num_swapped=0,
            num_blocks=NUM_BLOCKS,
            num_blocks_used=len(self._live),
            step_s=0.001,
            batch_size=len(deltas),
            num_prompt_tokens=0,
            num_generated_tokens=len(deltas),
            prefix_cache_queries=len(self.requests) * 10,
            prefix_cache_hits=len(self.requests),
            preemptions_recompute=0,
            preemptions_swap=0,
            heartbeat_s=time.monotonic(),
        )

    async def _wait(self) -> None:
        self._changed.clear()
        if self._events.empty() and (self._held or not self._live) and not self.closed:
            await self._changed.wait()

    def _advance(self, live: Live) -> TokenDelta:
        request, once = live.request, introduction(live)
        if isinstance(request, PoolRequest):
            assert self.pool is not None, "this engine generates"
            del self._live[request.request_id]
            numbers = self.pool(request)
            vector = struct.pack(f"<{len(numbers)}f", *numbers)
            return TokenDelta(
                request_id=request.request_id, token_ids=[], finish_reason=FinishReason.STOP, vector=vector, **once
            )
        ids: list[int] = []
        reason, stop_id = None, None
        while len(ids) < self.per_step and reason is None:
            token = live.tokens[min(live.produced, len(live.tokens) - 1)]  # the end token again, where it ends nothing
            ids.append(token)
            live.produced += 1
            if token in request.params.stop_token_ids:
                reason, stop_id = FinishReason.STOP, token
            elif live.produced == request.params.max_tokens:
                reason = FinishReason.LENGTH
        if reason is not None:
            del self._live[request.request_id]
        asked = request.params.logprobs
        return TokenDelta(
            request_id=request.request_id,
            token_ids=ids,
            logprobs=None if asked is None else [logprobs_of(token, asked) for token in ids],
            finish_reason=reason,
            stop_token_id=stop_id,
            **once,
        )


def apart(request: AddRequest) -> list[AddRequest]:
    """A request and each of its siblings, as requests that share nothing."""
    params = params_of_siblings(request)
    return [msgspec.structs.replace(request, siblings=())] + [
        msgspec.structs.replace(
            request,
            request_id=sibling.request_id,
            params=msgspec.structs.replace(params, seed=sibling.seed),
            siblings=(),
        )
        for sibling in request.siblings
    ]


def introduction(live: Live) -> dict[str, Any]:
    """What only the first report of a request has, fields of TokenDelta."""
    if live.produced:
        return {}
    wanted, prompt = live.request.params.prompt_logprobs, live.request.prompt_token_ids
    asked = None if wanted is None else [logprobs_of(token, wanted) for token in prompt[1:]]
    return {"num_cached_tokens": 1, "queue_s": 0.001, "prompt_logprobs": asked}


def logprobs_of(token: int, top: int) -> TokenLogprobs:
    """What this engine says of a token: a number that tells it from others, and the likeliest ones, 3, 4, 5, ..."""
    return TokenLogprobs([token, *range(3, 3 + top)], [-token / 100, *(-i / 10 for i in range(top))], 7)
