"""Chat templates: messages to the text a model was trained on.

Templates come with models and are programs: they run in jinja's immutable sandbox, without files or imports. A template
that is missing, does not compile or raises refuses the request with the model's name and `--chat-template`.

User text never becomes control tokens. Before rendering, every special token that is spelled out in a string of the
request, and every piece at its ends that could become one together with its neighbours, is broken up by `BREAK`, a
character that stands for nothing; `Tokenizer` removes it after the special tokens of the template were recognised. The
template sees the text otherwise unchanged, so that its own logic (trim, split at `</think>`, ...) goes on working. There
is no switch to turn this off: who wants to write control tokens writes the whole prompt and uses completions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser

from quire.errors import RequestError

BREAK = "\ufdd0"
"""A Unicode noncharacter, never used for interchange; it has no effect in prompts."""

_HERE = "\ufdd1"
"""Another one: behind the text of a message that the answer continues, while that is rendered."""
_BLANK = "\u2003"
"""Behind the mark: a blank that no template writes, which is gone where the template trims."""

_MOST_COMPILED = 32
"""Templates that are kept compiled, the model's own and those of requests."""

Message = Mapping[str, Any]


class ChatTemplate:
    """The templates of one model, compiled when first used.

    name: the model's name, for messages. tokens: variables such as bos_token. special: spelling of all control tokens.
    """

    def __init__(
        self, templates: Mapping[str, str], *, name: str, tokens: Mapping[str, str], special: Sequence[str]
    ) -> None:
        self._sources = dict(templates)
        self._compile = lru_cache(_MOST_COMPILED)(self._compiled)
        self._name = name
        self._tokens = dict(tokens)
        self._defuse = Defuser(special)
        self._environment = _environment()

    def __bool__(self) -> bool:
        return bool(self._sources)

    def source(self, *, tools: bool = False) -> str:
        """The template text that would be used; raises RequestError where the model has none."""
        return self._sources[self._pick(tools)]

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text, with `BREAK` inside what the user must not say; raises RequestError.

        continue_final_message: the prompt ends with the text of the last message, for an answer that goes on with it.
        template: jinja source instead of the model's own.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other; set add_generation_prompt to false",
                param="continue_final_message",
            )
        compiled = self._compile(self.source(tools=bool(tools)) if template is None else template)
        plain = [self._message(message) for message in messages]
        if continue_final_message:
            plain = _marked(plain)
        try:
            text = compiled.render(
                {
                    **self._tokens,
                    **self._defuse.value(dict(variables or {})),
                    "messages": plain,
                    "tools": self._defuse.value(tools) if tools else None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except Exception as exc:  # whatever a template may do wrong is the request's or the template's fault
            raise self._refusal(f"failed on these messages: {exc or type(exc).__name__}") from exc
        return _until_mark(text) if continue_final_message else text

    def _pick(self, tools: bool) -> str:
        if tools and "tool_use" in self._sources:
            return "tool_use"
        if "default" in self._sources:
            return "default"
        raise RequestError(
            f"the model {self._name} has no chat template; give one with --chat-template FILE, or use completions",
            code="chat_template_missing",
        )

    def _compiled(self, source: str) -> jinja2.Template:
        try:
            return self._environment.from_string(source)
        except jinja2.TemplateError as exc:
            raise self._refusal(f"is no valid jinja: {exc}") from exc

    def _refusal(self, what: str) -> RequestError:
        return RequestError(
            f"the chat template of the model {self._name} {what}; another one can be given with --chat-template FILE",
            param="messages",
            code="chat_template_error",
        )

    def _message(self, message: Message) -> dict[str, Any]:
        return {key: value if key == "role" else self._defuse.value(value) for key, value in message.items()}


def _marked(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the mark behind the last one's text."""
    content = messages[-1].get("content") if messages else None
    if not isinstance(content, str) or not content.replace(BREAK, "").strip():
        raise RequestError(
            "continue_final_message needs a last message with text that the chat template writes",
            param="continue_final_message",
        )
    return [*messages[:-1], {**messages[-1], "content": f"{content}{_HERE}{_BLANK}"}]


def _until_mark(text: str) -> str:
    """A rendered conversation without what the template writes behind its last message, trimmed where the template trims."""
    end = text.rfind(_HERE)
    if end < 0:
        raise RequestError(
            "continue_final_message is not possible: the chat template does not write the text of the last message",
            param="continue_final_message",
        )
    kept = text[:end].replace(_HERE, "")
    return kept if text.startswith(_BLANK, end + 1) else kept.rstrip()


def without_marks(text: str) -> str:
    """Text of a request without the characters that have a meaning here and none for the model."""
    return text.replace(BREAK, "").replace(_HERE, "")


class Defuser:
    """Breaks up special tokens in user text: whole ones anywhere, and pieces of them at its ends."""

    def __init__(self, special: Sequence[str]) -> None:
        tokens = [token for token in special if len(token) > 1]
        self._tokens = tokens
        self._firsts = {token[0] for token in tokens}
        self._beginnings = {token[:size] for token in tokens for size in range(1, len(token))}
        self._endings = {token[size:] for token in tokens for size in range(1, len(token))}
        self._longest = max(map(len, tokens), default=1)

    def text(self, text: str) -> str:
        """`text` with `BREAK` wherever a special token begins, might begin at its end, or might end at its beginning."""
        text = without_marks(text)
        cuts: set[int] = set()
        if any(first in text for first in self._firsts):  # plain searches: fast on long texts with hundreds of tokens
            for token in self._tokens:
                at = text.find(token)
                while at >= 0:
                    cuts.add(at + 1)
                    at = text.find(token, at + 1)
        begin, end = len(text) - len(text.lstrip()), len(text.rstrip())
        for size in range(1, min(self._longest, end - begin + 1)):
            if text[end - size : end] in self._beginnings:
                cuts.add(end - size + 1)
            if text[begin : begin + size] in self._endings:
                cuts.add(begin + size - 1)
        if not cuts:
            return text
        edges = [0, *sorted(cuts), len(text)]
        return BREAK.join(text[left:right] for left, right in pairwise(edges))

    def value(self, value: Any) -> Any:
        """The same for every string inside a JSON value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(inner) for inner in value]
        return value


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks training targets; for inference it is transparent."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as templates expect it: no HTML escapes."""
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return text.replace("\\ufdd0", BREAK)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
