"""Command line of the harness: `PYTHONPATH=e2e .venv/bin/python -m cluster COMMAND`. Progress goes to stderr, results to stdout."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster import choice, interrupt, programs
from cluster.client import shell_exports
from cluster.errors import HarnessError
from cluster.plan import ClusterConfig
from cluster.progress import Progress
from cluster.providers import choose

ENV_LINE = 'eval "$(PYTHONPATH=e2e .venv/bin/python -m cluster env)"'


def parser() -> argparse.ArgumentParser:
    """The whole surface; each command says what it does."""
    main_parser = argparse.ArgumentParser(
        prog="cluster",
        description="A Kubernetes cluster for development and tests: KUBECONFIG's, kind's, or a local one of real components.",
    )
    commands = main_parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="bring the cluster up; a healthy one with the same settings is reused")
    up.add_argument("--nodes", type=int, default=2, help="worker nodes (default: %(default)s)")
    up.add_argument("--gpus", type=int, default=0, metavar="N", help="fake GPUs per node (default: %(default)s)")
    up.add_argument(
        "--image", type=Path, action="append", default=[], metavar="ARCHIVE", help="image archive to load; repeatable"
    )
    down = commands.add_parser("down", help="end the cluster and check that nothing is left")
    down.add_argument("--purge", action="store_true", help="also delete stored images and logs")
    load = commands.add_parser("load", help="load image archives (docker-archive or oci-archive) into every node")
    load.add_argument("archives", type=Path, nargs="+", metavar="ARCHIVE")
    commands.add_parser("status", help="show nodes, daemons, memory and images; exit status 1 when it is not healthy")
    commands.add_parser("env", help=f"print export lines: {ENV_LINE}")
    commands.add_parser("prerequisites", help="install the Debian or Ubuntu packages that are missing")
    commands.add_parser("tools", help="build the programs that the cluster needs; print their paths")
    return main_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, or 1 with one clear message on stderr."""
    arguments = parser().parse_args(argv)
    try:
        return _dispatch(arguments, Progress())
    except HarnessError as error:
        print(f"cluster: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cluster: interrupted", file=sys.stderr)
        return 130


def _dispatch(arguments: argparse.Namespace, progress: Progress) -> int:
    match arguments.command:
        case "up":
            provider = choose(progress)
            provider.up(ClusterConfig(arguments.nodes, arguments.gpus), arguments.image)
            progress.say(f"the {provider.name} cluster is up; for a shell: {ENV_LINE}")
        case "down":
            choose(progress).down(arguments.purge)
        case "load":
            choose(progress).load(arguments.archives)
        case "status":
            report = choose(progress).status()
            print(report.text)
            return 0 if report.healthy else 1
        case "env":
            print(shell_exports(choose(progress).connect()))
        case "prerequisites":
            installed = choose(progress).prerequisites()
            print(f"installed: {' '.join(installed)}" if installed else "everything is there")
        case "tools":
            for name, path in sorted(programs.ensure(choice.provider(), progress).items()):
                print(f"{name}\t{path}")
    return 0


if __name__ == "__main__":
    interrupt.install()
    sys.exit(main())
