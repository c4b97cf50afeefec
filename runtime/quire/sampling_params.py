"""How the tokens of a request are drawn, when it stops, and what comes back beside the text.

Names, meanings and defaults are those that users of vLLM know. What kind of value a field takes is written once, in `KINDS`, its
bounds in `BOUNDS`: what is outside is a RequestError that names field, value and bound. docs/sampling.md has a row for each field;
a test keeps it so.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any

import msgspec

from quire import kinds
from quire.errors import RequestError
from quire.structured import StructuredOutput, StructuredOutputsParams

MAX_LOGPROBS = 1024
"""Likeliest tokens that are told at most: each costs time at every token, and the vocabulary is no natural bound."""
MAX_BIAS = 100.0
MAX_ENTRIES = 1024
"""Entries of a list of ids, words or biases, where the vocabulary is no natural bound: each costs time at every token."""
MAX_STOP_CHARS = 1024
"""Characters of one stop string: as much of an answer may be held back."""
MAX_WORD_TOKENS = 256
"""Tokens of one bad word."""


class RequestOutputKind(enum.Enum):
    """What each `RequestOutput` of a stream holds: all so far, only what is new, or nothing before the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parameters of one request.

    n: answers. best_of: answers that are made, the n with the highest mean log probability of their tokens are kept.
    temperature: 0 is greedy. top_k: 0 or -1 is off. top_p: 1 is off. min_p: least probability, relative to the likeliest
    token's. typical_p: locally typical sampling (Meister et al., TACL 2023), 1 is off.
    repetition_penalty: logits of tokens in prompt or answer are divided (positive ones) or multiplied by it (Keskar et al.,
    2019). presence_penalty, frequency_penalty: subtracted once, and once for each occurrence, for tokens in the answer.
    logit_bias: token id to what is added. allowed_token_ids: no other token is drawn. bad_words: never complete in an answer.
    seed: the same seed gives the same tokens whatever else is in the batch; None draws a fresh one.
    stop: strings; the text ends before the earliest match. stop_token_ids: token ids that end the sequence.
    include_stop_str_in_output: what ended the text is part of it. ignore_eos: go on past end-of-sequence tokens.
    max_tokens: generated tokens at most; None is up to the model's length. min_tokens: before that many neither end
    tokens nor stop strings end the answer.
    logprobs: log probabilities of each token drawn and of that many likeliest ones; prompt_logprobs: of the prompt's.
    detokenize: False gives token ids only. skip_special_tokens: control tokens are no text.
    spaces_between_special_tokens: False leaves out the space before a special token that follows another.
    truncate_prompt_tokens: keep that many last tokens of the prompt, a begin token that the tokenizer writes among them; -1 is
    what the model's length leaves beside max_tokens, or all but one token of it where max_tokens does not fit.
    structured_outputs: what the text must look like (`quire.structured`); not together with ignore_eos. guided_decoding: vLLM's
    older name of it, always None afterwards.
    extra_args: for custom logits processors. bad_words_token_ids: filled in by the tokenizer.
    output_kind: what streams of the Python API hold; the engine does not look at it.

    Fields may be set later; whoever takes parameters checks them anew with `clone`.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    structured_outputs: StructuredOutput | None = None  # or StructuredOutputsParams, or its fields in a dict
    guided_decoding: StructuredOutput | None = None
    extra_args: dict[str, Any] | None = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            value = getattr(self, name)
            try:
                plain = kind.convert(value)
            except OverflowError:
                raise refusal(name, value, "a 64-bit integer") from None
            except RequestError:
                raise
            except (TypeError, ValueError):
                raise refusal(name, value, _kind_and_bound(name)) from None
            if plain is not value:
                setattr(self, name, plain)
        for name, (_, holds) in BOUNDS.items():
            if not holds(getattr(self, name)):
                raise refusal(name, getattr(self, name))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise refusal("min_tokens", self.min_tokens, f"at most max_tokens, which is {self.max_tokens}")
        if self.best_of is not None and self.best_of < self.n:
            raise refusal("best_of", self.best_of, f"at least n, which is {self.n}")
        if self.guided_decoding is not None:
            if self.structured_outputs is not None:
                raise refusal(
                    "guided_decoding", "both", "absent together with structured_outputs, whose older name it is"
                )
            self.structured_outputs, self.guided_decoding = self.guided_decoding, None
        if self.structured_outputs is not None and self.ignore_eos:
            bound = f"false together with {self.structured_outputs.param}, whose end is the answer's"
            raise refusal("ignore_eos", True, bound)
        if self.stop and not self.detokenize:
            raise refusal("stop", list(self.stop), "empty where detokenize is false: there is no text to look in")

    @classmethod
    def from_optional(cls, **fields: Any) -> SamplingParams:
        """Parameters from fields of which those that are None keep their defaults; raises RequestError."""
        return cls(**{name: value for name, value in fields.items() if value is not None})

    def clone(self) -> SamplingParams:
        """An independent copy, checked; raises RequestError that names a field out of bounds."""
        return msgspec.structs.replace(self)

    @property
    def greedy(self) -> bool:
        """True where the most likely token is taken."""
        return self.temperature < 1e-5

    @property
    def num_sequences(self) -> int:
        """Answers that are made."""
        return self.n if self.best_of is None else self.best_of

    def truncated(self, prompt: list[int], max_model_len: int, *, begin: int | None = None) -> list[int]:
        """The part of a prompt that `truncate_prompt_tokens` keeps: its end, behind the begin token where it has that."""
        keep = self.truncate_prompt_tokens
        if keep == -1:
            answer = self.max_tokens or 1
            keep = max_model_len - (answer if answer < max_model_len else 1)
        if keep is None or len(prompt) <= keep:
            return prompt
        if begin is not None and prompt[0] == begin and keep > 1:
            return [begin, *prompt[1 - keep :]]
        return prompt[-keep:]

    def check_ids(self, vocab_size: int, *, stops: bool = True) -> None:
        """Raises RequestError for a token id that the model does not have; vocab_size is the width of its logits.

        stops: look at stop_token_ids too. They are not looked at where end tokens have joined them: those of a tokenizer that
        knows more than its model are never drawn, and no fault of the request.
        """
        given: dict[str, tuple[int, ...]] = {
            "stop_token_ids": self.stop_token_ids if stops else (),
            "allowed_token_ids": self.allowed_token_ids or (),
            "logit_bias": tuple(self.logit_bias or ()),
            "bad_words": tuple(i for word in self.bad_words_token_ids for i in word),
        }
        for name, ids in given.items():
            if ids and (min(ids) < 0 or max(ids) >= vocab_size):
                wrong = next(i for i in ids if not 0 <= i < vocab_size)
                raise refusal(name, wrong, f"token ids between 0 and {vocab_size - 1}")
        if len(self.allowed_token_ids or ()) > vocab_size:
            count = len(self.allowed_token_ids or ())
            raise refusal("allowed_token_ids", f"{count} ids", f"at most the {vocab_size} ids that the model has")


