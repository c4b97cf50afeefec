"""One sequence of a request on its way back: token ids become safe text, a stop string ends it, the last piece says why."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from quire.engine.seeds import nth_seed
from quire.errors import RequestError
from quire.request import AddRequest, FinishReason, SamplingParams, Sibling, TokenDelta, TokenLogprobs
from quire.text import TextStream, Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """What one delta adds to a choice: text (perhaps none) and token ids; the last piece has the finish reason.

    logprobs: one for each of the token ids, where asked for. stop_token: the last of them ended the text and is no part of it.
    """

    index: int
    text: str
    token_ids: Sequence[int] = ()
    finish_reason: FinishReason | None = None
    logprobs: Sequence[TokenLogprobs] = ()
    stop_token: bool = False


@dataclass(slots=True)
class Choice:
    """One sequence. `index` is its place among the choices of the answer, `prompt_index` that of its prompt.

    params: as the engine gets them. stops: what the caller called the tokens that end it (an end-of-sequence token has no
    entry). stop_reason: the stop string or token id of the caller that ended it. keep: how many choices of its prompt are wanted.
    tells_logprobs: the caller asked for log probabilities, not only the ranking of choices.
    logprob: the sum over its tokens, where the engine tells. prompt_logprobs: of the prompt's tokens from the second on.
    """

    request_id: str
    index: int
    prompt_index: int
    prompt_token_ids: list[int]
    params: SamplingParams
    text: TextStream
    stops: Mapping[int, int | str] = field(default_factory=dict)
    num_cached_tokens: int = 0
    scheduled: bool = False
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    keep: int = 1
    tells_logprobs: bool = False
    logprob: float = 0.0
    prompt_logprobs: list[TokenLogprobs] | None = None

    @property
    def mean_logprob(self) -> float:
        """Of its tokens; what `best_of` ranks by. One that failed is the last."""
        if self.finish_reason in (FinishReason.ERROR, FinishReason.ABORT, FinishReason.CONTENT_FILTER):
            return -math.inf
        return self.logprob / max(self.text.num_tokens, 1)

    def see(self, delta: TokenDelta) -> bool:
        """Note the first report of the engine; True where this is it."""
        if self.scheduled:
            return False
        self.scheduled = True
        self.num_cached_tokens = delta.num_cached_tokens
        return True

    def take(self, delta: TokenDelta) -> tuple[Piece, bool]:
        """What a report adds; True with it where a stop string ended the text, so that the engine must forget the sequence.

        Raises RequestError where the engine could not go on with it.
        """
        self.see(delta)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.finish_reason is FinishReason.ERROR:
            raise failure(delta)
        final = delta.finish_reason is not None
        before = self.text.num_tokens
        text = self.text.push(delta.token_ids, final=final, stop_token_id=delta.stop_token_id)
        reason, found = delta.finish_reason, self.text.stop_found
        if found is not None:
            reason, self.stop_reason = FinishReason.STOP, found
        elif delta.stop_token_id is not None:
            self.stop_reason = self.stops.get(delta.stop_token_id)
        count = self.text.num_tokens - before
        used, logprobs = delta.token_ids[:count], (delta.logprobs or [])[:count]
        self.logprob += sum(one.logprobs[0] for one in logprobs)
        hidden_stop = (
            delta.stop_token_id is not None
            and count == len(delta.token_ids)
            and not self.params.include_stop_str_in_output
        )
        piece = Piece(self.index, text, used, reason, logprobs if self.tells_logprobs else (), hidden_stop)
        return piece, found is not None and not final


def failure(delta: TokenDelta) -> RequestError:
    """What is to be said of a report that the engine could not go on."""
    if delta.error_param is not None:
        return RequestError(delta.error or "bad value", param=delta.error_param, code="invalid_value")
    code, status = ("try_again", 503) if delta.error_passing else ("engine_error", 500)
    message = f"the engine could not go on with this request: {delta.error or 'unknown cause'}"
    return RequestError(message, code=code, status=status)


def choices_of(
    request_id: str,
    prompt_token_ids: list[int],
    params: SamplingParams,
    tokenizer: Tokenizer,
    *,
    prompt_index: int = 0,
    first: int = 0,
    stops: Mapping[int, int | str] | None = None,
    visible: frozenset[int] = frozenset(),
) -> list[Choice]:
    """The sequences of one prompt, `best_of` or else `n`, as `request_id-index`, with indices from `first`.

    params: resolved (`Tokenizer.resolve`). With a seed, each choice has its own, so that n answers differ and repeat. The
    prompt's log probabilities are asked for once. visible: special tokens that are text all the same.
    """
    choices: list[Choice] = []
    for number in range(params.num_sequences):
        seed = None if params.seed is None else nth_seed(params.seed, number)
        own = msgspec.structs.replace(
            params,
            n=1,
            best_of=None,
            seed=seed,
            logprobs=0 if params.logprobs is None and params.num_sequences > params.n else params.logprobs,
            prompt_logprobs=params.prompt_logprobs if number == 0 else None,
        )
        choices.append(
            Choice(
                request_id=f"{request_id}-{first + number}",
                index=first + number,
                prompt_index=prompt_index,
                prompt_token_ids=prompt_token_ids,
                params=params if params.num_sequences == 1 else own,
                text=tokenizer.stream(params, visible=visible),
                stops=stops or {},
                keep=params.n,
                tells_logprobs=params.logprobs is not None,
            )
        )
    return choices


def kept(choices: Sequence[Choice]) -> list[Choice]:
    """The choices that come back, in order: of a prompt that has more than it keeps, those whose tokens are likeliest on
    average (`best_of`), best first."""
    found: list[Choice] = []
    for _, group in itertools.groupby(choices, key=lambda choice: choice.prompt_index):
        own = list(group)
        if len(own) > own[0].keep:
            own = sorted(own, key=lambda choice: -choice.mean_logprob)[: own[0].keep]
        found += own
    return found


def lost(choices: Sequence[Choice], failed: Choice) -> bool:
    """Whether too many choices of a prompt have failed, now that `failed` has: `best_of` may lose those that do not come back."""
    own = [choice for choice in choices if choice.prompt_index == failed.prompt_index]
    return sum(choice.finish_reason is not FinishReason.ERROR for choice in own) < failed.keep


def requests_of(
    choices: Sequence[Choice], *, arrival_s: float, priority: int = 0, cache_salt: str | None = None
) -> list[AddRequest]:
    """What the engine gets for choices as `choices_of` makes them: a request for each prompt, its other choices as siblings."""
    requests: list[AddRequest] = []
    for _, same in itertools.groupby(choices, key=lambda choice: choice.prompt_index):
        first, *others = same
        requests.append(
            AddRequest(
                request_id=first.request_id,
                prompt_token_ids=first.prompt_token_ids,
                params=first.params,
                arrival_s=arrival_s,
                priority=priority,
                cache_salt=cache_salt,
                siblings=tuple(Sibling(request_id=other.request_id, seed=other.params.seed) for other in others),
            )
        )
    return requests
