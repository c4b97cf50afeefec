"""`LLM`: the engine inside a Python program, no server and no second process.

Names and shapes are those that users of other engines know. The engine's core runs in the calling thread; one call of
`generate` or `chat` at a time.
"""

from __future__ import annotations

import difflib
import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from quire.config import ALIASES, DEFAULT_MODEL, EngineConfig, load
from quire.engine.seeds import SeedStream, nth_seed
from quire.engine.startup import build
from quire.errors import ConfigError, RequestError
from quire.models.source import resolve
from quire.outputs import CompletionOutput, RequestOutput
from quire.request import AddRequest, FinishReason, SamplingParams, TokenDelta
from quire.text import TextStream, Tokenizer, load_tokenizer


class TokensPrompt(TypedDict):
    """A prompt that is tokenised already."""

    prompt_token_ids: list[int]


Prompt = str | TokensPrompt
_Encoded = Sequence[tuple[str | None, list[int]]]


@dataclass
class _Answer:
    """An answer in the making."""

    request: RequestOutput
    output: CompletionOutput
    stream: TextStream


class LLM:
    """A loaded model.

    model: folder, .gguf file, hub id or bundled name. Keywords are the fields of `EngineConfig` (`max_model_len`,
    `dtype`, …; see `quire serve --help`). Raises ConfigError or ModelError.
    """

    def __init__(self, model: str | Path = DEFAULT_MODEL, **config: Any) -> None:
        flags = {ALIASES.get(name, name): value for name, value in config.items() if value is not None}
        for name in flags:
            if name not in EngineConfig.model_fields:
                near = difflib.get_close_matches(name, EngineConfig.model_fields, 1)
                raise ConfigError(f"LLM has no parameter {name}" + (f"; did you mean {near[0]}?" if near else ""))
        self.config = load(EngineConfig, flags={"model": str(model), **flags}, environ={})
        files = resolve(self.config.model, revision=self.config.revision)
        if self.config.tokenizer is not None:
            tokenizer_files = resolve(self.config.tokenizer, tokenizer_only=True)
        else:
            tokenizer_files = files
        self._tokenizer = load_tokenizer(tokenizer_files.path, name=files.name)
        self._core, self.ready = build(self.config)
        self._ids = itertools.count()
        self._seeds = SeedStream(self.config.seed)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` uses where none are given."""
        return SamplingParams()

    def reset_prefix_cache(self) -> None:
        """Forget all cached prompts."""
        self._core.scheduler.forget()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer prompts (texts, or `{"prompt_token_ids": […]}`), all in one batch, in their order.

        sampling_params: for all, or one for each. use_tqdm: show progress where standard error is a terminal.
        Raises RequestError, before anything runs, where a prompt can never be served.
        """
        single = isinstance(prompts, str | Mapping)
        items: list[Prompt] = [prompts] if single else list(prompts)  # type: ignore[list-item]
        encoded = [
            (item, self._tokenizer.encode(item)) if isinstance(item, str) else (None, list(item["prompt_token_ids"]))
            for item in items
        ]
        return self._run(encoded, sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Answer a conversation, or a list of conversations, through the model's chat template."""
        conversations: Any = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        encoded = [
            (
                self._tokenizer.render_chat(conversation, add_generation_prompt=add_generation_prompt),
                self._tokenizer.encode_chat(conversation, add_generation_prompt=add_generation_prompt),
            )
            for conversation in conversations
        ]
        return self._run(encoded, sampling_params, use_tqdm)

    def _run(
        self,
        prompts: _Encoded,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        show_progress: bool,
    ) -> list[RequestOutput]:
        params = self._params_for(prompts, sampling_params)
        results: list[RequestOutput] = []
        answers: dict[str, _Answer] = {}
        requests: list[AddRequest] = []
        for (text, token_ids), one in zip(prompts, params, strict=True):
            result = RequestOutput(
                str(next(self._ids)), text, token_ids, outputs=[CompletionOutput(i) for i in range(one.n)]
            )
            results.append(result)
            resolved = self._tokenizer.resolve(one, room=max(self.ready.max_model_len - len(token_ids), 1))
            seed = self._seeds.draw() if one.seed is None else one.seed
            for output in result.outputs:
                request_id = f"{result.request_id}-{output.index}"
                own = msgspec.structs.replace(resolved, n=1, seed=nth_seed(seed, output.index))
                answers[request_id] = _Answer(result, output, self._tokenizer.stream(stop=resolved.stop))
                requests.append(
                    AddRequest(
                        request_id=request_id, prompt_token_ids=token_ids, params=own, arrival_s=time.monotonic()
                    )
                )
        for request in requests:
            if (fault := self._core.scheduler.fault(request)) is not None:
                raise RequestError(
                    f"prompt {results.index(answers[request.request_id].request)}: {fault}"
                    if len(prompts) > 1
                    else fault,
                    param="prompts",
                )
        with _progress(len(requests), show_progress) as advance:
            self._drive(requests, answers, advance)
        return results

    def _drive(self, requests: list[AddRequest], answers: dict[str, _Answer], advance: Any) -> None:
        live = set(answers)
        try:
            for request in requests:
                self._core.add(request)
            while live:
                for delta in self._core.step().deltas:
                    answer = answers[delta.request_id]
                    self._take(answer, delta)
                    if answer.output.finish_reason is not None:
                        live.discard(delta.request_id)
                        advance()
        finally:  # an interrupt must not leave requests behind
            self._core.abort(list(live))

    def _take(self, answer: _Answer, delta: TokenDelta) -> None:
        output, stream = answer.output, answer.stream
        final = delta.finish_reason is not None
        output.token_ids += delta.token_ids
        output.text += stream.push(delta.token_ids, final=final, stop_token_id=delta.stop_token_id)
        answer.request.num_cached_tokens = max(answer.request.num_cached_tokens, delta.num_cached_tokens)
        if stream.stop_found is not None:
            output.finish_reason, output.stop_reason = FinishReason.STOP.value, stream.stop_found
            self._core.abort([delta.request_id])
        elif delta.finish_reason is not None:
            output.finish_reason, output.error = delta.finish_reason.value, delta.error
            output.stop_reason = delta.stop_token_id
        answer.request.finished = all(other.finish_reason is not None for other in answer.request.outputs)

    def _params_for(
        self, prompts: _Encoded, given: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            return [given or self.get_default_sampling_params()] * len(prompts)
        if len(given) != len(prompts):
            raise RequestError(
                f"sampling_params must be one, or one for each of the {len(prompts)} prompts; got {len(given)}",
                param="sampling_params",
            )
        return list(given)


@contextmanager
def _progress(total: int, show: bool) -> Iterator[Any]:
    """A bar on standard error where that is a terminal; gives the function that counts one more."""
    if not (show and sys.stderr.isatty()):
        yield lambda: None
        return
    columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("answers", total=total)
        yield lambda: bar.advance(task)