def refusal(name: str, value: object, bound: str | None = None) -> RequestError:
    """The error for a field outside its bound."""
    value = list(value) if isinstance(value, tuple) else value
    value = value[:77] + "..." if isinstance(value, str) and len(value) > 80 else value
    entries = len(value) if hasattr(value, "__len__") else 0
    text = "" if entries > 100 else repr(value)  # of a million it takes a while
    shown = text if 0 < len(text) <= 100 else f"{entries} entries" if entries else "that"
    return RequestError(f"{name} must be {bound or BOUNDS[name][0]}, got {shown}", param=name, code="invalid_value")


def _finite(low: float, high: float, *, above: bool = False) -> Callable[[Any], bool]:
    return lambda value: math.isfinite(value) and (low < value if above else low <= value) and value <= high


def _words(most: int) -> Callable[[Any], bool]:
    return lambda value: len(value) <= most and all(value)


def _or_none(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


def _kind_and_bound(name: str) -> str:
    """What a value must be, where it is not even of the right kind."""
    kind, bound = KINDS[name].words, BOUNDS[name][0] if name in BOUNDS else ""
    return bound if kind.split()[-1] in bound else f"{kind}, {bound}" if bound else kind


BOUNDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "n": ("between 1 and 128", lambda v: 1 <= v <= 128),
    "best_of": ("between n and 128", _or_none(lambda v: 1 <= v <= 128)),
    "temperature": ("between 0 and 100", _finite(0, 100)),
    "top_k": ("-1 (off), 0 (off) or a positive 64-bit integer", lambda v: -1 <= v < 2**63),
    "top_p": ("above 0 and at most 1", _finite(0, 1, above=True)),
    "min_p": ("between 0 and 1", _finite(0, 1)),
    "typical_p": ("above 0 and at most 1", _finite(0, 1, above=True)),
    "repetition_penalty": ("above 0 and at most 100", _finite(0, 100, above=True)),
    "presence_penalty": ("between -2 and 2", _finite(-2, 2)),
    "frequency_penalty": ("between -2 and 2", _finite(-2, 2)),
    "logit_bias": (
        f"at most {MAX_ENTRIES} token ids, each with a number between -{MAX_BIAS:g} and {MAX_BIAS:g}",
        _or_none(lambda v: len(v) <= MAX_ENTRIES and all(map(_finite(-MAX_BIAS, MAX_BIAS), v.values()))),
    ),
    "allowed_token_ids": ("a list of token ids that is not empty", _or_none(lambda v: len(v) > 0)),
    "bad_words": (f"at most {MAX_ENTRIES} non-empty strings", _words(MAX_ENTRIES)),
    "seed": ("a 64-bit integer", _or_none(lambda v: -(2**63) <= v < 2**63)),
    "stop": (
        f"at most 16 non-empty strings of at most {MAX_STOP_CHARS} characters",
        lambda v: _words(16)(v) and all(len(word) <= MAX_STOP_CHARS for word in v),
    ),
    "stop_token_ids": (f"at most {MAX_ENTRIES} token ids", lambda v: len(v) <= MAX_ENTRIES),
    "max_tokens": ("at least 1", _or_none(lambda v: v >= 1)),
    "min_tokens": ("at least 0 and at most max_tokens", lambda v: v >= 0),
    "logprobs": (f"between 0 and {MAX_LOGPROBS}", _or_none(lambda v: 0 <= v <= MAX_LOGPROBS)),
    "prompt_logprobs": (f"between 0 and {MAX_LOGPROBS}", _or_none(lambda v: 0 <= v <= MAX_LOGPROBS)),
    "truncate_prompt_tokens": ("-1 or at least 1", _or_none(lambda v: v == -1 or v >= 1)),
    "bad_words_token_ids": (
        f"at most {2 * MAX_ENTRIES} lists of 1 to {MAX_WORD_TOKENS} token ids",
        lambda v: len(v) <= 2 * MAX_ENTRIES and all(1 <= len(word) <= MAX_WORD_TOKENS for word in v),
    ),
}
"""Field to its bound in words and the test of it."""


