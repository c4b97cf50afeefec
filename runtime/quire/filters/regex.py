"""`--filter regex=FILE`: regular expressions whose matches are replaced or refused.

    - pattern: '\\b\\d{3}-\\d{2}-\\d{4}\\b'
      replace: '[number]'
    - pattern: '(?i)project\\s+bluebird'
      refuse: this project is not to be talked about
      in: [prompt]

In an answer a match may come in pieces: the last `longest` characters (64 by default) are kept until more is known, and a match that is
longer than that may be seen in parts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quire.errors import ConfigError
from quire.filters import Answer, Filter, Refused

CONTEXT_CHARS = 64
"""Of what was sent, for patterns that look behind."""


class Rule(BaseModel):
    """An entry of the file. replace may name groups of the match, as `\\1`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    pattern: re.Pattern[str]
    replace: str | None = None
    refuse: str | None = Field(None, min_length=1)
    in_: tuple[Literal["prompt", "answer"], ...] = Field(("prompt", "answer"), alias="in", min_length=1)
    longest: int = Field(64, ge=1, le=10_000)


class RegexFilter(Filter):
    """See the module. argument: the file. Raises ConfigError."""

    is_slow = False

    def __init__(self, argument: str | None) -> None:
        rules = _rules(argument)
        self._prompt = [rule for rule in rules if "prompt" in rule.in_]
        self._answer = [rule for rule in rules if "answer" in rule.in_]
        self.reads_answers = bool(self._answer)

    def prompt(self, text: str) -> str:
        for rule in self._prompt:
            text = _RuleAnswer(rule).push(text, final=True)
        return text

    def answer(self, prompt: str) -> Answer:
        return _RulesAnswer(self._answer)


class _RulesAnswer(Answer):
    def __init__(self, rules: list[Rule]) -> None:
        self._answers = [_RuleAnswer(rule) for rule in rules]

    def push(self, text: str, *, final: bool) -> str:
        for answer in self._answers:
            text = answer.push(text, final=final)
        return text


class _RuleAnswer(Answer):
    """_text: context that was sent, then (from _begin on) what was not."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._text = ""
        self._begin = 0

    def push(self, text: str, *, final: bool) -> str:
        self._text += text
        cut = len(self._text) if final else max(self._begin, len(self._text) - self._rule.longest)
        sent, at = "", self._begin
        for match in self._rule.pattern.finditer(self._text, self._begin):
            if match.start() >= cut:
                break
            if cut < match.end() <= match.start() + self._rule.longest:  # more may come of it
                cut = match.start()
                break
            if match.start() == match.end():
                continue
            cut = max(cut, match.end())
            if self._rule.refuse is not None:
                raise Refused(self._rule.refuse)
            sent += self._text[at : match.start()] + match.expand(self._rule.replace or "")
            at = match.end()
        sent += self._text[at:cut]
        keep_from = max(0, cut - CONTEXT_CHARS)
        self._text, self._begin = self._text[keep_from:], cut - keep_from
        return sent


def _rules(argument: str | None) -> list[Rule]:
    if not argument:
        raise ConfigError("--filter regex needs a file of rules: --filter regex=FILE")
    try:
        content = yaml.safe_load(Path(argument).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(f"--filter regex={argument} cannot be read: {' '.join(str(exc).split())}") from None
    if not isinstance(content, list):
        raise ConfigError(f"--filter regex={argument} must hold a list of rules, got {type(content).__name__}")
    return [_rule(entry, f"--filter regex={argument}, rule {n}") for n, entry in enumerate(content, 1)]


def _rule(entry: object, where: str) -> Rule:
    try:
        rule = Rule.model_validate(entry)
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        raise ConfigError(f"{where}: {'.'.join(map(str, error['loc']))}: {error['msg']}") from None
    if (rule.replace is None) == (rule.refuse is None):
        raise ConfigError(f"{where}: exactly one of replace and refuse is needed")
    try:
        rule.pattern.sub(rule.replace or "", "")  # reads the template
    except (re.error, IndexError) as exc:
        raise ConfigError(f"{where}: replace: {exc}") from None
    return rule
