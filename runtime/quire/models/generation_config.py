"""Defaults of sampling parameters that a model brings along in generation_config.json.

They hold for requests that do not set a parameter themselves. End tokens of that file are read elsewhere, and always.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.errors import ConfigError, ModelError, RequestError
from quire.models.metadata import read_json
from quire.models.source import ModelFiles
from quire.request import SamplingParams

FILE = "generation_config.json"
NONE = ("none", "vllm")
"""Choices that leave the file out; the second is vLLM's word."""

_FIELDS: dict[str, type] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
}


@dataclass(frozen=True)
class SamplingDefaults:
    """values: field of SamplingParams to what it is where a request does not set it. max_tokens: the same, apart, because a
    default longer than the room behind a prompt is no fault. place: the file they are from, None where there are none."""

    values: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    place: Path | None = None

    def params(self) -> SamplingParams:
        """Parameters of a request that sets nothing."""
        given: dict[str, Any] = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        return SamplingParams(**self.values, **given)

    @property
    def notice(self) -> str:
        """What is to be said about them once; empty where there are none."""
        shown = [f"{name} {value:g}" for name, value in self.values.items()]
        shown += [f"max_tokens {self.max_tokens}"] if self.max_tokens is not None else []
        if not shown:
            return ""
        return f"sampling defaults of {self.place}: {', '.join(shown)}; --generation-config none leaves them out"


def sampling_defaults(choice: str, files: ModelFiles) -> SamplingDefaults:
    """choice: `--generation-config`: auto (the model's file, where it has one), none, or a file or folder of one's own.

    Raises ConfigError where that is absent, ModelError naming file and field where a value is out of bounds.
    """
    if choice in NONE:
        return SamplingDefaults()
    path = files.path if choice == "auto" else Path(choice).expanduser()
    path = path / FILE if path.is_dir() else path
    if choice == "auto" and (files.kind == "gguf" or not path.is_file()):
        return SamplingDefaults()
    if not path.is_file():
        raise ConfigError(
            f"--generation-config must be auto, none, a file like {FILE} or a folder that holds one, got {choice!r}"
        )
    return _read(path)


def _read(path: Path) -> SamplingDefaults:
    fields = read_json(path)
    usual, values = SamplingParams(), {}
    for name, kind in _FIELDS.items():
        value = fields.values.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | kind):
            raise fields.bad(name, value, f"{'an integer' if kind is int else 'a number'} ({_REMEDY})")
        if value != getattr(usual, name):
            values[name] = value
    found = SamplingDefaults(values, fields.maybe_integer("max_new_tokens"), path)
    try:
        found.params()
    except RequestError as exc:
        raise ModelError(f"{path}: {exc} ({_REMEDY})") from None
    return found


_REMEDY = "correct it, or start with --generation-config none"
