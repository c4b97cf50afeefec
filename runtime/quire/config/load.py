"""File, environment and flags merged over the defaults: the only part that reads the outside world."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from quire.config.describe import bound_of, flag_of, kind_of, variable_of
from quire.config.fields import ALIASES, NEVER_EMPTY, EngineConfig
from quire.errors import ConfigError

Config = TypeVar("Config", bound=EngineConfig)


def load(
    cls: type[Config], *, flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None
) -> Config:
    """Merge file, environment and flags over the defaults.

    flags: field name to value, only those given; values may be strings as on a command line. Raises ConfigError that
    names the flag, the value, the bound and where the value came from.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source, origin in (
        (_from_file(cls, file) if file else {}, f"{{name}} in {file}"),
        (_from_environ(cls, environ), "{variable}"),
        (flags, "{flag}"),
    ):
        for name, value in source.items():
            field = cls.model_fields[name]
            values[name] = _shaped(value, kind_of(cls, name), nullable=field.default is None)
            origins[name] = origin.format(name=name, variable=variable_of(name), flag=flag_of(name))
            if name in NEVER_EMPTY and not values[name]:
                raise ConfigError(
                    f"{origins[name]} must be {bound_of(cls, name)}, got {value!r}; leave it out where none is wanted"
                )
    try:
        return cls(**values)
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        at, *inside = error["loc"]
        name = str(at)
        got = error["input"] if inside else values[name]  # of a list the bad item alone: the others may be secrets
        raise ConfigError(f"{origins[name]} must be {bound_of(cls, name)}, got {got!r}") from None


def _shaped(value: Any, kind: str, *, nullable: bool) -> Any:
    """A text from a command line, a variable or a file, in the shape pydantic expects."""
    if kind == "list" and isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if kind in ("text", "size") and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and nullable and value.lower() in ("", "none", "null"):
        return None
    return value


def _from_environ(cls: type[EngineConfig], environ: Mapping[str, str]) -> dict[str, str]:
    """Variables of this configuration; empty ones count as unset.

    Kubernetes gives containers `QUIRE_PORT=tcp://...` where a Service is called quire; such values are not meant for us.
    """
    names = {variable_of(name): name for name in cls.model_fields} | {variable_of(a): n for a, n in ALIASES.items()}
    return {
        name: environ[variable]
        for variable, name in names.items()
        if environ.get(variable) and not re.match(r"(tcp|udp|sctp)://", environ[variable])
    }


def _from_file(cls: type[EngineConfig], file: Path) -> dict[str, Any]:
    import yaml  # the one user of it, and most starts have no file

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(f"--config must be a readable YAML file, got {file}: {' '.join(str(exc).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config {file} must hold a mapping of field to value, got {type(content).__name__}")
    values: dict[str, Any] = {}
    for key, value in content.items():
        spelled = str(key).replace("-", "_")
        name = ALIASES.get(spelled, spelled)
        if name not in cls.model_fields:
            near = difflib.get_close_matches(name, cls.model_fields, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{key!r} in {file} is no field of the configuration{hint}")
        if value is not None:
            values[name] = tuple(value) if isinstance(value, list) else value
    return values
