"""`kubectl llmd rollout`: commands by the annotation that the operator obeys, and the list of revisions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from quire_operator.errors import PluginError
from quire_operator.plugin.options import SETTINGS, Context, Kubeconfig, Name, Namespace, console, plain, reach_of

if TYPE_CHECKING:
    from quire_operator.plugin.reach import Reach

rollout = typer.Typer(
    help="Pause, resume, promote, abort and retry rollouts; list revisions.",
    rich_markup_mode=None,
    context_settings=SETTINGS,
    no_args_is_help=True,
)
NoWait = Annotated[bool, typer.Option("--no-wait", help="do not wait until the operator has carried it out")]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.0, help="how long to wait for that")]


def _add(command: str, summary: str, more: str = "") -> None:
    def run(
        ctx: typer.Context,
        name: Name,
        no_wait: NoWait = False,
        timeout: Timeout = 60.0,
        namespace: Namespace = None,
        context: Context = None,
        kubeconfig: Kubeconfig = None,
    ) -> None:
        _order(reach_of(ctx, namespace, context, kubeconfig), command, plain(name), wait=not no_wait, timeout_s=timeout)

    rollout.command(command, help=f"{summary} {more}".strip(), short_help=summary)(run)


_add("pause", "Let nothing move on until resume.", "Before an edit, it holds the next rollout.")
_add("resume", "End the pause, or the wait of the present step.")
_add("promote", "Leave out the remaining steps.")
_add(
    "abort",
    "Go back to the stable revision.",
    "Requests go there at once, then pods. It holds until retry or another edit.",
)
_add("retry", "Begin again with the first step.")


@rollout.command(short_help="List revisions and what each changed.")
def history(
    ctx: typer.Context, name: Name, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None
) -> None:
    """List revisions, the newest first, and what each changed in the pods.

    To return to one: `abort` while the rollout is under way; afterwards apply the manifest of that time, which uses the
    old revision's workload again (as many as spec.rollout.revisionHistoryLimit are kept).
    """
    from quire_operator.plugin import screen
    from quire_operator.plugin.history import history_of

    reach = reach_of(ctx, namespace, context, kubeconfig)
    owner = reach.parsed(plain(name))
    entries = history_of(owner.status, reach.workloads(owner.name), now=time.time())
    if not entries:
        raise PluginError(f"{owner.name} has no revision yet: kubectl llmd status {owner.name} says why")
    console().print(screen.revisions(entries))


def _order(reach: Reach, command: str, name: str, *, wait: bool, timeout_s: float) -> None:
    from quire_operator import labels
    from quire_operator.plugin import orders

    owner = reach.parsed(name)
    if (why := orders.objection(owner, command)) is not None:
        raise PluginError(f"{command} makes no sense now: {why}")
    reach.command(name, command)
    if not wait:
        print(f"{name}: {labels.ROLLOUT}={command} is set")
        return
    late = (
        f"after {timeout_s:g} s the operator has not carried it out; {labels.ROLLOUT}={command} stays set. "
        "Is it running? kubectl get pods -A -l app.kubernetes.io/part-of=quire"
    )
    owner = reach.until(name, lambda found: found.command != command, timeout_s=timeout_s, late=late)
    if (why := orders.failed(owner, command)) is not None:
        raise PluginError(why)
    print(orders.outcome(owner, command))
