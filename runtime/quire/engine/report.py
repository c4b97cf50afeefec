"""What a request is told of a step's result."""

from __future__ import annotations

import msgspec

from quire.engine.results import NOT_FINITE, Extras, Fault
from quire.engine.sequence import Sequence
from quire.request import FinishReason, TokenDelta


def report(sequence: Sequence, token: int, reason: FinishReason | None, extras: Extras, place: int) -> TokenDelta:
    """The delta of a drawn token. place: where the step's results hold it."""
    if reason is FinishReason.ERROR:
        return last_words(sequence, extras.errors.get(place, NOT_FINITE))
    logprobs = extras.logprobs.get(place)
    return _introduced(
        sequence,
        TokenDelta(
            request_id=sequence.request_id,
            token_ids=[token],
            finish_reason=reason,
            stop_token_id=token if reason is FinishReason.STOP else None,
            logprobs=None if logprobs is None else [logprobs],
        ),
    )


def progress(sequence: Sequence, vector: bytes | None) -> TokenDelta:
    """Of a prompt that becomes a vector: the last delta, or before there is one that it runs."""
    done = None if vector is None else FinishReason.STOP
    return _introduced(
        sequence, TokenDelta(request_id=sequence.request_id, token_ids=[], finish_reason=done, vector=vector)
    )


def last_words(sequence: Sequence, fault: Fault) -> TokenDelta:
    """The delta of a sequence that cannot go on."""
    return _introduced(
        sequence,
        TokenDelta(
            request_id=sequence.request_id,
            token_ids=[],
            finish_reason=FinishReason.ERROR,
            error=fault.message,
            error_param=fault.param,
            error_passing=fault.passing,
        ),
    )


def _introduced(sequence: Sequence, delta: TokenDelta) -> TokenDelta:
    """With the first delta of a sequence come its waiting time, its hits and the log probabilities of its prompt, also where it is
    the last one: siblings may go on, and theirs does not say it."""
    if sequence.told:
        return delta
    sequence.told = True
    queued = sequence.first_scheduled_s
    asked = sequence.params.prompt_logprobs is not None and not sequence.missing_prompt_logprobs
    return msgspec.structs.replace(
        delta,
        num_cached_tokens=sequence.num_cached,
        queue_s=None if queued is None else max(queued - sequence.arrival_s, 0.0),
        prompt_logprobs=sequence.prompt_logprobs if asked else None,
    )
