"""`{"name": ..., "parameters": {...}}` as the whole answer, perhaps behind `<|python_tag|>`: Llama 3.1 to 3.3."""

from __future__ import annotations

from quire.outputs.calls.parser import CallParser, NoCallError, Steps

TAG = "<|python_tag|>"


class LlamaParser(CallParser):
    """Calls at the beginning of the answer, or behind the tag, which is a special token; several are set apart by `;`."""

    MARKERS = (TAG,)

    def _document(self) -> Steps[None]:
        yield from self._attempt(self._calls(), "")
        while True:
            yield from self._until_marker()
            yield from self._attempt(self._calls(), TAG)

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._object_call()
            self._closing = True
            if (yield from self._skip()) != ";":
                raise NoCallError  # what follows is text
            self._closing = False
