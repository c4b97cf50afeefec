"""Command-line flags made from the configuration's fields: one flag per field, nothing written twice.

Every flag takes its value as `--flag=value` or `--flag value`. A boolean also works alone (`--enable-prefix-caching`)
and negated (`--no-enable-prefix-caching`). Values stay text here; `quire.config.load` checks them, so that a bad value gets
the same sentence whether it came from a flag, a variable or a file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from quire.config import EngineConfig, ServeConfig
from quire.config.describe import bound_of, choices_of, description, flag_names, kind_of, metavar

BOOLEAN_WORDS = frozenset({"true", "false", "1", "0", "yes", "no", "on", "off"})
_ARGUMENT = "model"


def normalise(arguments: Sequence[str], cls: type[EngineConfig]) -> list[str]:
    """Booleans without a value get one: `--x` becomes `--x=true`, `--no-x` becomes `--x=false`."""
    booleans = {flag for name in cls.model_fields if kind_of(cls, name) == "bool" for flag in flag_names(name)}
    negated = {"--no-" + flag.removeprefix("--"): flag for flag in booleans}
    out: list[str] = []
    for index, argument in enumerate(arguments):
        if argument == "--":
            return [*out, *arguments[index:]]
        if argument in negated:
            out.append(f"{negated[argument]}=false")
        elif argument in booleans and not _is_boolean(arguments[index + 1 : index + 2]):
            out.append(f"{argument}=true")
        else:
            out.append(argument)
    return out


def _is_boolean(following: Sequence[str]) -> bool:
    return bool(following) and following[0].lower() in BOOLEAN_WORDS


def with_flags(cls: type[EngineConfig], command: Callable[..., Any], *, skip: frozenset[str] = frozenset()) -> Any:
    """A typer callback: the parameters of `command`, then MODEL, --config and a flag for each field of `cls`.

    `command` gets its own parameters by name, and `given` (field to text, only what was given) and `config_file`.
    """
    own = [
        p
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.name not in ("given", "config_file")
    ]
    parameters = [_argument(cls), *own, _config_option()]
    parameters += [_option(cls, name) for name in cls.model_fields if name != _ARGUMENT and name not in skip]

    def callback(**values: Any) -> Any:
        given = {name: values.pop(name) for name in cls.model_fields if name in values}
        given = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v not in (None, [])}
        return command(given=given, config_file=values.pop("config_file"), **values)

    callback.__doc__ = command.__doc__
    callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    callback.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return callback


def _argument(cls: type[EngineConfig]) -> inspect.Parameter:
    info = typer.Argument(help=description(cls, _ARGUMENT), metavar="MODEL", show_default=False)
    return _parameter(_ARGUMENT, Annotated[str | None, info])


def _config_option() -> inspect.Parameter:
    info = typer.Option(
        "--config", metavar="FILE", help="YAML file with fields of this configuration; flags and QUIRE_* win over it"
    )
    return _parameter("config_file", Annotated[Path | None, info])


def _option(cls: type[EngineConfig], name: str) -> inspect.Parameter:
    is_list = kind_of(cls, name) == "list"
    info = typer.Option(
        *flag_names(name),
        metavar=metavar(cls, name),
        help=description(cls, name),
        show_default=False,
        rich_help_panel="Engine" if name in EngineConfig.model_fields else "Server",
    )
    return _parameter(name, Annotated[list[str] | None if is_list else str | None, info])


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


REFERENCE_HEAD = """# Configuration

<!-- Made from the code by `python -m quire.entrypoints.flags > docs/configuration.md`; a test fails when it is stale. -->

`quire serve [MODEL] --flag=value ...`, and the flags of the engine also for `quire generate`. Every field is written once, in
`runtime/quire/config/fields.py`, and has four mechanical spellings:

| where | spelling of `max_num_seqs` |
|---|---|
| flag | `--max-num-seqs=64` (or `--max-num-seqs 64`) |
| environment variable | `QUIRE_MAX_NUM_SEQS=64` |
| file of `--config FILE` (YAML) | `max_num_seqs: 64` (or `max-num-seqs`) |
| `spec.engine` of an LLMDeployment | `maxNumSeqs: 64` |

A flag wins over a variable, a variable over the file, the file over the default. A bad value ends the start with status 2
and one line, as `quire: error: --max-num-seqs must be an integer between 1 and 4096, got '0'`.

- Programs write `--flag=value` for every type, booleans too: `--enable-prefix-caching=false`. People may also write
  `--enable-prefix-caching`, `--no-enable-prefix-caching`, `--enable-prefix-caching true`.
- Lists: repeat the flag; in a variable separate by commas.
- Sizes: bytes, or with `k M G T` (powers of 1000) or `Ki Mi Gi Ti` (powers of 1024).
- An empty variable counts as unset, and so does one that begins with `tcp://`, `udp://` or `sctp://`: Kubernetes makes
  `QUIRE_PORT` and the like for a Service called quire.
- `QUIRE_CACHE_DIR` is where models and packed weights are kept (default `~/.cache/quire`); `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN` and
  `HF_HUB_OFFLINE` mean what they mean to the Hugging Face hub.
"""


def reference() -> str:
    """The whole of docs/configuration.md."""
    engine = list(EngineConfig.model_fields)
    server = [name for name in ServeConfig.model_fields if name not in EngineConfig.model_fields]
    return f"{REFERENCE_HEAD}\n{_table('Engine', engine)}\n{_table('Server', server)}"


def _table(title: str, names: Sequence[str]) -> str:
    rows = [f"## {title}", "", "| flag | values | default | meaning |", "|---|---|---|---|"]
    for name in names:
        field, kind = ServeConfig.model_fields[name], kind_of(ServeConfig, name)
        choices = ", ".join(f"`{choice}`" for choice in choices_of(ServeConfig, name)) if kind == "choice" else ""
        default = field.default
        shown = "-" if default in (None, ()) else f"`{str(default).lower() if kind == 'bool' else default}`"
        flags = "`MODEL`" if name == _ARGUMENT else ", ".join(f"`{flag}`" for flag in flag_names(name))
        text = f"{choices or bound_of(ServeConfig, name)} | {shown} | {field.description}"
        rows.append(f"| {flags} | {text} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
