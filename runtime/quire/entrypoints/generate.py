"""`quire generate`: one prompt, answered in this process, streamed to standard output."""

from __future__ import annotations

import sys
import time
from typing import Any

from quire.api.llm_engine import LLMEngine
from quire.api.requests import load_text
from quire.config import EngineConfig
from quire.errors import RequestError
from quire.logs import set_up_logging
from quire.request import RequestOutputKind, SamplingParams
from quire.text import Tokenizer


def run(
    config: EngineConfig,
    prompt: str,
    *,
    chat: bool,
    system: str | None,
    sampling: dict[str, Any],
    stop: tuple[str, ...],
) -> None:
    """Print the answer as it comes; raises QuireError. What is not the answer goes to standard error."""
    set_up_logging("warning")
    params = SamplingParams(stop=stop, output_kind=RequestOutputKind.DELTA, **sampling)
    tokenizer = load_text(config, say=_say)
    token_ids = _encode(tokenizer, prompt, chat=chat, system=system)
    began = time.monotonic()
    engine = LLMEngine(config, tokenizer)
    info = engine.ready.info
    held = info["dtype"] if info["quantization"] == "none" else info["quantization"]
    _say(f"{tokenizer.name} is loaded ({held} on {info['device']}, {time.monotonic() - began:.1f} s)")
    engine.add_request("0", token_ids, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            [answer] = output.outputs
            print(answer.text, end="", flush=True)
            if answer.error is not None:
                raise RequestError(f"the engine could not go on: {answer.error}", code="engine_error", status=500)
    print(flush=True)


def _encode(tokenizer: Tokenizer, prompt: str, *, chat: bool, system: str | None) -> list[int]:
    if chat:
        head = [{"role": "system", "content": system}] if system is not None else []
        return tokenizer.encode_chat([*head, {"role": "user", "content": prompt}])
    if system is not None:
        raise RequestError("--system needs --chat", param="system")
    token_ids = tokenizer.encode(prompt)
    if not token_ids:
        raise RequestError("--prompt must not be empty", param="prompt")
    return token_ids


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
