"""Requests with a structured output wait here, before the scheduler's queue, until their grammar is compiled.

They hold no blocks and no place in a batch, and nobody waits for them. Pure but for `Grammars`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from quire.engine.grammar.client import SESSION, Grammar, Grammars
from quire.request import AddRequest, FinishReason, TokenDelta


@dataclass
class Admitted:
    """A request for the scheduler. scratch: what its sequence takes along."""

    request: AddRequest
    seed: int
    scratch: dict[str, Any] = field(default_factory=dict)


class Gate:
    """See the module."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._held: dict[str, tuple[AddRequest, int, Grammar]] = {}

    def __len__(self) -> int:
        """Requests that wait here."""
        return len(self._held)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._held

    def hold(self, request: AddRequest, seed: int) -> None:
        """Take a request with a structured output."""
        assert request.params.structured_outputs is not None
        grammar = self._grammars.get(request.params.structured_outputs)
        self._held[request.request_id] = (request, seed, grammar)

    def discard(self, request_id: str) -> bool:
        """Forget a request; what has begun to compile is compiled, for others. False where it is not known."""
        return self._held.pop(request_id, None) is not None

    def release(self, wait_s: float = 0.0) -> tuple[list[Admitted], list[TokenDelta]]:
        """What may go on, and what has failed, in order of arrival. Waits up to wait_s seconds for a first one."""
        if not self._held:
            return [], []
        self._grammars.poll(0.0 if any(grammar.settled for _, _, grammar in self._held.values()) else wait_s)
        admitted: list[Admitted] = []
        refused: list[TokenDelta] = []
        for request_id, (request, seed, grammar) in list(self._held.items()):
            if not grammar.settled:
                continue
            del self._held[request_id]
            if grammar.error is not None:
                refused.append(refusal(request, grammar.error))
            else:
                admitted.append(_admit(request, seed, grammar))
        return admitted, refused


def refusal(request: AddRequest, error: str) -> TokenDelta:
    """The last word on a request whose grammar cannot be used."""
    output = request.params.structured_outputs
    assert output is not None
    return TokenDelta(
        request_id=request.request_id,
        token_ids=[],
        finish_reason=FinishReason.ERROR,
        error=f"{output.param}: {error}",
        error_param=output.param,
    )


def _admit(request: AddRequest, seed: int, grammar: Grammar) -> Admitted:
    """The tokens with which the grammar ends a text end the sequence, whatever else does."""
    params = request.params
    stop_ids = tuple(dict.fromkeys([*params.stop_token_ids, *grammar.eos_token_ids]))
    params = msgspec.structs.replace(params, stop_token_ids=stop_ids)
    return Admitted(msgspec.structs.replace(request, params=params), seed, {SESSION: grammar.session()})
