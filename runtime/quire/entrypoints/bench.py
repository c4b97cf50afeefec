"""The commands of `quire bench`. Light: what a benchmark needs is imported when it runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.config import EngineConfig, ServeConfig, load
from quire.entrypoints.command import add_command

if TYPE_CHECKING:
    from quire.bench.report import Figure, Report

bench = typer.Typer(
    help="Measure the engine on fixed workloads, or parts of it without a model (docs/performance.md).",
    rich_markup_mode=None,
)

Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write everything that was found as JSON")]
Repeats = Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="runs; the table shows their median")]
Requests = Annotated[int, typer.Option("--requests", metavar="N", min=1, help="requests")]
PromptSpan = Annotated[
    str, typer.Option("--prompt-tokens", metavar="N|LEAST:MOST", help="length of prompts, drawn uniformly")
]
OutputSpan = Annotated[
    str, typer.Option("--output-tokens", metavar="N|LEAST:MOST", help="length of answers, drawn uniformly")
]


def _throughput(
    *,
    requests: Requests = 64,
    prompt_tokens: PromptSpan = "16:512",
    output_tokens: OutputSpan = "16:256",
    repeats: Repeats = 1,
    json: Json = None,
    given: dict[str, Any],
    config_file: Path | None,
) -> None:
    """Many requests at once, in this process (W1).

    Lengths are mixed; tells tokens per second.
    """
    config = load(EngineConfig, flags=given, environ=os.environ, file=config_file)
    from quire.bench import throughput
    from quire.bench.workloads import span

    report = throughput.run(
        config,
        requests=requests,
        prompt_tokens=span(prompt_tokens, flag="--prompt-tokens"),
        output_tokens=span(output_tokens, flag="--output-tokens"),
        repeats=repeats,
    )
    _finish(report, throughput.FIGURES, json)


def _latency(
    *,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", metavar="N", min=1, help="length of the prompt")
    ] = 128,
    output_tokens: Annotated[
        int, typer.Option("--output-tokens", metavar="N", min=2, help="length of the answer")
    ] = 128,
    repeats: Repeats = 3,
    json: Json = None,
    given: dict[str, Any],
    config_file: Path | None,
) -> None:
    """One request at a time, in this process (W2).

    Tells the time to the first token, and how fast tokens follow it.
    """
    config = load(EngineConfig, flags=given, environ=os.environ, file=config_file)
    from quire.bench import latency

    report = latency.run(config, prompt_tokens=prompt_tokens, output_tokens=output_tokens, repeats=repeats)
    _finish(report, latency.FIGURES, json)


def _prefix(
    *,
    requests: Requests = 32,
    prefix_tokens: Annotated[
        int, typer.Option("--prefix-tokens", metavar="N", min=1, help="tokens that all prompts begin with")
    ] = 1024,
    suffix_tokens: Annotated[
        int, typer.Option("--suffix-tokens", metavar="N", min=1, help="tokens of its own that each prompt ends with")
    ] = 32,
    output_tokens: Annotated[int, typer.Option("--output-tokens", metavar="N", min=1, help="length of answers")] = 32,
    repeats: Repeats = 1,
    json: Json = None,
    given: dict[str, Any],
    config_file: Path | None,
) -> None:
    """Requests with a shared beginning, in this process (W3).

    Served at once, then the same again: what the prefix cache saves.
    """
    config = load(EngineConfig, flags=given, environ=os.environ, file=config_file)
    from quire.bench import prefix

    report = prefix.run(
        config,
        requests=requests,
        prefix=prefix_tokens,
        suffix=suffix_tokens,
        output_tokens=output_tokens,
        repeats=repeats,
    )
    _finish(report, prefix.FIGURES, json)


def _serve(
    *,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", help="a server that runs already, whose tokenizer MODEL has; default: start one"
        ),
    ] = None,
    requests: Requests = 64,
    clients: Annotated[int, typer.Option("--clients", metavar="N", min=1, help="requests at any time")] = 16,
    prompt_tokens: PromptSpan = "16:512",
    output_tokens: OutputSpan = "16:256",
    output_cap: Annotated[
        int, typer.Option("--output-cap", metavar="N", min=1, help="tokens of an answer at most")
    ] = 64,
    repeats: Repeats = 1,
    json: Json = None,
    given: dict[str, Any],
    config_file: Path | None,
) -> None:
    """Streaming clients of a server over HTTP (W4).

    Tells requests per second, latencies as clients see them, and memory. The server is a process of its own, on a free port.
    """
    config = load(ServeConfig, flags=given, environ=os.environ, file=config_file)
    from quire.bench import serve
    from quire.bench.workloads import span

    report = serve.run(
        config,
        _passed_on(given, config_file),
        url=url,
        requests=requests,
        clients=clients,
        prompt_tokens=span(prompt_tokens, flag="--prompt-tokens"),
        output_tokens=span(output_tokens, flag="--output-tokens"),
        output_cap=output_cap,
        repeats=repeats,
    )
    _finish(report, serve.figures_of(report.runs), json)


def _stream(
    *,
    requests: Annotated[int, typer.Option("--requests", metavar="N", min=1, help="requests")] = 192,
    clients: Annotated[int, typer.Option("--clients", metavar="N", min=1, help="streams at any time")] = 64,
    output_tokens: Annotated[int, typer.Option("--output-tokens", metavar="N", min=2, help="length of answers")] = 128,
    interval_ms: Annotated[
        float, typer.Option("--interval", metavar="MS", min=1.0, help="milliseconds between tokens of a stream")
    ] = 40.0,
    repeats: Repeats = 3,
    json: Json = None,
    given: dict[str, Any],
    config_file: Path | None,
) -> None:
    """The server's part of a stream: chunks for each CPU second of it.

    Its engine is a process that computes nothing and says each prompt again; MODEL gives the tokenizer.
    """
    config = load(ServeConfig, flags=given, environ=os.environ, file=config_file)
    from quire.bench import stream

    report = stream.run(
        config,
        given,
        str(config_file) if config_file else None,
        requests=requests,
        clients=clients,
        output_tokens=output_tokens,
        interval_s=interval_ms / 1e3,
        repeats=repeats,
    )
    _finish(report, stream.FIGURES, json)


def _start(
    *,
    under_load: Annotated[
        bool,
        typer.Option("--load/--no-load", help="also measure memory while `bench serve`'s clients stream (minutes)"),
    ] = False,
    repeats: Repeats = 3,
    json: Json = None,
    given: dict[str, Any],
    config_file: Path | None,
) -> None:
    """From process start to the first token, and memory.

    A server is started, asked over HTTP and ended, several times.
    """
    config = load(ServeConfig, flags=given, environ=os.environ, file=config_file)
    from quire.bench import start

    report = start.run(config, _passed_on(given, config_file), repeats=repeats, load=under_load)
    _finish(report, start.figures_of(report.runs), json)


def _perplexity(
    *,
    text: Annotated[
        Path | None,
        typer.Option("--text", metavar="FILE", help="text in UTF-8; default: two chapters of The Time Machine"),
    ] = None,
    context: Annotated[
        int, typer.Option("--context", metavar="N", min=2, help="tokens of each part of the text, foretold on its own")
    ] = 512,
    json: Json = None,
    given: dict[str, Any],
    config_file: Path | None,
) -> None:
    """How well the model foretells a text, in this process.

    What --dtype and --quantization cost in quality: the same text with either.
    """
    config = load(EngineConfig, flags=given, environ=os.environ, file=config_file)
    from quire.bench import perplexity

    _finish(perplexity.run(config, text=text, context=context), perplexity.FIGURES, json)


def _passed_on(given: dict[str, Any], config_file: Path | None) -> dict[str, Any]:
    """Flags for the server that is started."""
    return {**given, "config": str(config_file)} if config_file else given


def _finish(report: Report, figures: Sequence[Figure], json: Path | None) -> None:
    from quire.bench.report import show, write

    show(report, figures)
    if json is not None:
        write(report, json)


OWN = frozenset(
    {
        "host",
        "port",
        "log_level",
        "api_key",
        "api_key_file",
        "metrics_auth",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_ca_certs",
    }
)
"""Flags of `quire serve` that the benchmark sets itself, or that would lock it out."""
add_command(bench, EngineConfig, "throughput", _throughput)
add_command(bench, EngineConfig, "latency", _latency)
add_command(bench, EngineConfig, "prefix", _prefix)
add_command(bench, EngineConfig, "perplexity", _perplexity)
add_command(bench, ServeConfig, "serve", _serve, skip=OWN)
add_command(bench, ServeConfig, "stream", _stream, skip=OWN)
add_command(bench, ServeConfig, "start", _start, skip=OWN)


@bench.command("scheduler")
def bench_scheduler(
    num_seqs: Annotated[
        int, typer.Option("--num-seqs", metavar="N", min=1, max=4096, help="decoding requests in a step")
    ] = 256,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=10, help="steps in each round")] = 400,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="rounds; the best one counts")] = 5,
) -> None:
    """The scheduler's part of a step, without a model.

    Times a step of decoding requests, and the prefix look-up of a long prompt; CPU time of one thread, the best round counts. Status
    1 where a target is missed.
    """
    from quire.bench.scheduler import run

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
    """How full KV blocks are under load, without a model.

    The real scheduler and block pool serve made-up requests with lengths as in chats. Status 1 where the target is missed.
    """
    from quire.bench.kv import run

    report = run(num_requests=num_requests, num_blocks=num_blocks, block_size=block_size, seed=seed)
    print(report)
    raise typer.Exit(0 if report.passed else 1)
