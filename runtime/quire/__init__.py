"""The serving runtime. `from quire import LLM, SamplingParams` for use in a program; `quire serve` for a server.

Importing this package loads nothing heavy: torch comes with the first `LLM`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.entrypoints.llm import LLM
    from quire.outputs import CompletionOutput, RequestOutput
    from quire.request import RequestOutputKind, SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "CompletionOutput", "RequestOutput", "RequestOutputKind", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "quire.entrypoints.llm",
    "CompletionOutput": "quire.outputs",
    "RequestOutput": "quire.outputs",
    "RequestOutputKind": "quire.request",
    "SamplingParams": "quire.request",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
