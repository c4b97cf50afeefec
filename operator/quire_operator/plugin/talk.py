"""`kubectl llmd chat`: one question, or a talk at a terminal."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from quire_operator.errors import PluginError
from quire_operator.plugin.options import Context, Kubeconfig, Name, Namespace, plain, reach_of

if TYPE_CHECKING:
    from quire_operator.plugin.chat import Piece, Talk


def chat(
    ctx: typer.Context,
    name: Name,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="[PROMPT]", help="one question; default: standard input, or a talk at a terminal"),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="system message")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", metavar="N", min=1, help="longest answer")] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", metavar="X", min=0.0, help="0 is greedy")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", metavar="KEY", envvar="QUIRE_API_KEY", show_envvar=False, help="default: $QUIRE_API_KEY"
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="the router; default: port-forward to its Service")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Talk to the model through the router. Ctrl-C ends an answer, Ctrl-D the talk."""
    from quire_operator.plugin.chat import Talk, connect
    from quire_operator.plugin.forward import forwarded, target_of

    reach = reach_of(ctx, namespace, context, kubeconfig)
    owner = reach.parsed(plain(name))
    inside = owner.status.url
    if url is None and inside is None:
        raise PluginError(f"{owner.name} has no address yet: kubectl llmd status {owner.name} says why")
    base = (url or inside or "").rstrip("/").removesuffix("/v1")
    target = target_of(base) if url is None else None
    given = {"max_tokens": max_tokens, "temperature": temperature}
    sampling = {key: value for key, value in given.items() if value is not None}
    way = forwarded(target, reach.flags.for_kubectl()) if target is not None else nullcontext(base)
    with way as address, connect(address, api_key) as client:
        opening = [{"role": "system", "content": system}] if system is not None else []
        talk = Talk(client, owner.model_names[0], sampling, opening)
        if prompt is None and sys.stdin.isatty():
            _talk(talk)
            return
        if not talk.ask(prompt if prompt is not None else sys.stdin.read(), _say):
            raise KeyboardInterrupt
        print()


def _talk(talk: Talk) -> None:
    import readline  # noqa: F401  (input() edits lines with it)

    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if not question:
            continue
        try:
            whole = talk.ask(question, _say)
        except PluginError as error:
            print(f"error: {error}", file=sys.stderr)
            continue
        print("" if whole else " [ended]")


def _say(piece: Piece) -> None:
    dim = piece.thought and sys.stdout.isatty()
    sys.stdout.write(f"\033[2m{piece.text}\033[0m" if dim else piece.text)
    sys.stdout.flush()