def _structured(value: Any) -> StructuredOutput | None:
    if value is None or isinstance(value, StructuredOutput):
        return value
    if isinstance(value, dict):
        value = StructuredOutputsParams(**value)
    if not isinstance(value, StructuredOutputsParams):
        raise TypeError
    return value.output()


KINDS: dict[str, kinds.Kind] = {
    "n": kinds.INTEGER,
    "best_of": kinds.optional(kinds.INTEGER),
    "temperature": kinds.NUMBER,
    "top_k": kinds.INTEGER,
    "top_p": kinds.NUMBER,
    "min_p": kinds.NUMBER,
    "typical_p": kinds.NUMBER,
    "repetition_penalty": kinds.NUMBER,
    "presence_penalty": kinds.NUMBER,
    "frequency_penalty": kinds.NUMBER,
    "logit_bias": kinds.optional(kinds.BIASES),
    "allowed_token_ids": kinds.optional(kinds.IDS),
    "bad_words": kinds.TEXTS,
    "seed": kinds.optional(kinds.INTEGER),
    "stop": kinds.TEXTS,
    "stop_token_ids": kinds.IDS,
    "include_stop_str_in_output": kinds.SWITCH,
    "ignore_eos": kinds.SWITCH,
    "max_tokens": kinds.optional(kinds.INTEGER),
    "min_tokens": kinds.INTEGER,
    "logprobs": kinds.optional(kinds.INTEGER),
    "prompt_logprobs": kinds.optional(kinds.INTEGER),
    "detokenize": kinds.SWITCH,
    "skip_special_tokens": kinds.SWITCH,
    "spaces_between_special_tokens": kinds.SWITCH,
    "truncate_prompt_tokens": kinds.optional(kinds.INTEGER),
    "structured_outputs": kinds.Kind("StructuredOutputsParams(...)", _structured),
    "guided_decoding": kinds.Kind("GuidedDecodingParams(...)", _structured),
    "extra_args": kinds.optional(kinds.FIELDS),
    "bad_words_token_ids": kinds.ID_LISTS,
    "output_kind": kinds.instance_of(RequestOutputKind, "a RequestOutputKind"),
}
"""Field to the kind of its value. Every field has one: the engine reads strictly, and what it cannot read is lost on it."""
