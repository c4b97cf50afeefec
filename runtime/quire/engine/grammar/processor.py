"""The logits processor of structured outputs: forbids every token with which the text could not go on.

Masks are asked for before the forward pass (`prepare`) and fetched after it (`apply`), so that they are computed meanwhile.
A row's session with its worker is in `row.scratch`; where there is none (a copy of a sequence) it begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from quire.engine.grammar import protocol as say
from quire.engine.grammar.client import SESSION, Grammar, Grammars, Session
from quire.request import SamplingParams

if TYPE_CHECKING:
    from quire.engine.sampling import Row


class GrammarProcessor:
    """See the module."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._words = say.mask_words(grammars.settings.vocab_size)
        self._asked: dict[int, tuple[Grammar, list[int]]] | None = None

    def wants(self, params: SamplingParams) -> bool:
        return params.structured_outputs is not None

    def prepare(self, rows: Rows[Row]) -> None:
        """Have the masks of these rows computed; the next `apply` is about them, in the same order."""
        self._discard()
        asked: dict[int, tuple[Grammar, list[int]]] = {}
        tokens: dict[int, list[say.Tokens]] = {}
        for place, row in enumerate(rows):
            session = self._session(row)
            grammar = session.grammar
            asked.setdefault(id(grammar), (grammar, []))[1].append(place)
            new = row.tokens[row.num_prompt + session.known :]
            tokens.setdefault(id(grammar), []).append(say.Tokens(session.number, session.known, new))
            session.known += len(new)
        for key, (grammar, _) in asked.items():
            grammar.ask(tokens[key])
        self._asked = asked

    def apply(self, logits: Tensor, where: list[int], rows: list[Row]) -> dict[int, str]:
        """Forbid what the grammars of `rows` do not allow, in logits [N, V] at rows `where`."""
        if self._asked is None:
            self.prepare(rows)
        assert self._asked is not None
        asked, self._asked = self._asked, None
        masks = np.zeros((len(rows), self._words * 4), dtype=np.uint8)
        order: list[int] = []
        faults: dict[int, str] = {}
        for grammar, places in asked.values():
            part = masks[len(order) : len(order) + len(places)]
            for at, fault in grammar.answer(part, self._grammars.limits).items():
                faults[places[at]] = fault
            order += places
        index = torch.tensor([where[place] for place in order], device=logits.device)
        allowed = unpack(torch.from_numpy(masks).to(logits.device), logits.shape[1])
        logits[index] = logits.index_select(0, index).masked_fill_(~allowed, float("-inf"))
        return faults

    def _discard(self) -> None:
        """Read masks that nobody fetched, since the step that wanted them failed; or the next step would get them."""
        for grammar, places in (self._asked or {}).values():
            grammar.answer(np.zeros((len(places), self._words * 4), dtype=np.uint8), self._grammars.limits)
        self._asked = None

    def _session(self, row: Row) -> Session:
        session: Session | None = row.scratch.get(SESSION)
        if session is None or session.owner not in (None, id(row)):
            if session is None:
                assert row.params.structured_outputs is not None
                grammar = self._grammars.get(row.params.structured_outputs)
            else:
                grammar = session.grammar
            session = row.scratch[SESSION] = grammar.session()
        session.owner = id(row)
        return session


def unpack(masks: Tensor, vocab_size: int) -> Tensor:
    """Bits [R, B] of uint8, least significant first, as booleans [R, vocab_size]."""
    shifts = torch.arange(8, dtype=torch.uint8, device=masks.device)
    bits = masks.unsqueeze(2).bitwise_right_shift(shifts).bitwise_and_(1)
    return bits.view(masks.shape[0], -1)[:, :vocab_size].bool()
