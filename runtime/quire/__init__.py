"""The serving runtime. `from quire import LLM, SamplingParams` for use in a program; `quire serve` for a server.

Importing this package loads nothing heavy: torch comes with the first `LLM`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.entrypoints.async_engine import AsyncLLM, AsyncLLMEngine
    from quire.entrypoints.beam import BeamSearchOutput, BeamSearchParams
    from quire.entrypoints.engine_args import AsyncEngineArgs, EngineArgs
    from quire.entrypoints.llm import LLM
    from quire.entrypoints.llm_engine import LLMEngine
    from quire.entrypoints.requests import TextPrompt, TokensPrompt
    from quire.outputs import CompletionOutput, RequestOutput
    from quire.request import RequestOutputKind, SamplingParams
    from quire.structured import StructuredOutputsParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineArgs",
    "LLMEngine",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]

_HOMES = {
    "LLM": "quire.entrypoints.llm",
    "AsyncLLM": "quire.entrypoints.async_engine",
    "AsyncLLMEngine": "quire.entrypoints.async_engine",
    "AsyncEngineArgs": "quire.entrypoints.engine_args",
    "BeamSearchOutput": "quire.entrypoints.beam",
    "BeamSearchParams": "quire.entrypoints.beam",
    "CompletionOutput": "quire.outputs",
    "EngineArgs": "quire.entrypoints.engine_args",
    "LLMEngine": "quire.entrypoints.llm_engine",
    "RequestOutput": "quire.outputs",
    "RequestOutputKind": "quire.request",
    "SamplingParams": "quire.request",
    "StructuredOutputsParams": "quire.structured",
    "TextPrompt": "quire.entrypoints.requests",
    "TokensPrompt": "quire.entrypoints.requests",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
