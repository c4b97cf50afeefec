"""`FlexibleArgumentParser`, the parser that programs written for vLLM make."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any


class FlexibleArgumentParser(argparse.ArgumentParser):
    """argparse's parser, which takes `--max_model_len` for `--max-model-len` too."""

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """As in argparse."""
        return super().parse_known_args(
            [self._known(one) for one in (sys.argv[1:] if args is None else args)], namespace
        )

    def _known(self, argument: str) -> str:
        flag, equals, value = argument.partition("=")
        if not flag.startswith("--") or flag in self._option_string_actions:
            return argument
        return flag.replace("_", "-") + equals + value
