"""A tokenizer from a Hugging Face folder.

Read are `tokenizer.json` (required), `tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja`,
`chat_template.json`, `generation_config.json` and `config.json`. Code that comes with a model is never run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from quire.errors import ModelError
from quire.text.vocabulary import Vocabulary

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def from_folder(folder: Path) -> Vocabulary:
    """Read the tokenizer of a folder; raises ModelError that names the file and what is wrong with it."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelError(
            f"no tokenizer.json in {folder}; save the tokenizer with save_pretrained (fast tokenizer) or name one "
            "with --tokenizer"
        )
    backend = _backend(file)
    config = _json(folder / "tokenizer_config.json")
    names = _token_names(config, _json(folder / "special_tokens_map.json"))
    added = backend.get_added_tokens_decoder()

    def token_id(name: str) -> int | None:
        return backend.token_to_id(names[name]) if name in names else None

    special = {i for i, token in added.items() if token.special}
    special |= {i for i in map(token_id, ("bos_token", "eos_token", "pad_token")) if i is not None}
    ends = [*_ids(_json(folder / "generation_config.json"), "eos_token_id")]
    ends += _ids(_json(folder / "config.json"), "eos_token_id")
    ends += [i for i in (token_id("eos_token"),) if i is not None]
    return Vocabulary(
        backend=backend,
        name=folder.name,
        special_ids=frozenset(special),
        eos_ids=tuple(dict.fromkeys(ends)),
        bos_id=token_id("bos_token"),
        pad_id=token_id("pad_token"),
        unk_id=token_id("unk_token"),
        add_bos=config.get("add_bos_token") if isinstance(config.get("add_bos_token"), bool) else None,
        templates=_templates(folder, config),
        template_tokens=names,
    )


def _backend(file: Path) -> tokenizers.Tokenizer:
    """The tokenizer itself; special tokens are matched before any normalisation, see `Tokenizer`."""
    try:
        text = file.read_text(encoding="utf-8")
        raw = json.loads(text)
        patched = [token for token in raw.get("added_tokens", ()) if token.get("special") and token.get("normalized")]
        for token in patched:
            token["normalized"] = False
        backend = tokenizers.Tokenizer.from_str(json.dumps(raw) if patched else text)
    except Exception as exc:  # OSError, bad JSON, or the library's plain Exception
        raise ModelError(f"cannot read {file}: {exc}") from exc
    backend.no_truncation()
    backend.no_padding()
    return backend


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ModelError(f"cannot read {file}: {exc}") from exc
    if not isinstance(value, dict):
        raise ModelError(f"{file} must hold a JSON object, got {type(value).__name__}")
    return value


def _token_names(*sources: dict[str, Any]) -> dict[str, str]:
    """Names such as bos_token to their spelling; a token is a string or an object with `content`."""
    names: dict[str, str] = {}
    for source in reversed(sources):
        for name in _TOKEN_NAMES:
            value = source.get(name)
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                names[name] = content
    return names


def _ids(config: dict[str, Any], key: str) -> list[int]:
    value = config.get(key)
    values = value if isinstance(value, list) else [value]
    return [i for i in values if isinstance(i, int) and not isinstance(i, bool)]


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Later sources win: tokenizer_config.json, chat_template.json, chat_template.jinja and its folder of others."""
    templates: dict[str, str] = {}
    for value in (config.get("chat_template"), _json(folder / "chat_template.json").get("chat_template")):
        if isinstance(value, str):
            templates["default"] = value
        elif isinstance(value, list):
            templates |= {entry["name"]: entry["template"] for entry in value}
    others = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    for name, file in [*((other.stem, other) for other in others), ("default", folder / "chat_template.jinja")]:
        if file.is_file():
            templates[name] = file.read_text(encoding="utf-8")
    return templates
