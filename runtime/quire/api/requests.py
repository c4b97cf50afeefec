"""From what a caller of the Python API gives to a request of the engine: prompts in every accepted form, parameters that fit."""

from __future__ import annotations

import itertools
import logging
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import msgspec

from quire.config import EngineConfig
from quire.errors import RequestError, shown
from quire.models.generation_config import SamplingDefaults, sampling_defaults
from quire.models.source import ModelFiles, resolve, resolve_tokenizer
from quire.outputs.choice import choices_of, requests_of
from quire.outputs.state import RequestState
from quire.request import AddRequest, EngineReady, RequestOutputKind, SamplingParams, checked_priority, checked_salt
from quire.text import Tokenizer, load_tokenizer

_log = logging.getLogger(__name__)
_submissions = itertools.count()


class TextPrompt(TypedDict):
    """A prompt as text, in a mapping."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt that is tokenised already; `prompt` is its text, for the output only. Only prompts of the same cache_salt share
    cached prefixes."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt | Mapping[str, Any]

_FIELDS = ("prompt", "prompt_token_ids", "cache_salt")
_FORMS = 'a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}'


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt for the engine; text: what the output shows, None where only ids were given."""

    text: str | None
    token_ids: list[int]
    cache_salt: str | None = None


def load_text(config: EngineConfig, *, say: Callable[[str], None] = _log.info) -> Tokenizer:
    """The tokenizer a configuration asks for. say: told what is fetched. Raises ModelError."""
    files = _files(config, say)
    return load_tokenizer(resolve_tokenizer(config, files, say=say).path, name=files.name)


def load_defaults(config: EngineConfig) -> SamplingDefaults:
    """Sampling parameters of requests that bring none; said once in the log. Raises ConfigError or ModelError."""
    defaults = sampling_defaults(config.generation_config, _files(config, _log.info))
    if defaults.notice:
        _log.warning("%s", defaults.notice)
    return defaults


def _files(config: EngineConfig, say: Callable[[str], None]) -> ModelFiles:
    return resolve(config.model, revision=config.revision, with_code=config.trust_remote_code, say=say)


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list. A list of integers is one prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise RequestError(f"prompts must be {_FORMS}, or a list of these, got {prompts!r}", param="prompts")
    items: list[Any] = list(prompts)
    return [items] if items and all(_is_id(item) for item in items) else items


def encode(prompt: Prompt, tokenizer: Tokenizer) -> Encoded:
    """Token ids of a prompt in any form; raises RequestError."""
    if isinstance(prompt, str):
        return Encoded(prompt, tokenizer.encode(prompt))
    if not isinstance(prompt, Mapping):
        return Encoded(None, _ids(prompt))
    fields: Mapping[str, Any] = prompt
    asked = sorted(name for name, value in fields.items() if name not in _FIELDS and value is not None)
    if asked:
        raise RequestError(f"a prompt with {asked[0]} is not supported; it must be {_FORMS}", param="prompts")
    text, ids, salt = fields.get("prompt"), fields.get("prompt_token_ids"), checked_salt(fields.get("cache_salt"))
    if ids is not None:
        return Encoded(text, _ids(ids), salt)
    if not isinstance(text, str):
        raise RequestError(f"the prompt must be {_FORMS}, got {shown(prompt)}", param="prompts")
    return Encoded(text, tokenizer.encode(text), salt)


def prepare(
    request_id: str,
    prompt: Encoded,
    params: SamplingParams,
    tokenizer: Tokenizer,
    ready: EngineReady,
    *,
    kind: RequestOutputKind | None = None,
) -> RequestState:
    """The state of a new request. ready: the engine's bounds. kind: what its outputs hold; default: what params say.

    request_id is the caller's name for it. The engine knows its sequences by ids that never come again, so that what it still says
    of a request that has ended here cannot reach the next one of that name.

    An answer ends at the model's length at the latest, however large max_tokens is (finish reason `length`). Raises
    RequestError where parameters name token ids that the model does not have.
    """
    params.check_ids(ready.vocab_size)
    token_ids = params.truncated(prompt.token_ids, ready.max_model_len, begin=tokenizer.begin_id)
    room = max(ready.max_model_len - len(token_ids), 1)
    if params.max_tokens is None or params.max_tokens > room:
        params = msgspec.structs.replace(params, max_tokens=room, min_tokens=min(params.min_tokens, room))
    resolved = tokenizer.resolve(params, room=room)
    resolved.check_ids(ready.vocab_size, stops=False)
    unique = f"{request_id}-{next(_submissions)}"
    choices = choices_of(unique, token_ids, resolved, tokenizer, stops=tokenizer.names_of_stops(params))
    return RequestState(request_id, prompt.text, choices, params.output_kind if kind is None else kind)


def engine_request(
    state: RequestState, *, policy: str, priority: int | None = 0, cache_salt: str | None = None
) -> AddRequest:
    """What the engine gets: one request whose siblings are the other choices, arriving now. policy: the scheduler's.

    Raises RequestError for a priority that is out of bounds or that the policy does not read.
    """
    priority = checked_priority(priority, policy=policy)
    [request] = requests_of(state.choices, arrival_s=time.monotonic(), priority=priority, cache_salt=cache_salt)
    return request


def _ids(given: Iterable[Any]) -> list[int]:
    try:
        if isinstance(given, str | bytes | Mapping):
            raise TypeError
        ids = [int(operator.index(one)) for one in given]
    except TypeError:
        raise RequestError(f"token ids must be a list of integers, got {shown(given)}", param="prompts") from None
    return ids


def _is_id(item: object) -> bool:
    return not isinstance(item, str | Mapping | list | tuple) and hasattr(item, "__index__")
