"""What crosses between server and engine: sampling parameters, requests, token deltas, step statistics.

Plain msgspec structs, encoded with msgpack on the ZeroMQ sockets. Nothing here knows text, HTTP or torch.
All times are seconds of CLOCK_MONOTONIC, which both processes share.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from quire import kinds
from quire.errors import RequestError, shown
from quire.sampling_params import RequestOutputKind, SamplingParams

__all__ = [
    "AbortRequest",
    "AddRequest",
    "EngineFailed",
    "EngineReady",
    "FinishReason",
    "FromEngine",
    "PoolRequest",
    "PoolingFacts",
    "RequestOutputKind",
    "SamplingParams",
    "Shutdown",
    "StepOutputs",
    "StepStats",
    "ToEngine",
    "TokenDelta",
    "TokenLogprobs",
    "checked_priority",
    "checked_salt",
    "params_of_siblings",
]


class FinishReason(enum.StrEnum):
    """Why a sequence ended; `requests_finished_total{finish_reason}` uses the same words, and `refused` for an ERROR by the request's own fault."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    CONTENT_FILTER = "content_filter"
    """Only said by the server, where a filter refused what follows."""


# --- server to engine ------------------------------------------------------------------------------------------


class Sibling(msgspec.Struct, frozen=True, kw_only=True):
    """One more answer to a request's prompt, with the same parameters (`params_of_siblings`) but its own id and seed."""

    request_id: str
    seed: int | None = None


class AddRequest(msgspec.Struct, frozen=True, kw_only=True, tag="add"):
    """One sequence to generate, and its siblings. `request_id` is unique among live requests, siblings' too; from here on each
    lives on its own. The prompt is computed once for all of them.

    Prompt and `params.max_tokens` together fit the model's length; None is what the prompt leaves of it.
    priority: lower is more urgent; only the scheduler policy `priority` reads it. cache_salt: only requests of the same salt
    share prefix-cache blocks; None is a salt of its own.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival_s: float
    priority: int = 0
    cache_salt: str | None = None
    siblings: tuple[Sibling, ...] = ()


def params_of_siblings(request: AddRequest) -> SamplingParams:
    """What holds for them: the prompt is theirs too, but its log probabilities are computed and told once."""
    if request.params.prompt_logprobs is None:
        return request.params
    return msgspec.structs.replace(request.params, prompt_logprobs=None)


_NOTHING_DRAWN = SamplingParams()


class PoolRequest(msgspec.Struct, frozen=True, kw_only=True, tag="pool"):
    """One prompt to compute, and nothing to generate: what comes back is one vector (`TokenDelta.vector`).

    token_type_ids: the segment of each token, for encoders that read pairs; empty: all are in the first one. Others: see `AddRequest`.
    """

    request_id: str
    prompt_token_ids: list[int]
    arrival_s: float
    token_type_ids: list[int] = []
    priority: int = 0
    cache_salt: str | None = None

    @property
    def params(self) -> SamplingParams:
        """What a sequence of it has as sampling parameters: none are ever read for a token."""
        return _NOTHING_DRAWN


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Forget these requests and free their blocks within the current step; unknown ids are ignored."""

    request_ids: list[str]


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset_prefix_cache"):
    """Forget all cached prompts: requests sent after this find nothing."""


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    """Stop the step loop and exit 0."""


ToEngine = AddRequest | PoolRequest | AbortRequest | ResetPrefixCache | Shutdown

# --- engine to server ------------------------------------------------------------------------------------------


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities at one token. token_ids, logprobs: of the token itself, then of the likeliest ones, as many as were asked
    for. rank: the token's place by probability, from 1."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New tokens of one request. The last delta of a request carries `finish_reason`.

    stop_token_id: the token that ended it (it is the last of `token_ids`; it is no part of the text), else None.
    logprobs: one for each of `token_ids`, where asked for. num_cached_tokens: prompt tokens found in the prefix cache. queue_s: arrival
    to first scheduling. prompt_logprobs: one for each token of the prompt from its second on, where asked for. These three come once, with
    its first delta, even where that says that it failed.
    error_param: the field of the request that is at fault, where the request is (400) and not the engine (500). error_passing: neither
    is, and it may be sent again (503).
    vector: what a prompt was pooled to, float32 in little-endian order; with the last delta of a `PoolRequest`.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    queue_s: float | None = None
    error: str | None = None
    error_param: str | None = None
    error_passing: bool = False
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    vector: bytes | None = None


