"""`name`, a line break, `{...}` as the whole answer: GLM-4 (until 0414)."""

from __future__ import annotations

from quire.outputs.calls.parser import CallParser, Steps


class Glm4Parser(CallParser):
    """A function's name in the first line, its arguments from the second line on."""

    def _document(self) -> Steps[None]:
        while (yield from self._attempt(self._call(), "")):
            pass
        yield from self._until_marker()

    def _call(self) -> Steps[None]:
        name, self._closing = "", self.num_complete > 0
        char = yield from self._skip()
        while char != "\n":
            name += char
            self._check_begins(name.rstrip(" \r"))
            self._closing = False
            char = yield
        self._closing = False
        yield from self._arguments(self._known(name.strip()))
        self._finish()
