"""What programs call on a tokenizer of transformers, under the same names, for `LLM.get_tokenizer()`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, overload

import tokenizers

from quire.text.vocabulary import Vocabulary


class Encoding(dict[str, Any]):
    """`{"input_ids": …, "attention_mask": …}`, also as attributes."""

    @property
    def input_ids(self) -> Any:
        """Token ids of a text, or of each of several."""
        return self["input_ids"]

    @property
    def attention_mask(self) -> Any:
        """Ones in the same shape: nothing is padded."""
        return self["attention_mask"]


class FamiliarNames(ABC):
    """See the module; encoding and decoding are the tokenizer's own. Unknown tokens and ids are None."""

    _backend: tokenizers.Tokenizer

    def __init__(self, vocabulary: Vocabulary) -> None:
        spellings: Mapping[str, str] = vocabulary.template_tokens
        eos = vocabulary.backend.token_to_id(spellings["eos_token"]) if "eos_token" in spellings else None
        self.bos_token_id: int | None = vocabulary.bos_id
        self.eos_token_id: int | None = next(iter(vocabulary.eos_ids), None) if eos is None else eos
        self.pad_token_id: int | None = vocabulary.pad_id
        self.unk_token_id: int | None = vocabulary.unk_id
        self.all_special_ids: list[int] = sorted(vocabulary.special_ids)

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""

    @property
    def bos_token(self) -> str | None:
        """The token that begins texts."""
        return self._token(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        """The token that ends texts; `eos_ids` are all that end answers."""
        return self._token(self.eos_token_id)

    @property
    def pad_token(self) -> str | None:
        """The token that pads batches; nothing is padded here."""
        return self._token(self.pad_token_id)

    @property
    def unk_token(self) -> str | None:
        """The token for what the vocabulary cannot write."""
        return self._token(self.unk_token_id)

    @property
    def all_special_tokens(self) -> list[str]:
        """Spellings of the control tokens."""
        return [token for i in self.all_special_ids if (token := self._token(i)) is not None]

    @property
    def vocab_size(self) -> int:
        """Tokens without those that were added to the vocabulary."""
        size: int = self._backend.get_vocab_size(with_added_tokens=False)
        return size

    def get_vocab(self) -> dict[str, int]:
        """Every token's id."""
        vocab: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocab

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...
    @overload
    def convert_tokens_to_ids(self, tokens: list[str] | tuple[str, ...]) -> list[int | None]: ...

    def convert_tokens_to_ids(self, tokens: str | list[str] | tuple[str, ...]) -> int | list[int | None] | None:
        """The id of a token as the vocabulary writes it, or of each of several; the unknown token's for one it does not have."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        found: int | None = self._backend.token_to_id(tokens)
        return self.unk_token_id if found is None else found

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str | None: ...
    @overload
    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]: ...

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str | None] | None:
        """A token as the vocabulary writes it, or each of several."""
        return self._token(ids) if isinstance(ids, int) else [self._token(i) for i in ids]

    def batch_decode(self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True) -> list[str]:
        """`decode` of each."""
        return [self.decode(ids, skip_special_tokens=skip_special_tokens) for ids in sequences]

    def __call__(self, text: str | Sequence[str], *, add_special_tokens: bool = True) -> Encoding:
        """`encode` of a text or of each of several, as lists in a mapping."""
        if isinstance(text, str):
            ids: Any = self.encode(text, add_special_tokens=add_special_tokens)
            return Encoding(input_ids=ids, attention_mask=[1] * len(ids))
        ids = [self.encode(one, add_special_tokens=add_special_tokens) for one in text]
        return Encoding(input_ids=ids, attention_mask=[[1] * len(one) for one in ids])

    def _token(self, token_id: int | None) -> str | None:
        token: str | None = None if token_id is None or token_id < 0 else self._backend.id_to_token(token_id)
        return token
