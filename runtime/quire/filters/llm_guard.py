"""`--filter llm-guard=FILE`: scanners of the package llm-guard, which is installed apart.

    prompt:
      - type: PromptInjection
        params: {threshold: 0.9}
      - type: Secrets
        found: change
    answer:
      - type: NoRefusal

A scanner that finds something refuses the text, or with `found: change` lets pass what it made of it. Scanners read whole texts: with any
for answers, a stream has its text at the end. Their models run in the server's process, in threads beside it.

Scanners that keep what they replaced in a vault (Anonymize, Deanonymize) are refused: one vault would be shared by all who ask.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quire.errors import ConfigError
from quire.filters import Answer, Filter, Refused, WholeAnswer

WITH_VAULT = frozenset({"Anonymize", "Deanonymize"})


class Scanner(BaseModel):
    """An entry of the file: a scanner's class, its arguments, and what follows when it finds something."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    type: str
    params: dict[str, Any] = Field(default_factory=dict)
    found: Literal["refuse", "change"] = "refuse"


class Scanners(BaseModel):
    """The file."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    prompt: tuple[Scanner, ...] = ()
    answer: tuple[Scanner, ...] = ()


class LlmGuardFilter(Filter):
    """See the module. argument: the file. Raises ConfigError."""

    def __init__(self, argument: str | None) -> None:
        content = _content(argument)
        self._prompt = [_made("input_scanners", entry) for entry in content.prompt]
        self._answer = [_made("output_scanners", entry) for entry in content.answer]
        self.reads_answers = bool(self._answer)

    def prompt(self, text: str) -> str:
        for entry, scanner in self._prompt:
            text = _passed(entry, scanner.scan(text))
        return text

    def answer(self, prompt: str) -> Answer:
        return _Whole(self, prompt)

    def scan_answer(self, prompt: str, text: str) -> str:
        for entry, scanner in self._answer:
            text = _passed(entry, scanner.scan(prompt, text))
        return text


class _Whole(WholeAnswer):
    def __init__(self, owner: LlmGuardFilter, prompt: str) -> None:
        super().__init__()
        self._owner = owner
        self._prompt = prompt

    def whole(self, text: str) -> str:
        return self._owner.scan_answer(self._prompt, text)


def _passed(entry: Scanner, result: tuple[str, bool, float]) -> str:
    text, is_valid, _ = result
    if not is_valid and entry.found == "refuse":
        raise Refused(f"the scanner {entry.type} refuses it")
    return text


def _made(kind: str, entry: Scanner) -> tuple[Scanner, Any]:
    if entry.type in WITH_VAULT:
        raise ConfigError(f"--filter llm-guard: {entry.type} needs a vault of each conversation, which is kept nowhere")
    try:
        make = importlib.import_module(f"llm_guard.{kind}").get_scanner_by_name
    except ImportError as exc:
        raise ConfigError(f"--filter llm-guard needs the package llm-guard: {exc}") from None
    try:
        return entry, make(entry.type, dict(entry.params))
    except Exception as exc:  # somebody else's code
        raise ConfigError(f"--filter llm-guard: {entry.type} cannot be made: {exc}") from exc


def _content(argument: str | None) -> Scanners:
    if not argument:
        raise ConfigError("--filter llm-guard needs a file of scanners: --filter llm-guard=FILE")
    try:
        return Scanners.model_validate(yaml.safe_load(Path(argument).read_text(encoding="utf-8")) or {})
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(f"--filter llm-guard={argument} cannot be read: {' '.join(str(exc).split())}") from None
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        where = ".".join(map(str, error["loc"]))
        raise ConfigError(f"--filter llm-guard={argument}: {where}: {error['msg']}") from None
