"""A tiny byte-level tokenizer as a Hugging Face folder: 256 bytes, a few merges, ChatML tokens.

Ids: 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|>, 3..258 the bytes in the order of their printable characters, then
merges. Two end ids: <|im_end|> (tokenizer) and <|endoftext|> (generation config).
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "U V", "UV W")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
VOCAB_SIZE = 300  # of the pretended model: larger than the tokenizer, as models pad


def build_tokenizer(template_bos: bool = False) -> Tokenizer:
    """The tokenizer itself."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIAL, *alphabet, *(merge.replace(" ", "") for merge in MERGES)]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return tokenizer


def write_tokenizer(folder: Path, *, template: str | None = TEMPLATE, **config: object) -> Path:
    """Write the folder and return it. config: more entries of tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer().save(str(folder / "tokenizer.json"))
    entries = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    if template is not None:
        entries["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps({**entries, **config}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    return folder
