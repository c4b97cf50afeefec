"""Requests with a structured output are held outside the scheduler's queue until their grammar is compiled.

They hold no blocks and no place in a batch, and nobody waits for them. Pure but for `Grammars`.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.engine.grammar.client import Grammars
from quire.engine.results import Fault
from quire.engine.sequence import Sequence
from quire.request import GrammarStats, SamplingParams


class Gate:
    """See the module."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars

    def holds(self, params: SamplingParams) -> bool:
        """Whether requests with these parameters are held at first."""
        return params.structured_outputs is not None

    def look(
        self, held: Iterable[Sequence], wait_s: float = 0.0
    ) -> tuple[list[Sequence], list[tuple[Sequence, Fault]]]:
        """Which of the held ones may go on, and which cannot be served and why. Waits up to wait_s seconds for a first one."""
        grammars, waiting = self._grammars, list(held)
        grammars.poll(0.0 if any(grammars.of(sequence).settled for sequence in waiting) else wait_s)
        ready: list[Sequence] = []
        failed: list[tuple[Sequence, Fault]] = []
        for sequence in waiting:
            grammar = grammars.of(sequence)
            if grammar.failure is not None:
                failed.append((sequence, grammar.failure.fault(sequence.params)))
            elif grammar.settled:
                for one in (sequence, *sequence.followers):
                    # the tokens with which the grammar ends a text end the sequence, whatever else does
                    one.stop_ids |= frozenset(grammar.eos_token_ids)
                ready.append(sequence)
        return ready, failed

    def stats(self, *, drain: bool = False) -> GrammarStats | None:
        """Figures for /metrics. drain: with the times that nobody has been told of yet."""
        return self._grammars.stats(drain=drain)
