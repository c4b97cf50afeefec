"""Finding and reading the tokenizer of a model: the one door of this package to the file system."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from quire.errors import ConfigError, ModelError
from quire.text.gguf_vocab import from_gguf
from quire.text.hf_folder import from_folder
from quire.text.tokenizer import Tokenizer


def load_tokenizer(path: Path, *, chat_template: str | None = None, name: str | None = None) -> Tokenizer:
    """Read a tokenizer from a Hugging Face folder or a .gguf file (never from the network).

    chat_template: file with a template that replaces the model's own. name: how messages call the model.
    Raises ModelError (names the file) or ConfigError (names --chat-template).
    """
    if path.is_dir():
        vocabulary = from_folder(path)
    elif path.is_file():
        vocabulary = from_gguf(path)
    else:
        raise ModelError(f"no tokenizer at {path}: it is neither a folder nor a .gguf file")
    if chat_template is not None:
        vocabulary = replace(vocabulary, templates={"default": _read_template(chat_template)})
    if name is not None:
        vocabulary = replace(vocabulary, name=name)
    return Tokenizer(vocabulary)


def _read_template(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--chat-template must be a readable jinja file, got {file!r}: {exc}") from exc
