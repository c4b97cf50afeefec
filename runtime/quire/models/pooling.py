"""How a model makes one vector of a prompt, as its files or `--pooling` say.

Files are those of sentence-transformers: `modules.json` lists what follows the model, `Pooling` (with a config.json of its own) and
`Normalize`; a GGUF file has `<architecture>.pooling_type`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from quire.errors import ModelError
from quire.models.metadata import Fields, read_json

Kind = Literal["last", "mean", "cls"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MODULES = "modules.json"
_GGUF_TYPES: dict[int, Kind] = {1: "mean", 2: "cls", 3: "last"}
_MODES: dict[str, Kind] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}
_REMEDY = "only one of mean, cls and lasttoken is possible here"


@dataclass(frozen=True)
class Pooling:
    """kind: the hidden state of the last token, the mean over all, or the one of the first. normalise: vectors get the length 1."""

    kind: Kind
    normalise: bool = True


def choose(flag: str, said: Pooling | None, default: Kind | None) -> Pooling | None:
    """flag: `--pooling`. said: by the model's files. default: of a model whose files say nothing. None: it generates text."""
    if flag == "none":
        return None
    if flag == "auto":
        return said or (None if default is None else Pooling(default))
    [kind] = [one for one in KINDS if one == flag]
    return Pooling(kind, said is None or said.normalise)


def from_folder(folder: Path) -> Pooling | None:
    """What the files of sentence-transformers say; None where there are none. Raises ModelError for what is not known here."""
    path = folder / MODULES
    if not path.is_file():
        return None
    found: Pooling | None = None
    for kind, place in _modules(path):
        if kind == "Pooling" and found is None:
            found = Pooling(_kind(read_json(folder / place / "config.json")), normalise=False)
        elif kind == "Normalize" and found is not None:
            found = Pooling(found.kind, normalise=True)
        elif kind != "Transformer" or found is not None:
            raise ModelError(
                f"{path}: the module {kind} is not known here, only Transformer, Pooling and Normalize in this order are; "
                "take another model, or --pooling none to generate text"
            )
    return found


def from_gguf(metadata: Fields) -> Pooling | None:
    """What a GGUF file says; None where it says nothing. Raises ModelError for a kind that is not known here."""
    key = f"{metadata.values.get('general.architecture')}.pooling_type"
    value = metadata.values.get(key)
    if not value:  # 0: none
        return None
    if value not in _GGUF_TYPES:
        raise metadata.bad(key, value, "1 (mean), 2 (cls) or 3 (last)")
    return Pooling(_GGUF_TYPES[value])


def _modules(path: Path) -> list[tuple[str, str]]:
    """Class name and folder of each, in order."""
    try:
        entries: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(entries, list):
            raise TypeError("it is no list")
        listed = sorted(entries, key=lambda entry: entry["idx"])
        found = [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in listed]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ModelError(f"{path} is damaged ({type(exc).__name__}: {exc}); download it again") from exc
    if any(Path(place).is_absolute() or ".." in Path(place).parts for _, place in found):
        raise ModelError(f"{path} names a folder outside its own; download it again")
    return found


def _kind(config: Fields) -> Kind:
    """The one way of pooling that a Pooling module's configuration switches on."""
    if isinstance(named := config.values.get("pooling_mode"), str):  # of newer versions
        modes = [f"pooling_mode_{named}", f"pooling_mode_{named}_token", f"pooling_mode_{named}_tokens"]
        known = [_MODES[mode] for mode in modes if mode in _MODES]
        if len(known) != 1:
            raise config.bad("pooling_mode", named, "mean, cls or lasttoken")
        return known[0]
    chosen = [key for key, value in config.values.items() if key.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in _MODES:
        raise ModelError(f"{config.path} pools by {' and '.join(chosen) or 'nothing'}; {_REMEDY}")
    return _MODES[chosen[0]]
