"""Reasoning in front of an answer: `<think>` ... `</think>`, as DeepSeek R1, Qwen 3, GLM-4.5 and others write it.

Where the prompt already ends with the opening mark, the answer begins inside. The outcome does not depend on where the text is cut. The marks, and line
breaks next to them, are no part of either.
"""

from __future__ import annotations

from quire.outputs.parts import Part, Reasoning, Text

OPEN, CLOSE = "<think>", "</think>"
AUTO, NONE, DEEPSEEK, QWEN3 = "auto", "none", "deepseek", "qwen3"
"""The values of `--reasoning-parser`."""

_BLANKS = " \t\r\n"


def begins_inside(prompt_end: str, template: str, parser: str) -> bool | None:
    """How an answer is split: True where it begins inside of reasoning, False where it may open reasoning itself, None where there is none.

    prompt_end: the last characters of the prompt. template: the chat template's text. parser: as the flag says. `deepseek` takes every answer for one that begins inside,
    unless the prompt has closed it; `auto` and `qwen3` look at the prompt.
    """
    end = prompt_end.rstrip()
    if parser == NONE or (parser == AUTO and CLOSE not in template and OPEN not in template):
        return None
    if end.endswith(CLOSE):
        return None
    return end.endswith(OPEN) or parser == DEEPSEEK


class ReasoningSplitter:
    """Feed it with `push`, end with `flush`. inside: the text begins in the middle of reasoning."""

    def __init__(self, *, inside: bool) -> None:
        self._stage = self._opened if inside else self._before
        self._held = ""

    def push(self, text: str) -> list[Part]:
        """The parts that are certain now."""
        return self._stage(self._held + text)

    def flush(self) -> list[Part]:
        """The text has ended: what might have become a mark is none."""
        held = self._held
        if self._stage == self._before or self._stage == self._after:
            return [Text(held)] if held else []
        return [Reasoning(held)] if held.strip(_BLANKS) else []

    def _before(self, text: str) -> list[Part]:
        """Nothing but blanks so far, or the beginning of the opening mark."""
        begun = text.lstrip(_BLANKS)
        if _may_become(begun, OPEN):
            self._held = text
            return []
        if begun.startswith(OPEN):
            self._held, self._stage = "", self._begin
            return self._begin(begun.removeprefix(OPEN))
        self._held, self._stage = "", self._text
        return [Text(text)]

    def _opened(self, text: str) -> list[Part]:
        """The prompt has opened it; a model may do so again."""
        begun = text.lstrip(_BLANKS)
        if _may_become(begun, OPEN):
            self._held = text
            return []
        self._held, self._stage = "", self._begin
        return self._begin(begun.removeprefix(OPEN))

    def _begin(self, text: str) -> list[Part]:
        """Nothing but blanks inside so far."""
        begun = text.lstrip(_BLANKS)
        if not begun:
            return []
        self._stage = self._inside
        return self._inside(begun)

    def _inside(self, text: str) -> list[Part]:
        thought, mark, rest = text.partition(CLOSE)
        if not mark:
            sizes = range(min(len(text), len(CLOSE) - 1), 0, -1)
            thought = text[: len(text) - next((size for size in sizes if CLOSE.startswith(text[-size:])), 0)]
        thought = thought.rstrip(_BLANKS)
        parts: list[Part] = [Reasoning(thought)] if thought else []
        if not mark:
            self._held = text[len(thought) :]
            return parts
        self._held, self._stage = "", self._after
        return parts + self._after(rest)

    def _after(self, text: str) -> list[Part]:
        """Nothing but line breaks behind the closing mark so far."""
        begun = text.lstrip("\r\n")
        if not begun:
            return []
        self._stage = self._text
        return [Text(begun)]

    def _text(self, text: str) -> list[Part]:
        return [Text(text)] if text else []


def _may_become(text: str, mark: str) -> bool:
    return text != mark and mark.startswith(text)
