"""The script `kubectl_complete-llmd`: kubectl runs it for completion of `kubectl llmd ...` and reads one word a line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

NO_FILES = ":4"
"""The last line: these are all, do not offer files."""
FILES = ":0"


def main() -> None:
    """Errors are silence: a shell has no place for them."""
    from typer.main import get_command

    from quire_operator.plugin.commands import app

    words = sys.argv[1:] or [""]
    found, last = completions(get_command(app), words, lambda: _names(words))
    print(*found, last, sep="\n")


def completions(root: Any, words: Sequence[str], names: Callable[[], Sequence[str]]) -> tuple[list[str], str]:
    """For the last of `words`. names: the LLMDeployments there are, asked for only where one belongs."""
    command, before, arguments = root, "", 0
    for word in words[:-1]:
        if word.startswith("-"):
            before = word
        elif _takes_value(command, before):
            before = ""
        else:
            before = ""
            inner = getattr(command, "commands", {}).get(word)
            arguments += inner is None
            command = inner or command
    last = words[-1]
    if before == "--kubeconfig":
        return [], FILES
    if _takes_value(command, before):
        return [], NO_FILES
    if last.startswith("-"):
        options = [option for each in command.params for option in each.opts if option.startswith("--")]
        return _beginning(last, [*options, "--help"]), NO_FILES
    inner = getattr(command, "commands", {})
    if inner:
        return _beginning(last, list(inner)), NO_FILES
    return (_beginning(last, names()) if arguments == 0 else []), NO_FILES


def _takes_value(command: Any, option: str) -> bool:
    if not option or "=" in option:
        return False
    return any(option in each.opts and not getattr(each, "is_flag", False) for each in command.params)


def _beginning(start: str, words: Sequence[str]) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.startswith(start)]


def _names(words: Sequence[str]) -> Sequence[str]:
    from quire_operator.errors import OperatorError
    from quire_operator.plugin.config import Flags
    from quire_operator.plugin.failures import explain
    from quire_operator.plugin.reach import Reach

    given: dict[str, str] = {}
    for flag, value in zip(words, [*words[1:], ""], strict=True):
        name, equals, rest = flag.partition("=")
        given[name] = rest if equals else value
    flags = Flags(given.get("--namespace") or given.get("-n"), given.get("--context"), given.get("--kubeconfig"))
    try:
        with closing(Reach(flags)) as reach:
            return reach.names()
    except OperatorError:
        return []
    except Exception as error:
        if explain(error) is None:
            raise
        return []
