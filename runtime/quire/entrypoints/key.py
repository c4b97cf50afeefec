"""`quire key`: a new API key, or the line of a key file for one that exists."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from quire.errors import ConfigError

key = typer.Typer(help="Make API keys and their lines in the file of --api-key-file.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="whose key it is, for logs and limits", metavar="NAME")]


@key.command()
def new(name: Name) -> None:
    """Make a new key.

    The line for the file goes to standard output, the key to standard error: it is shown this once and kept nowhere.
    """
    from quire.server.auth.keys import line_of, new_key

    made = new_key()
    print(f"quire: the key of {_checked(name)}, shown this once: {made}", file=sys.stderr, flush=True)
    print(line_of(name, made))


@key.command("hash")
def hash_(name: Name) -> None:
    """Make the line for a key that exists.

    The key is read from standard input, so that it stands in no list of processes.
    """
    from quire.server.auth.keys import line_of

    given = sys.stdin.readline().strip()
    if not given:
        raise ConfigError("quire key hash reads the key from standard input, where there was none")
    print(line_of(_checked(name), given))


def _checked(name: str) -> str:
    from quire.server.auth.keys import NAME_BOUND, may_be_named

    if not may_be_named(name):
        raise ConfigError(f"NAME must be {NAME_BOUND}, got {name!r}")
    return name
