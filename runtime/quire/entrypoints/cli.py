"""The console script. `quire serve` begins with the engine's process, before its own command line is read.

That process imports torch, which is the longest part of a start; what reads command lines takes a quarter of a second to import.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from quire.engine.spawn import spawn

HELP = frozenset({"-h", "--help"})


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    spawned = spawn() if words[:1] == ["serve"] and HELP.isdisjoint(words) else None
    try:
        from quire.entrypoints.commands import run

        run(words, spawned)
    finally:
        if spawned is not None:
            spawned.end()


if __name__ == "__main__":
    main()
