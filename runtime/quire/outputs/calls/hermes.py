"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3, SmolLM3, and models that know no tools."""

from __future__ import annotations

from quire.outputs.calls.parser import CallParser, Steps

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(CallParser):
    """Text and calls in any order."""

    MARKERS = (OPEN,)

    def _document(self) -> Steps[None]:
        while True:
            yield from self._until_marker()
            if (yield from self._attempt(self._object_call(), OPEN)):
                yield from self._close(CLOSE)
