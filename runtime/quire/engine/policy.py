"""The order of waiting sequences, and who gives way: small classes behind one seam.

A policy owns the waiting queue, and ranks the running ones. It decides nothing about memory or budget. All orders are
static (a key is computed once, when a sequence is queued), so a queue is a heap and nothing is ever sorted anew.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterator

from quire.engine.sequence import Sequence, State

Key = tuple[float, ...]

AGEING_TOKENS_PER_S = 256
"""Shortest job first: a second of waiting counts as much as a prompt that is this many tokens shorter."""


class Policy(ABC):
    """A queue in the order of `key`. Sequences that ended while waiting never come out again.

    A sequence that was preempted keeps its place, before newcomers that are otherwise equal.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Key, Sequence]] = []
        self._size = 0

    @abstractmethod
    def key(self, sequence: Sequence) -> Key:
        """Place among waiting sequences, lowest first; different for each."""

    @abstractmethod
    def rank(self, sequence: Sequence) -> Key:
        """Place among running sequences, lowest first: served in this order, and the last is preempted first.

        Never changes once a sequence has run, so that the first of all running ones always advances.
        """

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        """Whether a running sequence is preempted for one that waits. Must be a strict order."""
        return False

    def push(self, sequence: Sequence) -> None:
        """A sequence arrived, or was preempted and comes back."""
        heapq.heappush(self._heap, (self.key(sequence), sequence))
        self._size += 1

    def head(self) -> Sequence | None:
        """The next sequence to admit, left in the queue."""
        while self._heap and self._heap[0][1].state is State.FINISHED:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence:
        """Take out what `head` returned last."""
        self._size -= 1
        return heapq.heappop(self._heap)[1]

    def discard(self, sequence: Sequence) -> None:
        """A waiting sequence has ended (its state says so). Ended ones stay in the heap while they are fewer than the others."""
        self._size -= 1
        if len(self._heap) > 2 * self._size + 16:
            self._heap = [entry for entry in self._heap if entry[1].state is not State.FINISHED]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, sequence in sorted(self._heap) if sequence.state is not State.FINISHED)


class FirstComeFirstServed(Policy):
    """Strictly in order of arrival: nobody passes the head, who therefore waits at most until running ones end."""

    def key(self, sequence: Sequence) -> Key:
        return (sequence.order,)

    rank = key


class ByPriority(Policy):
    """The lowest `priority` first, equal ones in order of arrival. A running sequence gives way to a more urgent one.

    Strict: a request waits as long as there are more urgent ones.
    """

    def key(self, sequence: Sequence) -> Key:
        return (sequence.priority, sequence.order)

    rank = key

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        return waiting.priority < running.priority


class ShortestFirst(Policy):
    """The shortest prompt first, with ageing; preempted sequences, whose prompts are behind them, before all newcomers.

    Waiting t seconds counts like a prompt t * AGEING_TOKENS_PER_S tokens shorter. All waiting ones age alike, so their order
    never changes, and nobody starves: a request with a prompt of p tokens is passed only by requests that arrive within
    p / AGEING_TOKENS_PER_S seconds after it.
    """

    def key(self, sequence: Sequence) -> Key:
        if sequence.admitted is not None:
            return (0, sequence.admitted, sequence.order)
        return (1, sequence.num_prompt + AGEING_TOKENS_PER_S * sequence.arrival_s, sequence.order)

    def rank(self, sequence: Sequence) -> Key:
        assert sequence.admitted is not None
        return (sequence.admitted, sequence.order)


POLICIES: dict[str, type[Policy]] = {"fcfs": FirstComeFirstServed, "priority": ByPriority, "sjf": ShortestFirst}
