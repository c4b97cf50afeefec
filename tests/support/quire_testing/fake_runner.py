"""A model runner without a model that checks the scheduler's and the pool's work at every step.

Each slot of its cache remembers which tokens led to it. A step writes its slots, then reads the whole context of every
sequence through the block tables, as attention would, and fails where a slot belongs to another history. The next token
is a function of all tokens before it, so answers can be told in advance.
"""

from __future__ import annotations

from quire.engine.plan import StepPlan

VOCAB = 40
Slots = list[tuple[int, ...] | None]


def next_token(tokens: tuple[int, ...], seed: int = 0) -> int:
    """The fake model."""
    return hash((17 + seed, *tokens)) % VOCAB


def answer(prompt: list[int], max_tokens: int, stop_ids: frozenset[int] = frozenset(), *, seed: int = 0) -> list[int]:
    """What the fake model generates for a prompt that is alone."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(next_token(tuple(tokens), seed))
        if tokens[-1] in stop_ids:
            break
    return tokens[len(prompt) :]


class FakeRunner:
    """Runs plans; see the module."""

    def __init__(self, num_blocks: int, block_size: int, num_swap_blocks: int = 0) -> None:
        self._block_size = block_size
        self._slots: Slots = [None] * (num_blocks * block_size)
        self._host: Slots = [None] * (num_swap_blocks * block_size)
        self.batches: list[list[tuple[str, int, int]]] = []

    def run(self, plan: StepPlan) -> list[int]:
        """Tokens for the entries that sample, in order."""
        for here, there, pairs in (
            (self._slots, self._host, plan.swap_outs),
            (self._slots, self._slots, plan.copies),
            (self._host, self._slots, plan.swap_ins),
        ):
            self._move(here, there, pairs)
        self.batches.append([(e.sequence.request_id, e.start, e.num_tokens) for e in plan.scheduled])
        for entry in plan.scheduled:
            tokens = entry.sequence.tokens
            for position in range(entry.start, entry.start + entry.num_tokens):
                self._slots[self._slot(entry.sequence.table.block_ids, position)] = tuple(tokens[: position + 1])
        result: list[int] = []
        for entry in plan.scheduled:
            tokens, end = entry.sequence.tokens, entry.start + entry.num_tokens
            for position in range(end):
                held = self._slots[self._slot(entry.sequence.table.block_ids, position)]
                assert held == tuple(tokens[: position + 1]), (
                    f"{entry.sequence.request_id}: the slot of token {position} holds the history {held}"
                )
            if entry.samples:
                result.append(next_token(tuple(tokens[:end]), entry.sequence.seed))
        return result

    def _move(self, here: Slots, there: Slots, pairs: list[tuple[int, int]]) -> None:
        """Whole blocks; all are read before any is written, as tensors are, and none may be written twice."""
        size = self._block_size
        assert len({target for _, target in pairs}) == len(pairs), "a block is written twice"
        read = [here[source * size : (source + 1) * size] for source, _ in pairs]
        for (_, target), content in zip(pairs, read, strict=True):
            there[target * size : (target + 1) * size] = content

    def _slot(self, block_ids: object, position: int) -> int:
        return block_ids[position // self._block_size] * self._block_size + position % self._block_size  # type: ignore[index, no-any-return]
