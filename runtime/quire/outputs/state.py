"""A request of the Python API: its choices, what they have produced, and what its caller has not seen yet."""

from __future__ import annotations

from dataclasses import replace

from quire.errors import RequestError
from quire.outputs.choice import Choice, kept, lost
from quire.outputs.logprobs import by_token, of_prompt
from quire.outputs.results import CompletionOutput, Logprob, RequestOutput
from quire.request import FinishReason, RequestOutputKind, TokenDelta


class RequestState:
    """See the module. Everything that comes between two calls of `output` is one output: a slow caller costs no memory."""

    def __init__(self, request_id: str, prompt: str | None, choices: list[Choice], kind: RequestOutputKind) -> None:
        self.request_id = request_id
        self.choices = choices
        self.error: RequestError | None = (
            None  # what the engine could not go on with, where the answer lacks that choice
        )
        self._kind = kind
        self._prompt = prompt
        self._outputs = [CompletionOutput(choice.index) for choice in choices]
        self._seen = [(0, 0)] * len(choices)  # characters and tokens of each choice that the caller has
        self._changed: set[int] = set()
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._ranked = len(choices) > choices[0].keep  # which answers come back is known at the end only
        self._only_at_end = self._ranked or kind is RequestOutputKind.FINAL_ONLY

    @property
    def finished(self) -> bool:
        """All choices have ended."""
        return all(choice.finish_reason is not None for choice in self.choices)

    def take(self, choice: Choice, delta: TokenDelta) -> bool:
        """Add a report of the engine; True where the engine must forget this sequence (a stop string was found)."""
        if choice.finish_reason is not None:
            return False
        output = self._outputs[choice.index]
        try:
            piece, stopped = choice.take(delta)
        except RequestError as exc:
            self._end(choice, FinishReason.ERROR)
            output.error = delta.error
            if lost(self.choices, choice):
                self.error = exc
            return False
        output.text += piece.text
        output.token_ids += piece.token_ids
        if choice.tells_logprobs:
            output.logprobs = (output.logprobs or []) + [by_token(one, choice.text.pieces) for one in piece.logprobs]
            output.cumulative_logprob = choice.logprob
        if piece.finish_reason is not None:
            self._end(choice, piece.finish_reason)
        if piece.text or piece.token_ids or piece.finish_reason is not None:
            self._changed.add(choice.index)
        return stopped

    def abort(self) -> list[str]:
        """End what goes on, as aborted; the ids of those sequences."""
        left = [choice for choice in self.choices if choice.finish_reason is None]
        for choice in left:
            self._end(choice, FinishReason.ABORT)
        return [choice.request_id for choice in left]

    def output(self) -> RequestOutput | None:
        """What the caller must see next, by the kind of output asked for; None where there is nothing."""
        if not self._changed or (self._only_at_end and not self.finished):
            return None
        if self._ranked:
            outputs = [replace(self._outputs[one.index], index=i) for i, one in enumerate(kept(self.choices))]
        elif self._kind is RequestOutputKind.DELTA:
            outputs = [self._new(index) for index in sorted(self._changed)]
        elif self.finished:
            outputs = self._outputs
        else:
            outputs = [_copy(output) for output in self._outputs]
        self._changed.clear()
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=self.choices[0].prompt_token_ids,
            prompt_logprobs=self._of_prompt(),
            outputs=outputs,
            finished=self.finished,
            num_cached_tokens=max(choice.num_cached_tokens for choice in self.choices),
        )

    def _of_prompt(self) -> list[dict[int, Logprob] | None] | None:
        first = self.choices[0]
        if self._prompt_logprobs is None and first.prompt_logprobs is not None:
            self._prompt_logprobs = of_prompt(first.prompt_logprobs, first.text.pieces)
        return self._prompt_logprobs

    def _new(self, index: int) -> CompletionOutput:
        output, (characters, tokens) = self._outputs[index], self._seen[index]
        self._seen[index] = len(output.text), len(output.token_ids)
        return replace(
            output,
            text=output.text[characters:],
            token_ids=output.token_ids[tokens:],
            logprobs=None if output.logprobs is None else output.logprobs[tokens:],
        )

    def _end(self, choice: Choice, reason: FinishReason) -> None:
        choice.finish_reason = reason
        output = self._outputs[choice.index]
        output.finish_reason, output.stop_reason = reason.value, choice.stop_reason
        self._changed.add(choice.index)


def _copy(output: CompletionOutput) -> CompletionOutput:
    logprobs = None if output.logprobs is None else list(output.logprobs)
    return replace(output, token_ids=list(output.token_ids), logprobs=logprobs)
