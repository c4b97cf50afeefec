"""What crosses between server and engine: sampling parameters, requests, token deltas, step statistics.

Plain msgspec structs, encoded with msgpack on the ZeroMQ sockets. Nothing here knows text, HTTP or torch.
All times are seconds of CLOCK_MONOTONIC, which both processes share.
"""

from __future__ import annotations

import enum
import math
from typing import Any

import msgspec

from quire.errors import RequestError


class FinishReason(enum.StrEnum):
    """Why a sequence ended; `requests_finished_total{finish_reason}` uses the same words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RequestOutputKind(enum.Enum):
    """What each `RequestOutput` of a stream holds: all so far, only what is new, or nothing before the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How tokens are drawn and when to stop. Names and defaults are those that users of vLLM know.

    temperature: 0 is greedy. top_k: 0 or -1 is off. top_p: (0, 1], 1 is off.
    seed: the same seed gives the same tokens whatever else is in the batch; None draws a fresh one.
    stop: strings; the text ends before the earliest match. stop_token_ids: token ids that end the sequence.
    max_tokens: generated tokens at most; None is up to the model's length.
    ignore_eos: keep going past the end-of-sequence tokens (benchmarks).
    output_kind: what streams of the Python API hold; the engine does not look at it.

    Fields may be set later; whoever takes parameters checks them anew with `clone`.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = 16
    ignore_eos: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        # One string, as programs write it for other engines, is one stop string and not its characters.
        if isinstance(self.stop, str):
            msgspec.structs.force_setattr(self, "stop", (self.stop,))

        def bad(param: str, value: object, bound: str) -> RequestError:
            return RequestError(f"{param} must be {bound}, got {value!r}", param=param, code="invalid_value")

        if not 1 <= self.n <= 128:
            raise bad("n", self.n, "between 1 and 128")
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= 100.0):
            raise bad("temperature", self.temperature, "between 0 and 100")
        if not -1 <= self.top_k < 2**63:
            raise bad("top_k", self.top_k, "-1 (off), 0 (off) or a positive 64-bit integer")
        if not (math.isfinite(self.top_p) and 0.0 < self.top_p <= 1.0):
            raise bad("top_p", self.top_p, "above 0 and at most 1")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise bad("seed", self.seed, "a 64-bit integer")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise bad("max_tokens", self.max_tokens, "at least 1")
        if len(self.stop) > 16:
            raise bad("stop", f"{len(self.stop)} strings", "at most 16 strings")
        if any(not s for s in self.stop):
            raise bad("stop", "", "non-empty strings")

    @classmethod
    def from_optional(cls, **fields: Any) -> SamplingParams:
        """Parameters from fields of which those that are None keep their defaults; raises RequestError."""
        return cls(**{name: value for name, value in fields.items() if value is not None})

    def clone(self) -> SamplingParams:
        """An independent copy, checked; raises RequestError that names a field out of bounds."""
        return msgspec.structs.replace(self)

    @property
    def greedy(self) -> bool:
        """True where the most likely token is taken."""
        return self.temperature < 1e-5


# --- server to engine ------------------------------------------------------------------------------------------


class AddRequest(msgspec.Struct, frozen=True, kw_only=True, tag="add"):
    """One sequence to generate. `request_id` is unique among live requests; n > 1 arrives as n requests.

    `params.max_tokens` is already resolved (never None) and prompt + max_tokens fits the model's length.
    priority: lower is more urgent; only the scheduler policy `priority` reads it. cache_salt: only requests of the same salt
    share prefix-cache blocks; None is a salt of its own.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival_s: float
    priority: int = 0
    cache_salt: str | None = None


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Forget these requests and free their blocks within the current step; unknown ids are ignored."""

    request_ids: list[str]


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset_prefix_cache"):
    """Forget all cached prompts: requests sent after this find nothing."""


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    """Stop the step loop and exit 0."""


ToEngine = AddRequest | AbortRequest | ResetPrefixCache | Shutdown

# --- engine to server ------------------------------------------------------------------------------------------


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of one request. The last delta of a request carries `finish_reason`.

    stop_token_id: the token that ended it (it is the last of `token_ids`; it is no part of the text), else None.
    num_cached_tokens: prompt tokens found in the prefix cache. queue_s: arrival to first scheduling.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    queue_s: float | None = None
    error: str | None = None


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


class StepOutputs(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """What one step produced. Also sent without deltas, at least once a second, as heartbeat and gauge update."""

    deltas: list[TokenDelta]
    stats: StepStats


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Sent once, when the first request may be sent.

    info: the labels of the metric `engine_info`. startup_s: seconds per stage of `startup_seconds`.
    """

    max_model_len: int
    num_blocks: int
    block_size: int
    vocab_size: int  # the model's output size, the bound of token ids in requests
    info: dict[str, str]
    startup_s: dict[str, float]


class EngineFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The engine cannot start or go on; the process exits non-zero right after. `kind` is an error class name."""

    kind: str
    message: str


FromEngine = StepOutputs | EngineReady | EngineFailed


MAX_SALT_CHARS = 1024


def checked_priority(priority: int | None, *, policy: str) -> int:
    """A request's priority; raises RequestError where it is out of bounds or the scheduler policy does not read it."""
    if not priority:
        return 0
    if not -(2**31) <= priority < 2**31:
        raise RequestError(
            f"priority must be a 32-bit integer (lower is more urgent), got {priority}",
            param="priority",
            code="invalid_value",
        )
    if policy != "priority":
        raise RequestError(
            f"priority {priority} has no effect under the scheduler policy {policy}; start with --scheduler-policy=priority",
            param="priority",
            code="unsupported_parameter",
        )
    return priority


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


def sampling_params_from(fields: dict[str, Any]) -> SamplingParams:
    """Build parameters from loosely typed fields (a request body); raises RequestError that names the field."""
    try:
        return msgspec.convert(fields, SamplingParams, strict=True)
    except msgspec.ValidationError as exc:
        raise RequestError(str(exc), param=str(exc).rpartition("`$.")[2].rstrip("`") or None) from exc
