"""The commands of `kubectl llmd`: options in, text out. What needs the cluster is imported when a command runs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire_operator.errors import PluginError
from quire_operator.plugin.options import SETTINGS, Context, Kubeconfig, Name, Namespace, console, plain, reach_of
from quire_operator.plugin.rollout import rollout
from quire_operator.plugin.talk import chat

if TYPE_CHECKING:
    from quire_operator.plugin.picture import Picture
    from quire_operator.plugin.reach import Reach

NOT_READY = 3
WATCH_S = 1.0

UsageError: Any = typer.BadParameter.__base__
"""What typer raises for a command line it cannot read; it exports only this subclass."""

app = typer.Typer(
    help="See and steer LLMDeployments: status, rollouts, size, logs, and a chat with the model.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SETTINGS,
    no_args_is_help=True,
)
app.add_typer(rollout, name="rollout")


@app.callback()
def general(
    ctx: typer.Context, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None
) -> None:
    from quire_operator.plugin.config import Flags

    ctx.obj = Flags(namespace, context, kubeconfig)


@app.command()
def status(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="one LLMDeployment; default: all")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="go on showing until all is ready; Ctrl-C ends it too")
    ] = False,
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json", help="form of what is shown")] = "text",
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show phase, conditions, revisions, rollout and pods.

    Exit status: 0 when every LLMDeployment shown answers on its newest edit, 3 when one does not, 1 for errors.
    """
    if output not in ("text", "json"):
        raise typer.BadParameter(f"--output is text or json, not {output!r}")
    if watch and output == "json":
        raise typer.BadParameter("--watch shows text; for programs there is kubectl wait and kubectl get -w -o json")
    reach = reach_of(ctx, namespace, context, kubeconfig)
    name = plain(name) if name is not None else None
    if watch:
        shown = _watched(reach, name)
    else:
        shown = _look(reach, name)
        if output == "json":
            told: Any = shown[0].to_json() if name is not None else [picture.to_json() for picture in shown]
            print(json.dumps(told, indent=2))
        elif shown:
            console().print(_drawn(shown, name))
        else:
            print(f"no LLMDeployment in namespace {reach.namespace}", file=sys.stderr)
    raise typer.Exit(0 if all(picture.ready for picture in shown) else NOT_READY)


@app.command()
def scale(
    ctx: typer.Context,
    name: Name,
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", min=0, help="wanted pods; 0 stops serving")],
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Set the number of replicas; refused where an autoscaler owns it."""
    from quire_operator.plugin.orders import not_scalable

    reach = reach_of(ctx, namespace, context, kubeconfig)
    owner = reach.parsed(plain(name))
    if (why := not_scalable(owner, replicas)) is not None:
        raise PluginError(why)
    before = owner.wanted_replicas
    if before == replicas:
        print(f"{owner.name} is to have {replicas} replicas already")
        return
    reach.scale(owner.name, replicas)
    print(
        f"{owner.name} goes from {before} to {replicas} replicas; kubectl llmd status {owner.name} -w shows how far it is"
    )


@app.command(short_help="Show the logs of all pods.")
def logs(
    ctx: typer.Context,
    name: Name,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="REVISION", help="pods of this one only")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on; pods that come later are shown too")] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="of containers that ended, before the restart")
    ] = False,
    tail: Annotated[int | None, typer.Option("--tail", metavar="N", min=0, help="the last N lines of each pod")] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the logs of all pods: of the engine, or of the download before it while that runs or has failed."""
    from quire_operator.plugin import follow as following

    if follow and previous:
        raise typer.BadParameter("--follow and --previous exclude each other: what has ended says nothing more")
    reach = reach_of(ctx, namespace, context, kubeconfig)
    name = plain(name)
    reach.get(name)
    write = _writer()
    if follow:
        following.follow(reach, lambda: following.streams_of(reach.pods(name, revision)), write, tail=tail)
    pods = reach.pods(name, revision)
    streams = following.streams_of(pods, previous=previous)
    if not streams:
        what = "no container of it has been restarted" if previous and pods else "no container of it has started yet"
        of = f"revision {revision} of {name}" if revision is not None else name
        raise PluginError(f"no logs of {of}: {what if pods else 'it has no pods'}; see kubectl llmd status {name}")
    following.show(reach, streams, write, previous=previous, tail=tail)


app.command()(chat)


def _look(reach: Reach, name: str | None) -> list[Picture]:
    from quire_operator.plugin.picture import picture_of

    bodies = [reach.get(name)] if name is not None else reach.every()
    now = time.time()
    return [
        picture_of(body, reach.pods(body["metadata"]["name"]) if name is not None else (), now=now) for body in bodies
    ]


def _watched(reach: Reach, name: str | None) -> list[Picture]:
    from rich.live import Live

    shown = _look(reach, name)
    with Live(_drawn(shown, name), console=console(), auto_refresh=False) as live:
        try:
            while not all(picture.ready and picture.bar is None for picture in shown):
                time.sleep(WATCH_S)
                shown = _look(reach, name)
                live.update(_drawn(shown, name), refresh=True)
        except KeyboardInterrupt:
            pass  # the exit status is that of the last look
    return shown


def _drawn(shown: Sequence[Picture], name: str | None) -> Any:
    from quire_operator.plugin import screen

    return screen.one(shown[0]) if name is not None else screen.many(shown)


def _writer() -> Any:
    from rich.text import Text

    screen = console()
    colours = ("cyan", "magenta", "green", "yellow", "blue", "red")
    seen: dict[str, str] = {}

    def write(stream: Any, line: str) -> None:
        style = seen.setdefault(stream.pod, colours[len(seen) % len(colours)])
        prefix = Text(f"{stream.pod} {stream.container} | ", style=style)
        screen.print(prefix.append(Text.from_ansi(line, style="default")), soft_wrap=True, highlight=False)

    return write
