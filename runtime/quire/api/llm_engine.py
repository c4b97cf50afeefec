"""`LLMEngine`: an engine in the calling thread, driven step by step: add requests, call `step`, read outputs.

`LLM` is the comfortable way to use it. The prompts' text side (tokenizer, stop strings) is here, the rest in the core.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.api.engine_args import EngineArgs
from quire.api.requests import Encoded, Prompt, encode, engine_request, load_defaults, load_text, prepare
from quire.config import EngineConfig
from quire.engine.startup import build
from quire.errors import RequestError
from quire.outputs import RequestOutput
from quire.outputs.choice import Choice
from quire.outputs.state import RequestState
from quire.request import AddRequest, RequestOutputKind, SamplingParams, StepStats
from quire.text import Tokenizer


class LLMEngine:
    """See the module. Not safe for use from several threads at once."""

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer | None = None) -> None:
        """Load the model, and the tokenizer where it is not given; raises ConfigError or ModelError."""
        self.config = config
        self.tokenizer = tokenizer or load_text(config)
        self._defaults = load_defaults(config)
        self.core, self.ready = build(config)
        self.stats: StepStats = self.core.stats()
        self._requests: dict[str, RequestState] = {}
        self._choices: dict[str, tuple[RequestState, Choice]] = {}

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLMEngine:
        """Load the model; raises ConfigError or ModelError."""
        return cls(engine_args.create_engine_config())

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Parameters of requests that bring none: the model's own, see `--generation-config`. A new object each time."""
        return self._defaults.params()

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0
    ) -> None:
        """Take a request; the next steps serve it. Raises RequestError where it can never be served."""
        checked = (params or self.get_default_sampling_params()).clone()
        self.add_encoded(request_id, encode(prompt, self.tokenizer), checked, priority=priority)

    def add_encoded(
        self,
        request_id: str,
        prompt: Encoded,
        params: SamplingParams,
        *,
        priority: int = 0,
        kind: RequestOutputKind | None = None,
    ) -> None:
        """`add_request` for a prompt that is encoded and parameters that are checked."""
        if request_id in self._requests:
            raise RequestError(f"the request id {request_id!r} is already in use", param="request_id")
        state = self._prepare(request_id, prompt, params, kind)
        request = self._request(state, priority, prompt.cache_salt)
        if (fault := self.core.scheduler.fault(request)) is not None:
            raise RequestError(fault, param="prompt")
        ids = [choice.request_id for choice in state.choices]
        try:
            self.core.add(request)
        except BaseException:
            self.core.abort(ids)
            raise
        self._requests[request_id] = state
        self._choices |= {one: (state, choice) for one, choice in zip(ids, state.choices, strict=True)}

    def fault(self, prompt: Encoded, params: SamplingParams) -> str | None:
        """Why a request could never be served; None where it can."""
        return self.core.scheduler.fault(self._request(self._prepare("", prompt, params, None)))

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """Forget requests and free their blocks now; no output follows. Unknown ids are ignored."""
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            state = self._requests.pop(one, None)
            if state is None:
                continue
            self.core.abort(state.abort())
            for choice in state.choices:
                self._choices.pop(choice.request_id, None)

    def has_unfinished_requests(self) -> bool:
        """True where `step` has something to do."""
        return bool(self._requests)

    def get_num_unfinished_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    @property
    def num_unfinished_sequences(self) -> int:
        """The same in sequences; a request has n."""
        return len(self._choices)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prompts; True, as that is always possible."""
        self.core.reset_prefix_cache()
        return True

    def step(self) -> list[RequestOutput]:
        """Compute one step; an output for every request that has something new, by its kind of output.

        An exception in here (of the device, or an interrupt) ends all requests and empties the prefix cache, since blocks of the
        step are named and not computed; the engine can be used on.
        """
        try:
            report = self.core.step()
        except BaseException:
            self.abort_request(list(self._requests))
            self.core.reset_prefix_cache()
            raise
        self.stats = report.stats
        touched: dict[str, RequestState] = {}
        for delta in report.deltas:
            if (found := self._choices.get(delta.request_id)) is None:
                continue
            state, choice = found
            touched[state.request_id] = state
            if state.take(choice, delta):
                self.core.abort([delta.request_id])
            if choice.finish_reason is not None:
                del self._choices[delta.request_id]
        for state in touched.values():
            if state.finished:
                del self._requests[state.request_id]
        if not self._requests:
            self.core.check()
        return [output for state in touched.values() if (output := state.output()) is not None]

    def _request(self, state: RequestState, priority: int = 0, cache_salt: str | None = None) -> AddRequest:
        return engine_request(state, policy=self.config.scheduler_policy, priority=priority, cache_salt=cache_salt)

    def _prepare(
        self, request_id: str, prompt: Encoded, params: SamplingParams, kind: RequestOutputKind | None
    ) -> RequestState:
        return prepare(request_id, prompt, params, self.tokenizer, self.ready, kind=kind)
