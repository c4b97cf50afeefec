"""`LLM`: the engine inside a Python program, no server and no second process.

Names and shapes are those that users of vLLM know. The engine runs in the calling thread; one call of `generate` or `chat` at
a time.
"""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quire.api import beam_search
from quire.api.beam import BeamSearchOutput, BeamSearchParams
from quire.api.engine_args import EngineArgs
from quire.api.interrupts import held_interrupts
from quire.api.llm_engine import LLMEngine
from quire.api.progress import progress
from quire.api.requests import Encoded, Prompt, as_list, encode
from quire.config import DEFAULT_MODEL, EngineConfig
from quire.errors import RequestError
from quire.outputs import RequestOutput
from quire.request import EngineReady, RequestOutputKind, SamplingParams, checked_priority
from quire.text import Tokenizer
from quire.text.messages import plain_message

Params = SamplingParams | Sequence[SamplingParams] | None
Conversation = Sequence[Mapping[str, Any]]
UseTqdm = bool | Callable[..., Any]


class LLM:
    """A loaded model.

    model: folder, .gguf file, hub id or bundled name. Keywords are those of `EngineArgs`. Raises ConfigError or ModelError.
    `llm_engine` is the engine; `ready` what it is like (model length, blocks, device).
    """

    def __init__(self, model: str | Path = DEFAULT_MODEL, **engine_args: Any) -> None:
        self._start(EngineArgs(model=model, **engine_args))

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """Load the model that the arguments name; raises ConfigError or ModelError."""
        llm = cls.__new__(cls)
        llm._start(engine_args)
        return llm

    def _start(self, engine_args: EngineArgs) -> None:
        self.llm_engine = LLMEngine.from_engine_args(engine_args)
        self._ids = itertools.count()

    @property
    def config(self) -> EngineConfig:
        """The configuration, as asked for."""
        return self.llm_engine.config

    @property
    def ready(self) -> EngineReady:
        """What came of it: length, blocks, device, seconds of each stage of the start."""
        return self.llm_engine.ready

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` and `chat` use where none are given: the model's own, see `--generation-config`."""
        return self.llm_engine.get_default_sampling_params()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prompts; True, as that is always possible."""
        return self.llm_engine.reset_prefix_cache()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: Params = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: None = None,
        priority: Sequence[int] | None = None,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts, in their order, as one batch.

        prompts: one or many texts, lists of token ids, `{"prompt": …}` or `{"prompt_token_ids": […]}`. sampling_params: for all,
        or one for each. use_tqdm: show progress where standard error is a terminal (or what makes the bar, called as tqdm is).
        priority: one for each prompt, smaller first, for the scheduler policy `priority`. prompt_token_ids: deprecated.

        Raises RequestError, before anything runs, where a prompt can never be served; it says which.
        """
        if prompt_token_ids is not None:
            warnings.warn(
                'prompt_token_ids= is deprecated; give {"prompt_token_ids": [...]} as prompts', DeprecationWarning, 2
            )
            prompts = _legacy(prompts, prompt_token_ids)
        if prompts is None:
            raise RequestError("prompts must be given", param="prompts")
        _refuse_adapter(lora_request)
        tokenizer = self.get_tokenizer()
        return self._run(
            as_list(prompts), lambda prompt: encode(prompt, tokenizer), sampling_params, use_tqdm, priority
        )

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        use_tqdm: UseTqdm = True,
        lora_request: None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of a list of conversations, through the model's chat template.

        chat_template: jinja source instead of the model's. chat_template_content_format: templates get text, `openai` is refused.
        continue_final_message: the answer goes on where the last message stops (not together with add_generation_prompt). tools,
        chat_template_kwargs: for the template. Raises RequestError as `generate` does.
        """
        _refuse_adapter(lora_request)
        if chat_template_content_format not in ("auto", "string"):
            raise RequestError(
                f"chat_template_content_format must be 'auto' or 'string', got {chat_template_content_format!r}",
                param="chat_template_content_format",
            )
        chat: Any = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        tokenizer = self.get_tokenizer()

        def render(conversation: Conversation) -> Encoded:
            source = tokenizer.chat.source() if chat_template is None else chat_template
            text, token_ids = tokenizer.chat_prompt(
                [plain_message(one, i, knows_developer="developer" in source) for i, one in enumerate(conversation)],
                template=chat_template,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables=chat_template_kwargs,
            )
            return Encoded(text, token_ids)

        return self._run(list(chat), render, sampling_params, use_tqdm, None)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: None = None,
        use_tqdm: UseTqdm = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The `beam_width` best answers to each prompt, best first; `quire.api.beam` says what best means.

        concurrency_limit: prompts that are searched at a time; default: as many as fill the engine's batch. Raises RequestError as
        `generate` does.
        """
        _refuse_adapter(lora_request)
        tokenizer, step, items = self.get_tokenizer(), SamplingParams(max_tokens=1), as_list(prompts)
        encoded = [
            self._checked(i, len(items), lambda prompt: encode(prompt, tokenizer), item, step)
            for i, item in enumerate(items)
        ]
        most = max(self.config.max_num_seqs // params.beam_width, 1)
        with progress(len(items), use_tqdm) as advance:
            return beam_search.run(
                self.llm_engine, encoded, params, self._ids, advance, concurrency=concurrency_limit or most
            )

    def _run(
        self,
        prompts: Sequence[Any],
        encode_one: Callable[[Any], Encoded],
        sampling_params: Params,
        use_tqdm: UseTqdm,
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        params = self._params_for(len(prompts), sampling_params)
        ranks = list(priority) if priority is not None else [0] * len(prompts)
        if len(ranks) != len(prompts):
            raise RequestError(
                f"priority must have one number for each of the {len(prompts)} prompts, got {len(ranks)}",
                param="priority",
            )
        ranks = [checked_priority(rank, policy=self.config.scheduler_policy) for rank in ranks]
        encoded = [self._checked(i, len(prompts), encode_one, prompts[i], params[i]) for i in range(len(prompts))]
        order = sorted(range(len(prompts)), key=ranks.__getitem__)
        with progress(len(prompts), use_tqdm) as advance:
            results = self._drive(deque(order), encoded, params, ranks, advance)
        return [results[index] for index in range(len(prompts))]

    def _drive(
        self,
        waiting: deque[int],
        prompts: Sequence[Encoded],
        params: Sequence[SamplingParams],
        ranks: Sequence[int],
        advance: Callable[[], None],
    ) -> dict[int, RequestOutput]:
        """Feed the engine as it drains, so that its memory does not grow with the number of prompts."""
        engine, results = self.llm_engine, {}
        most = 2 * self.config.max_num_seqs
        live: dict[str, int] = {}
        with held_interrupts() as check_interrupt:
            try:
                while waiting or live:
                    while waiting and (engine.num_unfinished_sequences < most or not live):
                        index = waiting.popleft()
                        request_id = str(next(self._ids))
                        live[request_id] = index
                        engine.add_encoded(
                            request_id,
                            prompts[index],
                            params[index],
                            priority=ranks[index],
                            kind=RequestOutputKind.FINAL_ONLY,
                        )
                    for output in engine.step():
                        if (done := live.pop(output.request_id, None)) is not None:
                            results[done] = output
                            advance()
                    check_interrupt()
            finally:  # whatever ends this leaves no request behind
                engine.abort_request(list(live))
        return results

    def _checked(
        self, index: int, count: int, encode_one: Callable[[Any], Encoded], prompt: Any, params: SamplingParams
    ) -> Encoded:
        where = f"prompt {index}: " if count > 1 else ""
        try:
            encoded = encode_one(prompt)
            fault = self.llm_engine.fault(encoded, params)
        except RequestError as exc:
            raise RequestError(f"{where}{exc}", param=exc.param, code=exc.code) from exc
        if fault is not None:
            raise RequestError(where + fault, param="prompts")
        return encoded

    def _params_for(self, count: int, given: Params) -> list[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            return [(given or self.get_default_sampling_params()).clone()] * count
        if len(given) != count:
            raise RequestError(
                f"sampling_params must be one, or one for each of the {count} prompts; got {len(given)}",
                param="sampling_params",
            )
        return [one.clone() for one in given]


def _legacy(prompts: Any, token_ids: Iterable[Any]) -> list[Prompt]:
    """Prompts of the deprecated keyword; texts beside it are only shown."""
    ids = list(token_ids)
    lists: list[Any] = ids if ids and not isinstance(ids[0], int) else [ids]
    texts: list[Any] = (
        [None] * len(lists) if prompts is None else [prompts] if isinstance(prompts, str) else list(prompts)
    )
    if len(texts) != len(lists):
        raise RequestError(
            f"prompts and prompt_token_ids must be equally many, got {len(texts)} and {len(lists)}", param="prompts"
        )
    return [{"prompt": text, "prompt_token_ids": one} for text, one in zip(texts, lists, strict=True)]


def _refuse_adapter(lora_request: object) -> None:
    if lora_request is not None:
        raise RequestError("lora_request is not supported: there are no adapters yet", param="lora_request")
