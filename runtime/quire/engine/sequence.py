"""The life of one request inside the engine."""

from __future__ import annotations

import enum
from typing import Any

from quire.kvcache.manager import BlockTable
from quire.kvcache.pool import Block
from quire.request import AddRequest, FinishReason, PoolRequest, SamplingParams, TokenLogprobs


class State(enum.Enum):
    """HELD waits outside the queue for what it needs to run; WAITING holds no blocks; RUNNING may; SWAPPED waits and holds blocks of the
    host pool; FINISHED has given them back."""

    HELD = enum.auto()
    WAITING = enum.auto()
    RUNNING = enum.auto()
    SWAPPED = enum.auto()
    FINISHED = enum.auto()


class Sequence:
    """Tokens, how many of them are computed, and where their keys and values lie.

    num_computed counts tokens whose keys and values are in the cache; `len(tokens) - num_computed` are to be computed, one in
    plain decoding. The newest token is never computed yet.

    followers: sequences of the same prompt that wait for this one, their leader, to compute it; they fork from it with its
    first token. A follower is in no queue.

    draws: whether a token is drawn when all it has is computed.
    """

    draws = True

    __slots__ = (
        "admitted",
        "arrival_s",
        "first_scheduled_s",
        "followers",
        "host_blocks",
        "host_generation",
        "leader",
        "max_tokens",
        "num_cached",
        "num_computed",
        "num_prompt",
        "order",
        "params",
        "priority",
        "processors",
        "prompt_logprobs",
        "request_id",
        "scratch",
        "seed",
        "state",
        "stop_ids",
        "table",
        "tokens",
        "told",
    )

    def __init__(
        self,
        request: AddRequest | PoolRequest,
        *,
        request_id: str,
        table: BlockTable,
        stop_ids: frozenset[int],
        seed: int,
        max_tokens: int,
        order: int,
    ) -> None:
        self.request_id = request_id
        self.params: SamplingParams = request.params
        self.tokens = list(request.prompt_token_ids)
        self.num_prompt = len(self.tokens)
        self.num_computed = 0
        self.num_cached = 0
        self.max_tokens = max_tokens
        self.stop_ids = stop_ids
        self.seed = seed
        self.priority = request.priority
        self.arrival_s = request.arrival_s
        self.order = order
        self.admitted: int | None = None  # how many were admitted before its first admission
        self.first_scheduled_s: float | None = None
        self.state = State.WAITING
        self.told = False  # whether anything of it was reported
        self.table = table
        self.host_blocks: list[Block] = []
        self.host_generation = 0  # of the pool, when they were stored
        self.leader: Sequence | None = None
        self.followers: list[Sequence] = []
        self.processors: tuple[int, ...] | None = None  # this and scratch belong to `engine.sampling`
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.scratch: dict[str, Any] = {}

    @property
    def missing_prompt_logprobs(self) -> bool:
        """True while positions of the prompt must be computed, and not just found in a cache, for their log probabilities."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt - 1

    @property
    def needs_prompt(self) -> bool:
        """True while hidden states of the prompt are wanted, so that finding its keys and values in a cache is of no use."""
        return self.missing_prompt_logprobs

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    def append(self, token: int) -> FinishReason | None:
        """Add a generated token; why the sequence ends with it, if it does."""
        self.tokens.append(token)
        if token in self.stop_ids:
            return FinishReason.STOP
        if len(self.tokens) - self.num_prompt >= self.max_tokens:
            return FinishReason.LENGTH
        return None
