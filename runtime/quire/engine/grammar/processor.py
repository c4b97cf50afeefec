"""The logits processor of structured outputs: forbids every token with which the text could not go on.

Masks are asked for before the forward pass (`prepare`) and fetched after it (`apply`), so that they are computed meanwhile. Nobody
waits for a slow one: its row draws nothing in this step, and again in the next. A mask follows from the tokens it was asked for
after, and stays with the row's session until there are more.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from quire.engine.grammar.client import SESSION, Grammars
from quire.engine.grammar.handle import Grammar, Session
from quire.engine.results import LATER, Fault
from quire.engine.sampling.processors import once
from quire.request import SamplingParams

if TYPE_CHECKING:
    from quire.engine.sampling import Row

WAIT_S = 0.1
"""A step waits so long for masks. One takes less than a millisecond, or up to some hundred where the grammar is ambiguous."""


class GrammarProcessor:
    """See the module."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars

    def wants(self, params: SamplingParams) -> bool:
        return params.structured_outputs is not None

    def prepare(self, rows: Rows[Row]) -> None:
        """Have the masks of these rows computed, where they are not there or on their way."""
        wanted: dict[Grammar, list[tuple[Session, list[int]]]] = {}
        for row in rows:
            session = self._session(row)
            if session is None or session.failure is not None:
                continue
            new = row.tokens[row.num_prompt + session.known :]
            if new or (session.mask is None and not session.asked):
                wanted.setdefault(session.grammar, []).append((session, new))
        self._grammars.ask(wanted)

    def apply(self, logits: Tensor, where: list[int], rows: list[Row]) -> dict[int, Fault]:
        """Forbid what the grammars of `rows` do not allow, in logits [N, V] at rows `where`."""
        self.prepare(rows)
        grammars = {self._grammars.of(row) for row in rows}
        if not all(grammar.settled for grammar in grammars):  # made anew
            self._grammars.poll()
        self._grammars.collect(grammars, WAIT_S)
        faults: dict[int, Fault] = {}
        masks, masked = [], []
        for place, row in enumerate(rows):
            grammar, session = self._grammars.of(row), row.scratch.get(SESSION)
            if grammar.failure is not None:
                faults[place] = grammar.failure.fault(row.params)
            elif session is not None and session.failure is not None:
                faults[place] = session.failure.fault(row.params)
                self._grammars.failed(session.failure.reason)
            elif session is None or session.mask is None:
                faults[place] = LATER
            else:
                masks.append(session.mask)
                masked.append(where[place])
        if masks:
            index = torch.tensor(masked, device=logits.device)
            allowed = unpack(torch.from_numpy(np.stack(masks)).to(logits.device), logits.shape[1])
            logits[index] = logits.index_select(0, index).masked_fill_(~allowed, float("-inf"))
        return faults

    def _session(self, row: Row) -> Session | None:
        """A row's own session; None while there is no grammar to have one with."""
        grammar = self._grammars.of(row)
        if not grammar.settled or grammar.failure is not None:
            return None
        return once(row, SESSION, lambda _: grammar.session())


def unpack(masks: Tensor, vocab_size: int) -> Tensor:
    """Bits [R, B] of uint8, least significant first, as booleans [R, vocab_size]."""
    shifts = torch.arange(8, dtype=torch.uint8, device=masks.device)
    bits = masks.unsqueeze(2).bitwise_right_shift(shifts).bitwise_and_(1)
    return bits.view(masks.shape[0], -1)[:, :vocab_size].bool()
