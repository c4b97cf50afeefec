"""`quire`: serve, generate, pull, bench, version.

Errors made on purpose end with one line, `quire: error: ...`, and no traceback: status 2 for a bad command line or
configuration, 1 for everything else. Only light modules are imported here, `quire --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from quire.config import EngineConfig, ServeConfig, load
from quire.entrypoints.flags import normalise, with_flags
from quire.errors import ConfigError, QuireError, RequestError

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

NOTES = (
    "Values in brackets are defaults. Write --flag=value; a boolean also works alone or as --no-flag. Every flag is also a "
    "variable (--max-num-seqs is QUIRE_MAX_NUM_SEQS) and a field of the --config file (max_num_seqs); a flag wins over a "
    "variable, a variable over the file. Sizes are bytes, or 512Mi, 4Gi, 1G."
)


def _serve(*, given: dict[str, Any], config_file: Path | None) -> None:
    """Serve MODEL behind an OpenAI endpoint.

    Listens at once; /health/ready turns 200 when the model is loaded. Ctrl-C or SIGTERM finishes running requests first.
    """
    config = load(ServeConfig, flags=given, environ=os.environ, file=config_file)
    from quire.entrypoints.serve import run  # uvicorn, FastAPI and more: only where they are needed

    raise typer.Exit(run(config))


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


bench = typer.Typer(
    help="Measure parts of the engine, without a model; status 1 where a target is missed.", rich_markup_mode=None
)
app.add_typer(bench, name="bench")


@bench.command("scheduler")
def bench_scheduler(
    num_seqs: Annotated[
        int, typer.Option("--num-seqs", metavar="N", min=1, max=4096, help="decoding requests in a step")
    ] = 256,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=10, help="steps in each round")] = 400,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="rounds; the best one counts")] = 5,
) -> None:
    """Time the scheduler: a step of decoding requests, and the prefix look-up of a long prompt.

    CPU time of one thread; the best round counts.
    """
    from quire.entrypoints.bench_scheduler import run

    report = run(num_seqs=num_seqs, steps=steps, rounds=rounds)
    print(report)
    raise typer.Exit(0 if report.passed else 1)


@bench.command("kv")
def bench_kv(
    num_requests: Annotated[int, typer.Option("--requests", metavar="N", min=100, help="requests to serve")] = 1000,
    num_blocks: Annotated[
        int, typer.Option("--num-blocks", metavar="N", min=1024, help="KV blocks in the pool")
    ] = 4096,
    block_size: Annotated[
        int, typer.Option("--block-size", metavar="N", min=1, max=256, help="token slots in a block")
    ] = 16,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="of the lengths")] = 0,
) -> None:
    """Show how much of the KV blocks in use holds tokens, under full load with lengths as in chats.

    The real scheduler and block pool serve made-up requests; there is no model.
    """
    from quire.entrypoints.bench_kv import run

    report = run(num_requests=num_requests, num_blocks=num_blocks, block_size=block_size, seed=seed)
    print(report)
    raise typer.Exit(0 if report.passed else 1)


@app.command()
def version() -> None:
    """Print the version."""
    import quire

    print(quire.__version__)


def _command(cls: type[EngineConfig], name: str, function: Any, *, skip: frozenset[str] = frozenset()) -> None:
    class Command(typer.core.TyperCommand):
        """Gives booleans without a value one, before anything else looks at the arguments."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            return super().parse_args(ctx, normalise(args, cls))

        def format_options(self, ctx: Any, formatter: Any) -> None:
            """One section per group of flags, the command's own first."""
            sections: dict[str, list[tuple[str, str]]] = {}
            for parameter in self.get_params(ctx):
                if (record := parameter.get_help_record(ctx)) is not None:
                    group = getattr(parameter, "rich_help_panel", None)
                    title = "Arguments" if parameter.param_type_name == "argument" else group or "Options"
                    sections.setdefault(title, []).append(record)
            for title, records in sections.items():
                with formatter.section(title):
                    formatter.write_dl(records, col_max=28)
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(NOTES)

    app.command(name, cls=Command)(with_flags(cls, function, skip=skip))


_command(ServeConfig, "serve", _serve)
_command(EngineConfig, "generate", _generate)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = app(words or ["--help"], prog_name="quire", standalone_mode=False)
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


if __name__ == "__main__":
    main()
