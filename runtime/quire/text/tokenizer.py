"""The tokenizer of one model: text to ids, ids to text, messages to ids.

Immutable after construction and safe to use from several threads. Encoding matches special tokens in the text it is
given, because completions are raw prompts; chat goes through `ChatTemplate`, whose `BREAK` characters keep user text
from being matched (the normaliser that removes them runs after special tokens were recognised).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from tokenizers import Encoding, normalizers

from quire.errors import RequestError
from quire.request import SamplingParams
from quire.sampling_params import MAX_WORD_TOKENS, refusal
from quire.text import window
from quire.text.chat import BREAK, ChatTemplate, Defuser, Message
from quire.text.familiar import FamiliarNames
from quire.text.pieces import Pieces
from quire.text.stream import Detokenizer, TextStream
from quire.text.vocabulary import Vocabulary

IN_THREAD_CHARS = 20_000
"""Longer texts are encoded beside the event loop of whoever asks."""

LONG_CHARS = 4096
"""From here on a text is encoded by the call that lets other threads run meanwhile (it costs a little more to start)."""


class Tokenizer(FamiliarNames):
    """See the module. `eos_ids` end an answer unasked; `len()` is the number of ids it knows."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self.name = vocabulary.name
        self.bos_id = vocabulary.bos_id
        self.pad_id = vocabulary.pad_id
        self.eos_ids = vocabulary.eos_ids
        self.special_ids = vocabulary.special_ids
        self._backend = vocabulary.backend
        own = self._backend.normalizer
        remove = normalizers.Replace(BREAK, "")
        self._backend.normalizer = remove if own is None else normalizers.Sequence([remove, own])
        self.pieces = Pieces(self._backend, vocabulary.special_ids)
        self._special = {
            token: i for i in vocabulary.special_ids if (token := self._backend.id_to_token(i)) is not None
        }
        self.chat = ChatTemplate(
            vocabulary.templates, name=self.name, tokens=vocabulary.template_tokens, special=tuple(self._special)
        )
        self._defuser = Defuser(tuple(self._special))
        self._spelling = {i: token for token, i in self._special.items()}
        self._uncounted = {vocabulary.unk_id}
        backend_adds = self.bos_id is not None and self._backend.encode("").ids[:1] == [self.bos_id]
        self.adds_bos = self.bos_id is not None and (backend_adds if vocabulary.add_bos is None else vocabulary.add_bos)
        self._backend_adds_bos = backend_adds

    @property
    def begin_id(self) -> int | None:
        """The token that every prompt begins with; None where the model wants none."""
        return self.bos_id if self.adds_bos else None

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a raw prompt: special tokens in it count as such; exactly one begin token where the model wants one."""
        ids = self._ids(text, add_special_tokens)
        if not add_special_tokens or self.bos_id is None:
            return ids
        has_bos = ids[:1] == [self.bos_id]
        if self.adds_bos and not has_bos:
            return [self.bos_id, *ids]
        doubled = ids[:2] == [self.bos_id, self.bos_id]
        unwanted = has_bos and not self.adds_bos and self._backend_adds_bos
        return ids[1:] if doubled or unwanted else ids

    def beginning(self, text: str, keep: int) -> str:
        """So much of a text that its first `keep` tokens are all there; see `window` for texts without words."""
        return window.beginning(text, keep, longest=self.pieces.longest, count=self._count)

    def end(self, text: str, keep: int) -> str:
        """So much of a text that its last `keep` tokens are all there; see `window` for texts without words."""
        return window.end(text, keep, longest=self.pieces.longest, count=self._count)

    def _count(self, text: str) -> int:
        return len(self._ids(text, False))

    def part(self, text: str) -> Encoding:
        """A text as one of a pair."""
        return self._backend.encode_batch_fast([text], add_special_tokens=False)[0]

    def pair(self, one: Encoding, other: Encoding, *, keep: int | None = None) -> tuple[list[int], list[int]]:
        """Ids of two parts as the model reads pairs, and the segment of each token. keep: how many tokens at most; the longer text is cut
        first, at its end, and special tokens never are. Raises RequestError where nothing else would be left."""
        if keep is not None:
            one, other = Encoding.merge([one]), Encoding.merge([other])  # copies, to be cut
            around: int = self._backend.num_special_tokens_to_add(True)
            if (room := keep - around) < 1:
                raise refusal("truncate_prompt_tokens", keep, f"above {around}, the number of special tokens of a pair")
            shorter, longer = sorted((one, other), key=lambda text: len(text.ids))
            shorter.truncate(min(len(shorter.ids), room // 2))
            longer.truncate(min(len(longer.ids), room - len(shorter.ids)))
        pair = self._backend.post_process(one, other, True)
        return pair.ids, pair.type_ids

    def encode_text(self, text: str) -> list[int]:
        """Ids of a piece of an answer: what spells a special token is text, and nothing is added."""
        return self._ids(self._defuser.text(text), False)

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) < LONG_CHARS:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        else:
            ids = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence."""
        detokenizer = Detokenizer(self.pieces, continuing=False, skip_special=skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.flush()

    def spelling(self, token_id: int) -> str | None:
        """A token as the vocabulary writes it; None for an id it does not know."""
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def encode_chat(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """Ids of a conversation; options are those of `ChatTemplate.render`. Raises RequestError."""
        return self.chat_prompt(messages, **options)[1]

    def render_chat(self, messages: Sequence[Message], **options: Any) -> str:
        """The prompt of `encode_chat` as text, for people to look at."""
        return self.chat.render(messages, **options).replace(BREAK, "")

    def chat_prompt(
        self, messages: Sequence[Message], *, keep: int | None = None, **options: Any
    ) -> tuple[str, list[int]]:
        """A conversation as text for people, and as ids; the template alone decides about begin and turn tokens.

        keep: how many tokens are used, the last ones; there may be more. options: those of `ChatTemplate.render`. Raises RequestError.
        """
        text = self.chat.render(messages, **options)
        if keep is not None:
            text = self.end(text, keep)
        ids = self.encode(text, add_special_tokens=False)
        found = Counter(i for i in ids if i in self.special_ids)
        if any(count > text.count(self._spelling[i]) for i, count in found.items() if i not in self._uncounted):
            raise RequestError(
                "messages must not contain control tokens of the model", param="messages", code="control_token"
            )
        return text.replace(BREAK, ""), ids

    def apply_chat_template(
        self,
        conversation: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> str | list[int]:
        """A conversation as ids, or as text without `tokenize`, under the name and with the defaults that users of transformers know.

        Text forgets which special tokens users spelled out; prompts with other people's text in them are safe as ids, or by `chat`.
        """
        text, ids = self.chat_prompt(
            conversation,
            tools=tools,
            template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )
        return ids if tokenize else text

    def names_of_stops(self, params: SamplingParams) -> dict[int, int | str]:
        """What the caller calls the token ids that end an answer: the id, or the stop string that spells it."""
        return {i: i for i in params.stop_token_ids} | self._spelled_by(params.stop)

    def resolve(self, params: SamplingParams, *, room: int) -> SamplingParams:
        """Sampling parameters as the engine wants them.

        room: the default of max_tokens, which is what fits behind the prompt at most. Stop strings that spell a special token become
        stop token ids too, since special tokens are no part of the text (but a model may spell one out); end ids join them
        unless `ignore_eos`. Bad words become token ids, as the beginning of a text and behind a space.
        """
        stop_ids = [*params.stop_token_ids, *self._spelled_by(params.stop)]
        if not params.ignore_eos:
            stop_ids += self.eos_ids
        return msgspec.structs.replace(
            params,
            stop_token_ids=tuple(dict.fromkeys(stop_ids)),
            max_tokens=room if params.max_tokens is None else params.max_tokens,
            min_tokens=min(params.min_tokens, room) if params.max_tokens is None else params.min_tokens,
            bad_words_token_ids=self._spelled(params.bad_words) if params.bad_words else params.bad_words_token_ids,
        )

    def special_id(self, token: str) -> int | None:
        """The id of a special token, by its spelling."""
        return self._special.get(token)

    def stream(self, params: SamplingParams, *, visible: frozenset[int] = frozenset()) -> TextStream:
        """Incremental text of one answer; params: resolved. visible: special tokens that are text all the same."""
        return TextStream(
            self.pieces if not visible else self.pieces.showing(visible),
            stop=params.stop,
            stop_spellings=self._spelled_by(params.stop),
            skip_special=params.skip_special_tokens,
            special_spaces=params.spaces_between_special_tokens,
            include_stop=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
            silent=not params.detokenize,
        )

    def _spelled_by(self, stops: Sequence[str]) -> dict[int, str]:
        """Special tokens that stop strings spell."""
        return {self._special[stop]: stop for stop in stops if stop in self._special}

    def _spelled(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Every word as token ids, at the beginning of a text and behind a space; blanks as they are.

        Raises RequestError for a word that has no tokens, or too many.
        """
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            if word.isspace():
                spellings = [self._blanks(word)]
            else:
                spellings = [tuple(self._ids(before + word.lstrip(" "), False)) for before in ("", " ")]
            longest = max(map(len, spellings))
            if not 1 <= longest <= MAX_WORD_TOKENS:
                raise refusal("bad_words", word, f"words of 1 to {MAX_WORD_TOKENS} tokens")
            found |= dict.fromkeys(spelling for spelling in spellings if spelling)
        return tuple(found)

    def _blanks(self, word: str) -> tuple[int, ...]:
        """A line break and the like, without the space that some vocabularies put before every text they encode."""
        ids = tuple(self._ids(word, False))
        put_before = len(ids) > 1 and word[0] != " " and self.pieces.bytes_of(ids[0]) == b" "
        return ids[1:] if put_before else ids
