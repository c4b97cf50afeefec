"""What the commands share: kubectl's options, the way to the cluster, the screen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from quire_operator.plugin.reach import Reach

SETTINGS = {"help_option_names": ["-h", "--help"]}

Name = Annotated[str, typer.Argument(metavar="NAME", help="name of the LLMDeployment")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", metavar="NS", help="namespace; default: that of the context")
]
Context = Annotated[str | None, typer.Option("--context", metavar="NAME", help="context of the kubeconfig")]
Kubeconfig = Annotated[
    str | None, typer.Option("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, then ~/.kube/config")
]


def console() -> Console:
    """Not narrower for files and pipes than the longest line: they are for programs."""
    from rich.console import Console

    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=400)


def reach_of(ctx: typer.Context, namespace: str | None, context: str | None, kubeconfig: str | None) -> Reach:
    from quire_operator.plugin.config import Flags
    from quire_operator.plugin.reach import Reach

    reach = Reach(Flags(namespace, context, kubeconfig).over(ctx.obj))
    ctx.call_on_close(reach.close)
    return reach


def plain(name: str) -> str:
    """`llmd/NAME`, as kubectl prints it, is that name too."""
    from quire_operator import labels

    kind, slash, rest = name.partition("/")
    return rest if slash and kind.split(".")[0] in (labels.SHORT_NAME, labels.SINGULAR, labels.PLURAL) else name
