"""`quire generate`: one prompt, answered in this process, streamed to standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from quire.config import EngineConfig
from quire.engine.core import EngineCore
from quire.engine.startup import build
from quire.errors import RequestError
from quire.logs import set_up_logging
from quire.models.source import resolve
from quire.request import AddRequest, FinishReason, SamplingParams
from quire.text import Tokenizer, load_tokenizer


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
    params = SamplingParams(stop=stop, **sampling)
    files = resolve(config.model, revision=config.revision, with_code=config.trust_remote_code, say=_say)
    own = files if config.tokenizer is None else resolve(config.tokenizer, tokenizer_only=True, say=_say)
    tokenizer = load_tokenizer(own.path, name=files.name)
    token_ids = _encode(tokenizer, prompt, chat=chat, system=system)
    began = time.monotonic()
    core, ready = build(config)
    _say(f"{files.name} is loaded ({ready.info.get('dtype', '?')} on {ready.info.get('device', '?')}, "
         f"{time.monotonic() - began:.1f} s)")  # fmt: skip
    room = ready.max_model_len - len(token_ids)
    if room < 1 or (params.max_tokens or 0) > room:
        raise RequestError(
            f"the model's length is {ready.max_model_len} tokens (--max-model-len), but the prompt has {len(token_ids)} and "
            f"{params.max_tokens or 1} are to be generated",
            param="prompt",
            code="context_length_exceeded",
        )
    for text in _answer(core, tokenizer, token_ids, tokenizer.resolve(params, room=room)):
        print(text, end="", flush=True)
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


def _answer(core: EngineCore, tokenizer: Tokenizer, token_ids: list[int], params: SamplingParams) -> Iterator[str]:
    stream = tokenizer.stream(params)
    request = AddRequest(request_id="0", prompt_token_ids=token_ids, params=params, arrival_s=time.monotonic())
    core.add(request)
    finished = False
    while not finished:
        for delta in core.step().deltas:
            if delta.finish_reason is FinishReason.ERROR:
                raise RequestError(f"the engine could not go on: {delta.error}", code="engine_error", status=500)
            finished = delta.finish_reason is not None
            yield stream.push(delta.token_ids, final=finished, stop_token_id=delta.stop_token_id)
            if stream.stop_found is not None and not finished:
                core.abort(["0"])
                finished = True


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
