"""llguidance, and nothing else that is ours (but `ebnf`) knows it: a vocabulary, a grammar from a request, a matcher for a sequence."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import llguidance

from quire.engine.grammar.ebnf import is_ebnf, to_lark
from quire.engine.grammar.protocol import Compile
from quire.structured import BLANKS_OF_JSON
from quire.text import Tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": True,
    "whitespace_pattern": BLANKS_OF_JSON,
    "lenient": False,
    "coerce_one_of": False,
}
_LIMITS = llguidance.LLParserLimits(step_lexer_fuel=100_000, step_max_items=20_000, verbose_errors=False)
_SPECIAL = b"\xff"
"""The library's mark of tokens that are no text."""

_NO_TEXT = "no text satisfies it"
_DEAD = "NoExtensionBias"
"""What the library says of a grammar that no text ever ends, such as a schema that is itself."""


class GrammarError(ValueError):
    """The grammar cannot be built; the message is one line for the user."""


class _Adapter:
    """What the library asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos: Sequence[int]) -> None:
        pieces = tokenizer.pieces
        special = [i for i in sorted({*tokenizer.special_ids, *eos}) if i < vocab_size]
        tokens = [pieces.bytes_of(i, skip_special=False) for i in range(vocab_size)]
        for i in special:
            tokens[i] = _SPECIAL + (tokens[i] or b"<%d>" % i)
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = eos[0]
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode_text(text)


def vocabulary(tokenizer: Tokenizer, vocab_size: int, eos: Sequence[int]) -> llguidance.LLTokenizer:
    """The library's view of a tokenizer: vocab_size ids, of which `eos` end a text. Takes about a second."""
    wrapper = llguidance.TokenizerWrapper(_Adapter(tokenizer, vocab_size, eos))
    return llguidance.LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=list(eos))


def compile_grammar(tokens: llguidance.LLTokenizer, request: Compile) -> llguidance.LLMatcher:
    """A matcher at the beginning of a text, from which those of sequences are copied. Raises GrammarError."""
    place = "as Lark, " if request.kind == "grammar" and is_ebnf(request.spec) else ""  # whose lines are counted
    try:
        source = _source(request)
    except (ValueError, TypeError) as exc:
        raise GrammarError(_words(str(exc))) from None
    try:
        matcher = llguidance.LLMatcher(tokens, source, log_level=0, limits=_LIMITS)
    except (ValueError, TypeError) as exc:
        raise GrammarError(place + _words(str(exc))) from None
    # Much of the work waits for the first mask; it belongs to the compilation and to its limits.
    probe = matcher.deep_copy()
    mask = probe.compute_bitmask()
    if probe.is_error():
        raise GrammarError(place + _words(probe.get_error()))
    if not any(mask):
        raise GrammarError(_NO_TEXT)
    return matcher


def mask_of(matcher: llguidance.LLMatcher, size: int) -> bytes:
    """Which tokens may come next: `size` bytes of bits (the library may have some more than there are tokens)."""
    return matcher.compute_bitmask()[:size].ljust(size, b"\0")


def _source(request: Compile) -> str:
    make = llguidance.LLMatcher
    match request.kind:
        case "json":
            schema = json.loads(request.spec)
            if schema is True:
                schema = {}
            if schema is False:
                raise GrammarError("the schema is false, which no value satisfies")
            return make.grammar_from_json_schema(schema, None, _JSON_OPTIONS)
        case "json_object":
            return make.grammar_from_json_schema({"type": "object"}, None, _JSON_OPTIONS)
        case "regex":
            return make.grammar_from_regex(request.spec)
        case "choice":
            # one terminal: alternatives of a rule are items of the parser, which takes 2000
            return make.grammar_from_lark("start: TEXT\nTEXT: " + " | ".join(map(_literal, json.loads(request.spec))))
        case "grammar":
            return make.grammar_from_lark(to_lark(request.spec) if is_ebnf(request.spec) else request.spec)


def _literal(text: str) -> str:
    """A text as a string of the Lark language, which reads strings as JSON does."""
    return json.dumps(text, ensure_ascii=False)


def _words(message: str) -> str:
    """What the library says of a grammar, as one line for the user."""
    line = one_line(message)
    return _NO_TEXT if line == _DEAD else line


def one_line(message: str) -> str:
    """What of a message of several lines, with source excerpts, tells the user most."""
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.startswith("<")]
    errors = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    text = errors[0] if errors else lines[0] if lines else "it cannot be built"
    text = re.sub(r"^(at )?(\d+)\((\d+)\): ", r"line \2, column \3: ", text)
    return text if len(text) <= 300 else text[:297] + "..."
