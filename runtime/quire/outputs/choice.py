"""One sequence of a request on its way back: token ids become safe text, a stop string ends it, the last piece says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from quire.engine.seeds import nth_seed
from quire.errors import RequestError
from quire.request import FinishReason, SamplingParams, TokenDelta
from quire.text import TextStream, Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """What one delta adds to a choice: text (perhaps none) and token ids; the last piece has the finish reason."""

    index: int
    text: str
    token_ids: Sequence[int] = ()
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class Choice:
    """One sequence. `index` is its place among the choices of the answer, `prompt_index` that of its prompt.

    params: as the engine gets them. stops: what the caller called the tokens that end it (an end-of-sequence token has no
    entry). stop_reason: the stop string or token id of the caller that ended it.
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
        if delta.finish_reason is FinishReason.ERROR:
            raise RequestError(
                f"the engine could not go on with this request: {delta.error or 'unknown cause'}",
                code="engine_error",
                status=500,
            )
        final = delta.finish_reason is not None
        before = self.text.num_tokens
        text = self.text.push(delta.token_ids, final=final, stop_token_id=delta.stop_token_id)
        reason, found = delta.finish_reason, self.text.stop_found
        if found is not None:
            reason, self.stop_reason = FinishReason.STOP, found
        elif delta.stop_token_id is not None:
            self.stop_reason = self.stops.get(delta.stop_token_id)
        used = delta.token_ids[: self.text.num_tokens - before]
        return Piece(self.index, text, used, reason), found is not None and not final


def choices_of(
    request_id: str,
    prompt_token_ids: list[int],
    params: SamplingParams,
    tokenizer: Tokenizer,
    *,
    prompt_index: int = 0,
    first: int = 0,
    stops: Mapping[int, int | str] | None = None,
) -> list[Choice]:
    """The `params.n` sequences of one prompt, as `request_id-index`, with indices from `first`.

    params: resolved (`Tokenizer.resolve`). With a seed, each choice has its own, so that n answers differ and repeat.
    """
    choices: list[Choice] = []
    for number in range(params.n):
        seed = None if params.seed is None else nth_seed(params.seed, number)
        choices.append(
            Choice(
                request_id=f"{request_id}-{first + number}",
                index=first + number,
                prompt_index=prompt_index,
                prompt_token_ids=prompt_token_ids,
                params=params if params.n == 1 else msgspec.structs.replace(params, n=1, seed=seed),
                text=tokenizer.stream(stop=params.stop),
                stops=stops or {},
            )
        )
    return choices
