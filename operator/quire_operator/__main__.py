"""`python -m quire_operator`: in a pod with its service account, or on a desk with KUBECONFIG."""

from __future__ import annotations

import asyncio
import sys

from quire_operator import logs
from quire_operator.errors import SettingsError
from quire_operator.operate import operate
from quire_operator.settings import load_settings


def main() -> int:
    try:
        settings = load_settings()
    except SettingsError as error:
        print(f"quire-operator: error: {error}", file=sys.stderr)
        return 1
    logs.set_up(settings.log_level, settings.log_format)
    asyncio.run(operate(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
