"""What bodies share whose answers are generated: how tokens are drawn, when the answer stops, how it comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag

from quire.errors import RequestError
from quire.request import SamplingParams
from quire.sampling_params import MAX_ENTRIES, refusal
from quire.server.bodies.fields import few
from quire.server.bodies.formats import Formats

MAX_PROMPTS = 128
MAX_LOGPROBS = 20
"""OpenAI's bound; a program in Python may ask for more."""
_OWN_MEANING = frozenset(
    {"max_tokens", "logprobs", "structured_outputs"}
)  # fields whose form differs from that of SamplingParams


class Sampling(Formats):
    """What every kind of completion takes."""

    IGNORED: ClassVar[Mapping[str, str]] = {
        "user": "nothing is counted or kept for it; keys are",
        "metadata": "nothing is stored",
        "store": "nothing is stored",
        "service_tier": "there is one",
        "safety_identifier": "nothing is counted or kept for it",
        "prompt_cache_key": "prefixes are always cached; cache_salt keeps them apart",
        "prompt_cache_retention": "prefixes stay cached as long as there is room",
    }

    LONG: ClassVar[frozenset[str]] = frozenset(
        {*Formats.model_fields, "logit_bias", "allowed_token_ids", "bad_words", "stop_token_ids"}
    )

    model: str | None = Field(None, description="the served name; default: the first one")
    n: int | None = Field(None, description="answers to each prompt")
    best_of: int | None = Field(
        None, description="answers that are made, of which the n best come back; not with stream"
    )
    temperature: float | None = Field(None, description="0 is greedy")
    top_p: float | None = Field(None, description="draw among the likeliest tokens whose probabilities reach it")
    top_k: int | None = Field(None, description="draw among that many likeliest tokens; 0 or -1 is off")
    min_p: float | None = Field(None, description="drop tokens less likely than this times the likeliest one")
    typical_p: float | None = Field(None, description="locally typical sampling")
    repetition_penalty: float | None = Field(None, description="of tokens in prompt or answer; 1 is off")
    presence_penalty: float | None = Field(None, description="of tokens in the answer, once")
    frequency_penalty: float | None = Field(None, description="of tokens in the answer, for each time")
    logit_bias: Annotated[dict[str, float] | None, few(MAX_ENTRIES)] = Field(
        None, description="token id to what is added to its logit"
    )
    allowed_token_ids: list[int] | None = Field(None, description="no other token is drawn")
    bad_words: str | list[str] | None = Field(None, description="words that no answer contains")
    seed: int | None = Field(None, description="the same seed gives the same tokens")
    stop: str | list[str] | None = Field(None, description="the text ends before the earliest of these")
    stop_token_ids: list[int] | None = Field(None, description="tokens that end the answer")
    include_stop_str_in_output: bool | None = Field(None, description="what ended the text is part of it")
    ignore_eos: bool | None = Field(None, description="go on past end tokens")
    max_tokens: int | None = Field(None, description="generated tokens at most; default: what the prompt leaves")
    priority: int | None = Field(None, description="lower is more urgent; needs --scheduler-policy=priority")
    cache_salt: str | None = Field(None, description="only requests of the same salt share cached prefixes")
    min_tokens: int | None = Field(None, description="before that many the answer does not end")
    skip_special_tokens: bool | None = Field(None, description="control tokens are no text")
    spaces_between_special_tokens: bool | None = Field(
        None, description="false: no space before a special token that follows another, where a vocabulary writes one"
    )
    truncate_prompt_tokens: int | None = Field(None, description="keep that many last tokens of the prompt")
    prompt_logprobs: int | None = Field(None, description="log probabilities of the prompt; not with stream")
    stream: bool | None = Field(False, description="events while the answer is made")

    @property
    def takes_long(self) -> bool:
        """Whether there is a field whose check may take long: a schema, thousands of ids."""
        return not self.model_fields_set.isdisjoint(self.LONG)

    @property
    def scores(self) -> bool:
        """Only the log probabilities of the prompt are wanted, no answer."""
        return False

    @property
    def max_tokens_field(self) -> tuple[str, int | None]:
        """The name and the value of the limit on generated tokens."""
        return "max_tokens", self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens whose log probabilities come with each token of the answer; None: not even its own."""
        return None

    def sampling(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """defaults: of fields that are not set. Raises RequestError that names a field out of bounds."""
        name, max_tokens = self.max_tokens_field
        if max_tokens is not None and max_tokens < 1:
            raise RequestError(f"{name} must be at least 1, got {max_tokens}", param=name, code="invalid_value")
        logprobs = checked_logprobs("logprobs", self.num_logprobs)
        checked_logprobs("prompt_logprobs", self.prompt_logprobs)
        own = type(self).model_fields.keys() & set(SamplingParams.__struct_fields__) - _OWN_MEANING
        given = {field: value for field in own if (value := getattr(self, field)) is not None}
        params = SamplingParams(
            **{**defaults, **given},
            max_tokens=max_tokens,
            logprobs=logprobs,
            structured_outputs=self.structured_output(),
        )
        if self.stream and params.num_sequences > params.n:
            raise RequestError(
                f"best_of {params.best_of} with n {params.n} is not possible with stream: true, as the best are known at the end",
                param="best_of",
                code="invalid_value",
            )
        if self.stream and params.prompt_logprobs is not None:
            raise RequestError(
                "prompt_logprobs is not possible with stream: true", param="prompt_logprobs", code="invalid_value"
            )
        return params


def checked_logprobs(name: str, count: int | None) -> int | None:
    """A number of likeliest tokens; raises RequestError beyond what is told at most."""
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise refusal(name, count, f"between 0 and {MAX_LOGPROBS}")
    return count


def _prompt_kind(value: Any) -> str:
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(value, str) or not isinstance(value, list):
        return "str"
    if isinstance(first, bool):
        return "texts"
    return "ids" if isinstance(first, int) else "lists" if isinstance(first, list) else "texts"


Prompt = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[list[str], Tag("texts")]
    | Annotated[list[int], Tag("ids")]
    | Annotated[list[list[int]], Tag("lists")],
    Discriminator(_prompt_kind),
]


class Prompted(Sampling):
    """What takes a raw prompt."""

    prompt: Prompt = Field(description=f"a text, texts, token ids or lists of token ids; {MAX_PROMPTS} prompts at most")
