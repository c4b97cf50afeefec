"""The commands of `quire`: serve, generate, pull, fetch, key, bench, version.

Errors made on purpose end with one line, `quire: error: ...`, and no traceback: status 2 for a bad command line or
configuration, 1 for everything else. Only light modules are imported here, `quire --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from quire.config import EngineConfig, ServeConfig, load
from quire.entrypoints.bench import bench
from quire.entrypoints.command import add_command
from quire.entrypoints.fetch import fetch, fetch_wait
from quire.entrypoints.key import key
from quire.errors import ConfigError, QuireError, RequestError

if TYPE_CHECKING:
    from quire.engine.spawn import Spawned

app = typer.Typer(
    name="quire",
    help="Serve large language models: an OpenAI endpoint over a paged, continuously batching engine.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_UsageError: Any = typer.BadParameter.__base__
"""What typer raises for a command line it cannot read; it exports only this subclass."""


def _serve(*, ctx: typer.Context, given: dict[str, Any], config_file: Path | None) -> None:
    """Serve MODEL behind an OpenAI endpoint.

    Listens at once; /health/ready turns 200 when the model is loaded. Ctrl-C or SIGTERM finishes running requests first.
    """
    config = load(ServeConfig, flags=given, environ=os.environ, file=config_file)
    from quire.entrypoints.serve import run  # uvicorn, FastAPI and more: only where they are needed

    raise typer.Exit(run(config, ctx.obj))


def _generate(
    *,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="the prompt; default: standard input")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="send the prompt as a user's message")] = False,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="system message (with --chat)")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", help="tokens to generate at most")
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", metavar="X", help="0 is greedy")] = 0.0,
    top_p: Annotated[
        float, typer.Option("--top-p", metavar="X", help="keep the likeliest tokens up to this sum")
    ] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", metavar="N", help="keep the likeliest N tokens; 0 is off")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="text that ends the answer (repeat the flag)")
    ] = None,
    given: dict[str, Any],
    config_file: Path | None,
) -> None:
    """Generate text with MODEL, without a server.

    The answer streams to standard output.
    """
    text = prompt if prompt is not None else sys.stdin.read()
    config = load(EngineConfig, flags=given, environ=os.environ, file=config_file)
    from quire.entrypoints.generate import run

    sampling = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k}
    run(config, text, chat=chat, system=system, sampling=sampling, stop=tuple(stop or ()))


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="a bundled model such as smollm2", metavar="NAME")],
    to: Annotated[Path | None, typer.Option("--to", metavar="PATH", help="copy the file there as well")] = None,
) -> None:
    """Put a bundled model into the model cache.

    The cache is $QUIRE_CACHE_DIR/models, by default ~/.cache/quire/models; prints where the file is.
    """
    from quire.entrypoints.pull import run

    run(name, to)


@app.command()
def version() -> None:
    """Print the version."""
    import quire

    print(quire.__version__)


app.command()(fetch)
app.command()(fetch_wait)
add_command(app, ServeConfig, "serve", _serve)
add_command(app, EngineConfig, "generate", _generate)
app.add_typer(key, name="key")
app.add_typer(bench, name="bench")


def run(words: Sequence[str], spawned: Spawned | None = None) -> NoReturn:
    """Run a command line (without the program's name) and exit. spawned: a process for the engine of `serve`."""
    try:
        status = app(list(words) or ["--help"], prog_name="quire", standalone_mode=False, obj=spawned)
    except _UsageError as exc:
        _end(ConfigError(f"{exc.format_message()} (see quire {words[0]} --help)"), 2)
    except (ConfigError, RequestError) as exc:
        _end(exc, 2)
    except QuireError as exc:
        _end(exc, 1)
    raise SystemExit(status if isinstance(status, int) else 0)


def _end(exc: QuireError, status: int) -> NoReturn:
    message = " ".join(str(exc).split()) or type(exc).__name__
    sys.stdout.flush()
    print(f"quire: error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(status)
