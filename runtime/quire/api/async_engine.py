"""`AsyncLLMEngine`: the engine in a process of its own, for programs that use asyncio.

The process, its sockets and the decoding of answers are served by a thread with an event loop of its own (`engine_thread`), so
that the engine can be made before any loop runs, and used from several.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Iterable
from types import TracebackType
from typing import Any, Self

from quire.api.engine_args import EngineArgs
from quire.api.engine_thread import EngineThread, Subscriber
from quire.api.requests import Encoded, Prompt, encode, load_defaults, load_text, prepare
from quire.config import EngineConfig
from quire.errors import EngineDeadError, RequestError
from quire.outputs import RequestOutput
from quire.request import EngineReady, SamplingParams, StepStats
from quire.text import IN_THREAD_CHARS, Tokenizer


class AsyncLLMEngine:
    """See the module. Make one with `from_engine_args`, end it with `shutdown` or use it in a `with` or `async with` block."""

    def __init__(self, config: EngineConfig, *, load_timeout_s: float = 1800.0) -> None:
        self.config = config
        self._tokenizer = load_text(config)
        self._defaults = load_defaults(config)
        self._thread = EngineThread(config, load_timeout_s=load_timeout_s)
        self._end = weakref.finalize(self, self._thread.close)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLMEngine:
        """Start the engine process and wait until it is ready; raises ConfigError, ModelError or EngineDeadError."""
        return cls(engine_args.create_engine_config())

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one prompt: outputs as they come, the last with `finished`.

        request_id: unique among requests in flight; default: a new one. sampling_params.output_kind says what an output holds:
        all so far (cumulative, the default; steps that came between two looks are one output), what is new (delta), or only
        the end (final_only). Leaving the iteration, or cancelling the task in it, aborts the request in the engine at once.

        Raises RequestError where the request can never be served or the engine could not go on with it, EngineDeadError where
        the process is gone.
        """
        if lora_request is not None:
            raise RequestError("lora_request is not supported: there are no adapters yet", param="lora_request")
        params = (sampling_params or self._defaults.params()).clone()
        encoded = await self._encode(prompt)
        name = self._thread.new_id() if request_id is None else request_id
        state = prepare(name, encoded, params, self._tokenizer, self.ready)
        subscriber = Subscriber(state, priority=priority, cache_salt=encoded.cache_salt)
        try:
            await self._thread.submit(subscriber)
            while True:
                output = await subscriber.next()
                yield output
                if output.finished:
                    return
        finally:
            self._thread.leave(subscriber)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; each open `generate` gets a last output with finish reason `abort`. Unknown ids are ignored."""
        await self._thread.abort([request_id] if isinstance(request_id, str) else list(request_id))

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` uses where none are given: the model's own, see `--generation-config`."""
        return self._defaults.params()

    async def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prompts, for requests that come after; True, as that is always possible."""
        await self._thread.reset_prefix_cache()
        return True

    async def check_health(self) -> None:
        """Raises EngineDeadError where the engine is gone, or has work and gave no sign of life for half a minute."""
        self._thread.check()

    @property
    def ready(self) -> EngineReady:
        """What the engine is like: length, blocks, device, seconds of each stage of the start."""
        return self._thread.ready

    @property
    def stats(self) -> StepStats | None:
        """The state of the engine after its last step, renewed once a second without one."""
        return self._thread.stats

    @property
    def is_running(self) -> bool:
        """True until the engine ended."""
        return self._thread.error is None

    @property
    def is_stopped(self) -> bool:
        """True where the engine ended."""
        return self._thread.error is not None

    @property
    def errored(self) -> bool:
        """True where the engine ended, by a failure or by `shutdown`."""
        return self._thread.error is not None

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why it ended."""
        return self._thread.error

    def shutdown(self, timeout: float | None = None) -> None:
        """End the process; open generators raise EngineDeadError. Safe to call twice. timeout is vLLM's and not needed."""
        self._end()

    async def _encode(self, prompt: Prompt) -> Encoded:
        size: Any = prompt.get("prompt") if isinstance(prompt, dict) else prompt
        if isinstance(size, str) and len(size) >= IN_THREAD_CHARS:
            return await asyncio.to_thread(encode, prompt, self._tokenizer)
        return encode(prompt, self._tokenizer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.shutdown)


AsyncLLM = AsyncLLMEngine
"""vLLM's newer name."""