class GrammarStats(msgspec.Struct, frozen=True, kw_only=True):
    """Of structured outputs. num_live: grammars that have a process. compile_s: seconds of each compilation that ended in the step.
    mask_s: seconds that the step waited for masks, where it did. Others are totals since the start."""

    num_live: int
    num_compilations: int
    failures: dict[str, int]  # by reason: grammars, and sequences that theirs failed alone
    compile_s: list[float] = []
    mask_s: list[float] = []


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state after a step; counters are totals since the start."""

    num_waiting: int
    num_running: int
    num_swapped: int
    num_blocks: int
    num_blocks_used: int  # held by live requests; cached but unreferenced blocks are not in use
    step_s: float  # how long the step took; 0 for a report without a step
    batch_size: int  # sequences in the step
    num_prompt_tokens: int  # prompt tokens computed in the step
    num_generated_tokens: int
    prefix_cache_queries: int  # tokens looked up, total
    prefix_cache_hits: int  # tokens found, total
    preemptions_recompute: int
    preemptions_swap: int
    heartbeat_s: float
    num_swap_blocks: int = 0  # of the host pool; 0 where there is none
    num_swap_blocks_used: int = 0
    kv_utilization: float = 1.0  # computed tokens / slots of the blocks held
    grammars: GrammarStats | None = None
    device_busy: float | None = None  # share of time, 0..1; of a GPU
    device_memory: float | None = None  # share in use, 0..1; of a GPU
    kv_faults: int = 0  # violations of the KV cache's bookkeeping that were found and healed, total


class StepOutputs(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """What one step produced. Also sent without deltas, at least once a second, as heartbeat and gauge update."""

    deltas: list[TokenDelta]
    stats: StepStats


class PoolingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Of a model that makes vectors of prompts. size: numbers of a vector. normalised: its length is 1.

    task: embed: the vector stands for the prompt; score: it is what a classification head says of it, or of a pair.
    """

    task: Literal["embed", "score"]
    size: int
    normalised: bool


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Sent once, when the first request may be sent.

    info: the labels of the metric `engine_info`. startup_s: seconds per stage of `startup_seconds`. pooling: None where the model
    generates; else it takes no `AddRequest`, only `PoolRequest`.
    """

    max_model_len: int
    num_blocks: int
    block_size: int
    vocab_size: int  # the model's output size, the bound of token ids in requests
    info: dict[str, str]
    startup_s: dict[str, float]
    pooling: PoolingFacts | None = None


class EngineFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The engine cannot start or go on; the process exits non-zero right after. `kind` is an error class name."""

    kind: str
    message: str


FromEngine = StepOutputs | EngineReady | EngineFailed


MAX_SALT_CHARS = 1024


def checked_priority(priority: int | None, *, policy: str) -> int:
    """A request's priority; raises RequestError where it is out of bounds or the scheduler policy does not read it."""
    if priority is None:
        return 0
    try:
        plain = kinds.INTEGER.convert(priority)
    except (TypeError, OverflowError):
        plain = None
    if plain is None or not -(2**31) <= plain < 2**31:
        raise RequestError(
            f"priority must be a 32-bit integer (lower is more urgent), got {shown(priority)}",
            param="priority",
            code="invalid_value",
        )
    if plain and policy != "priority":
        raise RequestError(
            f"priority {priority} has no effect under the scheduler policy {policy}; start with --scheduler-policy=priority",
            param="priority",
            code="unsupported_parameter",
        )
    return int(plain)


def checked_salt(cache_salt: str | None) -> str | None:
    """A request's cache salt; raises RequestError where it is empty or too long."""
    if cache_salt is not None and not (isinstance(cache_salt, str) and 1 <= len(cache_salt) <= MAX_SALT_CHARS):
        got = f"{len(cache_salt)}" if isinstance(cache_salt, str) else type(cache_salt).__name__
        raise RequestError(
            f"cache_salt must be a text of 1 to {MAX_SALT_CHARS} characters, got {got}",
            param="cache_salt",
            code="invalid_value",
        )
    return cache_salt
