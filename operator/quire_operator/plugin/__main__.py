"""`python -m quire_operator.plugin`, for a checkout without the script."""

from __future__ import annotations

from quire_operator.plugin.cli import main

if __name__ == "__main__":
    main()
