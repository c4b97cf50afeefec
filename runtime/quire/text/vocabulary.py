"""What every source of a tokenizer delivers: the `tokenizers` object and the facts around it.

Built by `gguf_vocab` and `hf_folder`, consumed by `Tokenizer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import tokenizers


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as it was found.

    backend: encodes; special tokens are matched in the text it is given.
    name: for messages: where it came from.
    special_ids: tokens that are no text.
    eos_ids: each of them ends an answer unasked.
    add_bos: whether plain text gets the begin token; None leaves it to the backend's post-processor.
    templates: chat templates by name; "default" is the usual one.
    template_tokens: variables such as bos_token that templates may use.
    """

    backend: tokenizers.Tokenizer
    name: str
    special_ids: frozenset[int]
    eos_ids: tuple[int, ...]
    bos_id: int | None = None
    pad_id: int | None = None
    unk_id: int | None = None
    add_bos: bool | None = None
    templates: dict[str, str] = field(default_factory=dict)
    template_tokens: dict[str, str] = field(default_factory=dict)
