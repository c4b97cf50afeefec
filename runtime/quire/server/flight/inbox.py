"""Reports of the engine that a job has not read yet.

While a client reads slowly its job waits, and the engine goes on. From `MERGE_FROM` waiting reports on, a report joins the last one of
the same choice: what waits grows by token ids only, at most `max_tokens` of them for each choice, and the reader catches up in
few large pieces.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

import msgspec

from quire.errors import QuireError
from quire.request import FinishReason, TokenDelta

MERGE_FROM = 64


class Indexed(Protocol):
    """A sequence, by its place among those of a job."""

    index: int


Own = TypeVar("Own", bound=Indexed)


class _Entry(Generic[Own]):
    """owned: the delta's lists are ours to extend."""

    __slots__ = ("choice", "delta", "owned")

    def __init__(self, choice: Own, delta: TokenDelta) -> None:
        self.choice = choice
        self.delta = delta
        self.owned = False


class Inbox(Generic[Own]):
    """See the module. One reader; putting never waits."""

    def __init__(self) -> None:
        self._items: deque[_Entry[Own] | QuireError] = deque()
        self._last: dict[int, _Entry[Own]] = {}
        self._came = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, choice: Own, delta: TokenDelta) -> None:
        last = self._last.get(choice.index)
        if len(self._items) >= MERGE_FROM and last is not None and delta.finish_reason is not FinishReason.ERROR:
            _join(last, delta)
            return
        entry = self._last[choice.index] = _Entry(choice, delta)
        self._items.append(entry)
        self._came.set()

    def fail(self, error: QuireError) -> None:
        """The reader gets this when it has read what came before."""
        self._items.append(error)
        self._came.set()

    async def get(self) -> tuple[Own, TokenDelta]:
        """The next report; raises what the job failed with."""
        while not self._items:
            self._came.clear()
            await self._came.wait()
        item = self._items.popleft()
        if isinstance(item, QuireError):
            raise item
        if self._last.get(item.choice.index) is item:
            del self._last[item.choice.index]
        return item.choice, item.delta


def _join(entry: _Entry[Own], later: TokenDelta) -> None:
    """Add a report to the one before it. What comes once comes with the first."""
    first = entry.delta
    if not entry.owned:
        first = msgspec.structs.replace(
            first,
            token_ids=list(first.token_ids),
            logprobs=None if first.logprobs is None else list(first.logprobs),
        )
        entry.owned = True
    first.token_ids.extend(later.token_ids)
    if first.logprobs is not None:
        first.logprobs.extend(later.logprobs or ())
    entry.delta = msgspec.structs.replace(
        first, finish_reason=later.finish_reason, stop_token_id=later.stop_token_id, vector=later.vector
    )
