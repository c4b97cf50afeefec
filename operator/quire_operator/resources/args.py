"""Arguments of `quire serve` for one LLMDeployment; the mapping from `spec.engine` is mechanical. Pure."""

from __future__ import annotations

from typing import Any

from quire_operator import labels
from quire_operator.api import Engine, seconds
from quire_operator.resources.deadlines import startup_is_known, startup_s
from quire_operator.resources.source import model_argument
from quire_operator.spec import Deployment

_DURATIONS = frozenset(name for name, hint in Engine.__annotations__.items() if str(hint).startswith("Duration"))
_NOT_FLAGS = frozenset({"extra_args"})


def flag_name(field: str) -> str:
    """`max_num_seqs` to `--max-num-seqs`."""
    return "--" + field.replace("_", "-")


def serve_args(owner: Deployment) -> list[str]:
    """`serve MODEL --flag=value …`: the operator's own flags, then those of spec.engine in alphabetical order, then extraArgs."""
    args = ["serve", model_argument(owner)]
    args += [f"--served-model-name={name}" for name in owner.model_names]
    args += ["--host=0.0.0.0", f"--port={labels.ENGINE_PORT}"]
    args.append(f"--drain-timeout={seconds(owner.spec.rollout.drain_timeout)}")
    engine = owner.spec.engine
    if engine.load_timeout is None and startup_is_known(owner.spec):
        args.append(f"--load-timeout={startup_s(owner.spec)}")
    for field in sorted(set(Engine.model_fields) - _NOT_FLAGS):
        value = getattr(engine, field)
        if value is not None:
            args.append(f"{flag_name(field)}={_text(field, value)}")
    return [*args, *engine.extra_args]


def _text(field: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if field in _DURATIONS:
        return str(seconds(value))
    return str(value)
