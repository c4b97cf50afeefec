"""Filters: what prompts and answers pass through on their way (`--filter`).

A filter lets a text pass, returns another one, or raises `Refused`. It is an entry point of the group `quire.filters`: a callable that takes
the text behind `=` in `--filter NAME=TEXT` (None without) and returns a `Filter`. `regex` and `llm-guard` are here.

    class Shout(Filter):
        def prompt(self, text: str) -> str:
            return text.upper()

It runs in the server's process. What it raises besides `Refused` fails the one request with 500: nothing passes a filter that is broken.
"""

from __future__ import annotations

__all__ = ["Answer", "Filter", "PassingAnswer", "Refused", "WholeAnswer"]


class Refused(Exception):
    """The text must not pass. The message is told to the client, so it should not quote the text."""


class Answer:
    """One answer on its way: text comes in pieces, and leaves when it may."""

    def push(self, text: str, *, final: bool) -> str:
        """What may be sent now of all that came; the rest is kept until later. final: nothing more comes, nothing may be kept.

        Raises Refused: what was not sent never is, and the answer ends with the reason `content_filter`.
        """
        raise NotImplementedError


class PassingAnswer(Answer):
    """Lets everything pass at once."""

    def push(self, text: str, *, final: bool) -> str:
        return text


class WholeAnswer(Answer):
    """Keeps an answer until it is whole. A stream then has all its text at the end."""

    def __init__(self) -> None:
        self._text = ""

    def push(self, text: str, *, final: bool) -> str:
        self._text += text
        return self.whole(self._text) if final else ""

    def whole(self, text: str) -> str:
        """The text to send instead. Raises Refused."""
        raise NotImplementedError


class Filter:
    """Base of filters: lets everything pass. One object serves all requests, from several threads where `is_slow` is set."""

    is_slow: bool = True
    """Whether it runs in a thread, so that others do not wait for it. Not worth it below some 100 µs."""

    reads_answers: bool = True
    """Whether answers pass through it."""

    def prompt(self, text: str) -> str:
        """The text to use instead: one message of a conversation, or the prompt of a completion. Raises Refused."""
        return text

    def answer(self, prompt: str) -> Answer:
        """For one answer to a prompt, as the model got it."""
        return PassingAnswer()
