"""`[TOOL_CALLS]`, then a JSON list of calls, or a name and `[ARGS]` and arguments for each call: Mistral's models from v3 on."""

from __future__ import annotations

import secrets
import string

from quire.outputs.calls.parser import CallParser, NoCallError, Steps

OPEN, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_ALPHABET = string.ascii_letters + string.digits


class MistralParser(CallParser):
    """Both forms. The marks are special tokens."""

    MARKERS = (OPEN,)

    @staticmethod
    def new_id() -> str:
        """The templates of these models take nothing but nine letters and digits."""
        return "".join(secrets.choice(_ALPHABET) for _ in range(9))

    def _document(self) -> Steps[None]:
        while True:
            yield from self._until_marker()
            yield from self._attempt(self._calls(), OPEN)

    def _calls(self) -> Steps[None]:
        char = yield from self._skip()
        if char != "[":
            yield from self._named(char)
            return
        while True:
            yield from self._object_call()
            self._closing = True
            char = yield from self._skip()
            if char == "]":
                break
            if char != ",":
                raise NoCallError
            self._closing = False
        self._held, self._closing = "", False

    def _named(self, char: str) -> Steps[None]:
        """A name, perhaps an id, and arguments from their bracket on."""
        name = ""
        while char not in "[{":
            name += char
            self._check_begins(name.strip())
            char = yield
        if char == "[":
            char = yield
            if char == CALL_ID[1]:
                yield from self._exactly(CALL_ID[2:])
                while (yield) != "[":
                    pass
                char = yield
            if char != ARGS[1]:
                raise NoCallError
            yield from self._exactly(ARGS[2:])
        else:
            self._unread()
        yield from self._arguments(self._known(name.strip()))
        self._finish()
