"""The serving runtime. `from quire import LLM, SamplingParams` for use in a program; `quire serve` for a server.

Importing this package loads nothing heavy: torch comes with the first `LLM`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.api.arguments import FlexibleArgumentParser
    from quire.api.async_engine import AsyncLLM, AsyncLLMEngine
    from quire.api.beam import BeamSearchOutput, BeamSearchParams
    from quire.api.engine_args import AsyncEngineArgs, EngineArgs
    from quire.api.llm import LLM
    from quire.api.llm_engine import LLMEngine
    from quire.api.requests import TextPrompt, TokensPrompt
    from quire.outputs import CompletionOutput, RequestOutput
    from quire.request import RequestOutputKind, SamplingParams
    from quire.structured import GuidedDecodingParams, StructuredOutputsParams

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
    "FlexibleArgumentParser",
    "GuidedDecodingParams",
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
    "LLM": "quire.api.llm",
    "AsyncLLM": "quire.api.async_engine",
    "AsyncLLMEngine": "quire.api.async_engine",
    "AsyncEngineArgs": "quire.api.engine_args",
    "BeamSearchOutput": "quire.api.beam",
    "BeamSearchParams": "quire.api.beam",
    "CompletionOutput": "quire.outputs",
    "EngineArgs": "quire.api.engine_args",
    "FlexibleArgumentParser": "quire.api.arguments",
    "GuidedDecodingParams": "quire.structured",
    "LLMEngine": "quire.api.llm_engine",
    "RequestOutput": "quire.outputs",
    "RequestOutputKind": "quire.request",
    "SamplingParams": "quire.request",
    "StructuredOutputsParams": "quire.structured",
    "TextPrompt": "quire.api.requests",
    "TokensPrompt": "quire.api.requests",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
