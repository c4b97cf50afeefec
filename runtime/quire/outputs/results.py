"""What the Python API answers with; names and meanings as users of vLLM know them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log probability of a token at its place, by the model's own logits. rank: from 1, the likeliest."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One answer of a request.

    index: its number among the request's n answers. text, token_ids: what was generated (of a stream with output kind
    delta: what is new). cumulative_logprob, logprobs: only where logprobs were asked for;
    for each token a mapping from token id, the token's own first. finish_reason: `stop`, `length`, `abort` or
    `error`; None while it goes on. stop_reason: the stop string or stop token id of the sampling parameters that ended it; None
    for the end-of-sequence token. error: the cause where finish_reason is `error`.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    def finished(self) -> bool:
        """True where nothing more will come."""
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """A prompt and its answers.

    prompt: the text, None where token ids were given. prompt_logprobs: one entry a prompt token, None for the first, only where asked for. outputs: the
    answers, by index. finished: all of them have ended. num_cached_tokens: prompt tokens found in the prefix cache. metrics: None;
    times are in the server's /metrics.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int = 0
    metrics: None = None
