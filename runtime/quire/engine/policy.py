"""The order of waiting sequences and the choice of whom to preempt: small classes behind one seam.

A policy owns the waiting queue. It decides nothing about memory or budget.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

from quire.engine.sequence import Sequence, State


class Policy(Protocol):
    """What the scheduler asks of a policy. Sequences that ended while waiting never come out again."""

    def push(self, sequence: Sequence) -> None:
        """A sequence arrived, or was preempted and comes back."""

    def head(self, now: float) -> Sequence | None:
        """The next sequence to admit, left in the queue."""

    def pop(self) -> Sequence:
        """Take out what `head` returned last."""

    def victim(self, running: list[Sequence]) -> Sequence:
        """The running sequence to preempt; never the most deserving one unless it is alone."""

    def discard(self, sequence: Sequence) -> None:
        """A waiting sequence has ended (its state says so)."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]: ...


class FirstComeFirstServed:
    """Strictly in order of arrival: nobody passes the head, who therefore waits at most until running ones end.

    Preempted sequences keep their place. The newest running sequence is preempted first, so the oldest always ends.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, Sequence]] = []
        self._live = 0

    def push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (sequence.order, sequence))
        self._live += 1

    def head(self, now: float) -> Sequence | None:
        while self._heap and self._heap[0][1].state is not State.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence:
        self._live -= 1
        return heapq.heappop(self._heap)[1]

    def victim(self, running: list[Sequence]) -> Sequence:
        return max(running, key=lambda sequence: sequence.order)

    def discard(self, sequence: Sequence) -> None:
        self._live -= 1

    def __len__(self) -> int:
        return self._live

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, sequence in sorted(self._heap) if sequence.state is State.WAITING)


POLICIES: dict[str, type[Policy]] = {"fcfs": FirstComeFirstServed}
