"""The script `kubectl-llmd`, which kubectl runs for `kubectl llmd`.

Errors end with one line and no traceback: status 2 for a bad command line, 3 where `status` shows something that is not
ready, 1 for everything else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command line (without the program's name) and exits."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        from quire_operator.plugin.commands import UsageError, app
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        _end(f"{missing.name} is not installed; `pip install 'quire-operator[cli]'` brings it", 1)
    from quire_operator.errors import OperatorError

    try:
        status = app(words or ["--help"], prog_name="kubectl llmd", standalone_mode=False)
    except UsageError as error:
        _end(f"{error.format_message()} (see kubectl llmd --help)", 2)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        sys.stderr.close()  # whoever read has gone, as with `| head`
        raise SystemExit(1) from None
    except OperatorError as error:
        _end(str(error), 1)
    except Exception as error:
        from quire_operator.plugin.failures import explain

        sentence = explain(error)
        if sentence is None:
            raise
        _end(sentence, 1)
    raise SystemExit(status if isinstance(status, int) else 0)


def _end(message: str, status: int) -> NoReturn:
    sys.stdout.flush()
    print(f"kubectl llmd: error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    raise SystemExit(status)
