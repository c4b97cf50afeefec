"""Memory for the bodies of requests: all of them together may take so much, then no more is read.

Requests are many and a body may be large; each would be fine alone. A request holds what its body takes until it is over, at first what has
come of it, then what was made of it. Short bodies hold nothing: they pass however many long ones there are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from quire.errors import OverloadedError

BODIES = 16
"""So many bodies of the largest size may be here, or what takes as much."""
FREE_BYTES = 32_000
"""A body as short as that holds nothing."""
RETRY_S = 1
REASON = "bodies_full"


class Room:
    """See the module. most_bytes: of all requests together; one alone may have more. dropped: counts a request that was refused, by reason."""

    def __init__(self, most_bytes: int, *, dropped: Callable[[str], None]) -> None:
        self._most_bytes = most_bytes
        self._dropped = dropped
        self._held_bytes = 0
        self._lock = threading.Lock()  # long bodies are read beside the event loop

    @property
    def held_bytes(self) -> int:
        """Of all requests."""
        return self._held_bytes

    def hold(self) -> Hold:
        """What one request holds: nothing yet."""
        return Hold(self)

    def change(self, before: int, after: int) -> None:
        """One request holds another number of bytes. Raises OverloadedError where there is no room for more."""
        with self._lock:
            others = self._held_bytes - before
            if after <= before or not others or others + after <= self._most_bytes:
                self._held_bytes = others + after
                return
        self._dropped(REASON)
        raise OverloadedError(
            f"there is no room for this body now: those of other requests take {others} bytes, and all together may take {self._most_bytes}",
            reason=REASON,
            retry_after_s=RETRY_S,
        )


class Hold:
    """What the body of one request takes."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._num_bytes = 0
        self._over = False

    def take(self, num_bytes: int) -> None:
        """So many bytes, instead of what it takes now. Raises OverloadedError, and takes nothing any more, where there is no room for them: to
        tell the client may take a while."""
        if self._over:  # a thread that reads it was not waited for
            return
        num_bytes = num_bytes if num_bytes > FREE_BYTES else 0
        try:
            self._room.change(self._num_bytes, num_bytes)
        except OverloadedError:
            self.end()
            raise
        self._num_bytes = num_bytes

    def expect(self, num_bytes: int) -> None:
        """So many bytes are to come: raises OverloadedError where there would be no room for them."""
        before = self._num_bytes
        self.take(num_bytes)
        self.take(before)

    def end(self) -> None:
        """The request is over."""
        self.take(0)
        self._over = True
