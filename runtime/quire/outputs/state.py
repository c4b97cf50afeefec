"""A request of the Python API: its choices, what they have produced, and what its caller has not seen yet."""

from __future__ import annotations

from dataclasses import replace

from quire.errors import RequestError
from quire.outputs.choice import Choice
from quire.outputs.results import CompletionOutput, RequestOutput
from quire.request import FinishReason, RequestOutputKind, TokenDelta


class RequestState:
    """See the module. Everything that comes between two calls of `output` is one output: a slow caller costs no memory."""

    def __init__(self, request_id: str, prompt: str | None, choices: list[Choice], kind: RequestOutputKind) -> None:
        self.request_id = request_id
        self.choices = choices
        self.error: RequestError | None = None  # what the engine could not go on with, of the choice that had it
        self._kind = kind
        self._prompt = prompt
        self._outputs = [CompletionOutput(choice.index) for choice in choices]
        self._seen = [(0, 0)] * len(choices)  # characters and tokens of each choice that the caller has
        self._changed: set[int] = set()

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
            self.error, output.error = exc, delta.error
            return False
        output.text += piece.text
        output.token_ids += piece.token_ids
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
        if not self._changed or (self._kind is RequestOutputKind.FINAL_ONLY and not self.finished):
            return None
        if self._kind is RequestOutputKind.DELTA:
            outputs = [self._new(index) for index in sorted(self._changed)]
        elif self.finished:
            outputs = self._outputs
        else:
            outputs = [replace(output, token_ids=list(output.token_ids)) for output in self._outputs]
        self._changed.clear()
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=self.choices[0].prompt_token_ids,
            outputs=outputs,
            finished=self.finished,
            num_cached_tokens=max(choice.num_cached_tokens for choice in self.choices),
        )

    def _new(self, index: int) -> CompletionOutput:
        output, (characters, tokens) = self._outputs[index], self._seen[index]
        self._seen[index] = len(output.text), len(output.token_ids)
        return replace(output, text=output.text[characters:], token_ids=output.token_ids[tokens:])

    def _end(self, choice: Choice, reason: FinishReason) -> None:
        choice.finish_reason = reason
        output = self._outputs[choice.index]
        output.finish_reason, output.stop_reason = reason.value, choice.stop_reason
        self._changed.add(choice.index)
