"""What a request is told of a step's result."""

from __future__ import annotations

from quire.engine.results import NOT_FINITE, Extras, Fault
from quire.engine.sequence import Sequence
from quire.request import FinishReason, TokenDelta


def report(sequence: Sequence, token: int, reason: FinishReason | None, extras: Extras, place: int) -> TokenDelta:
    """The delta of a drawn token. place: where the step's results hold it. With the first token of a sequence come its waiting
    time, its hits and the log probabilities of its prompt."""
    first = not sequence.told
    sequence.told = True
    if reason is FinishReason.ERROR:
        return last_words(sequence, extras.errors.get(place, NOT_FINITE))
    queued = sequence.first_scheduled_s
    logprobs = extras.logprobs.get(place)
    return TokenDelta(
        request_id=sequence.request_id,
        token_ids=[token],
        finish_reason=reason,
        stop_token_id=token if reason is FinishReason.STOP else None,
        num_cached_tokens=sequence.num_cached if first else 0,
        queue_s=max(queued - sequence.arrival_s, 0.0) if first and queued is not None else None,
        logprobs=None if logprobs is None else [logprobs],
        prompt_logprobs=sequence.prompt_logprobs if first and sequence.params.prompt_logprobs is not None else None,
    )


def last_words(sequence: Sequence, fault: Fault) -> TokenDelta:
    """The delta of a sequence that cannot go on."""
    return TokenDelta(
        request_id=sequence.request_id,
        token_ids=[],
        finish_reason=FinishReason.ERROR,
        error=fault.message,
        error_param=fault.param,
        error_passing=fault.passing,
    )
