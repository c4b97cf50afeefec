"""Server-sent events at the byte level: where an event ends, and what the last one says when a stream breaks.

Pure. The proxy forwards complete events only: a client can do nothing with half an event, and half an event before the
`error` event would spoil it. The engine writes whole events, so nothing is held back in practice.
"""

from __future__ import annotations

from quire_router.errors import error_body

MAX_HELD_BYTES = 1024 * 1024
"""An event longer than this passes through in pieces rather than growing in memory."""

_ENDS = (b"\n\n", b"\r\n\r\n")


class EventCutter:
    """Cuts a byte stream after the last complete event of each chunk."""

    def __init__(self) -> None:
        self._held = b""

    def push(self, chunk: bytes) -> bytes:
        """Return what may be sent now; the rest is held until its event is complete."""
        data = self._held + chunk if self._held else chunk
        cut = max(data.rfind(end) + len(end) if end in data else 0 for end in _ENDS)
        if len(data) - cut > MAX_HELD_BYTES:
            cut = len(data)
        self._held = data[cut:]
        return data[:cut]

    def rest(self) -> bytes:
        """What is left when the stream ends properly (a last event without its blank line)."""
        held, self._held = self._held, b""
        return held


def error_event(message: str, *, code: str) -> bytes:
    """The event that ends a broken stream."""
    return b"event: error\ndata: " + error_body(message, kind="server_error", code=code) + b"\n\n"
