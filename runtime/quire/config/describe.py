"""What is to be said of a field: its spellings, the values it takes, its meaning. For errors, help and references."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator
from pydantic.fields import FieldInfo

from quire.config.fields import ALIASES, SIZE_BOUND, EngineConfig

_METAVARS = {"int": "N", "float": "X", "size": "SIZE", "text": "TEXT", "list": "TEXT", "bool": "true|false"}


def flag_of(name: str) -> str:
    """`max_num_seqs` to `--max-num-seqs`."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """`max_num_seqs` to `QUIRE_MAX_NUM_SEQS`."""
    return "QUIRE_" + name.upper()


def kind_of(cls: type[EngineConfig], name: str) -> Literal["bool", "int", "float", "size", "choice", "text", "list"]:
    """What kind of value a field takes; `choice` has `choices_of`."""
    return _kind(cls.model_fields[name])


def choices_of(cls: type[EngineConfig], name: str) -> tuple[str, ...]:
    """The words a field of kind `choice` takes."""
    return tuple(map(str, get_args(_bare(cls.model_fields[name].annotation))))


def bound_of(cls: type[EngineConfig], name: str) -> str:
    """The values a field takes, in words that follow "must be"."""
    field = cls.model_fields[name]
    kind = _kind(field)
    limits = {type(entry): entry for entry in field.metadata}
    if kind == "bool":
        return "true or false"
    if kind == "size":
        return SIZE_BOUND
    if kind == "choice":
        *most, last = choices_of(cls, name)
        return f"one of {', '.join(most)} or {last}" if most else last
    if kind in ("int", "float"):
        noun = "an integer" if kind == "int" else "a number"
        low = _limit(limits, Ge, "at least", "ge") or _limit(limits, Gt, "above", "gt")
        high = _limit(limits, Le, "at most", "le") or _limit(limits, Lt, "below", "lt")
        if Ge in limits and Le in limits:
            one = limits[Ge].ge == limits[Le].le
            noun, low, high = (
                ("", str(limits[Ge].ge), "") if one else (noun, f"between {limits[Ge].ge} and {limits[Le].le}", "")
            )
        return " ".join(filter(None, [noun, low, "and" if low and high else "", high]))
    if kind == "list":
        (item, *_) = get_args(_bare(field.annotation))
        filled = any(isinstance(entry, MinLen) for entry in getattr(item, "__metadata__", ()))
        return "a list of non-empty texts" if filled else "a list of texts"
    pattern = next((entry.pattern for entry in field.metadata if getattr(entry, "pattern", None)), None)
    return f"a text that matches {pattern}" if pattern else "a non-empty text" if MinLen in limits else "a text"


def _limit(limits: dict[type, Any], kind: type, words: str, attribute: str) -> str:
    return f"{words} {getattr(limits[kind], attribute)}" if kind in limits else ""


def _kind(field: FieldInfo) -> Literal["bool", "int", "float", "size", "choice", "text", "list"]:
    bare = _bare(field.annotation)
    if bare is bool:
        return "bool"
    if bare is int:
        return "int"
    if bare is float:
        return "float"
    if get_origin(bare) is Literal:
        return "choice"
    if get_origin(bare) is tuple:
        return "list"
    annotated = [*field.metadata, *(get_args(field.annotation)[0:1] if field.annotation is not str else ())]
    sized = any(isinstance(entry, AfterValidator) or get_origin(entry) is Annotated for entry in annotated)
    return "size" if sized else "text"


def _bare(annotation: Any) -> Any:
    """The type inside Annotated and `| None`."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    arguments = get_args(annotation)
    if type(None) in arguments:
        return _bare(next(argument for argument in arguments if argument is not type(None)))
    return annotation


_WIDTH = 48
_LONG = "NAME"
"""In the place of choices that would not stand beside their flag; the description names them then."""


def flag_names(name: str) -> list[str]:
    """All spellings of a field's flag, the usual one first."""
    return [flag_of(name), *(flag_of(alias) for alias, field in ALIASES.items() if field == name)]


def description(cls: type[EngineConfig], name: str) -> str:
    """Meaning, bound and default of a field, in one line."""
    field, kind = cls.model_fields[name], kind_of(cls, name)
    bound = f"; {bound_of(cls, name)}" if kind in ("int", "float") or metavar(cls, name) == _LONG else ""
    default = field.default
    shown = "" if default in (None, ()) else f" [{str(default).lower() if kind == 'bool' else default}]"
    return f"{field.description}{bound}{shown}"


def metavar(cls: type[EngineConfig], name: str) -> str:
    """How help calls the value."""
    kind = kind_of(cls, name)
    if kind != "choice":
        return _METAVARS[kind]
    words = "|".join(choices_of(cls, name))
    return words if len(words) <= _WIDTH else _LONG
