"""From the engine's tokens to answers: what the server and the Python API do alike.

`choice` follows one sequence (text, stop strings, why it ended); `results` is what users of the Python API get; `state` turns
the choices of one request into those. No I/O, no clocks.
"""

from __future__ import annotations

from quire.outputs.results import CompletionOutput, RequestOutput

__all__ = ["CompletionOutput", "RequestOutput"]
