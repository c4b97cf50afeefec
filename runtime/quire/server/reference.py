"""docs/fields.md: endpoint, field, what becomes of it. Made from what the parser follows, `bodies.fields`, and nothing else.

python -m quire.server.reference > docs/fields.md
python -m quire.server.reference --check docs/fields.md
"""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.config import ServeConfig, load
from quire.server.app import create_app
from quire.server.bodies.fields import Fields
from quire.server.bodies.reading import IGNORED_HEADER, bodies_of
from quire.server.flight.frontend import Frontend

COMMAND = "python -m quire.server.reference"
USED, REQUIRED, IGNORED, REFUSED, UNKNOWN = "used", "required", "ignored", "400", "·"

Bodies = Mapping[str, type[Fields]]

HEAD = f"""# Fields of requests

<!-- Made from the code by `{COMMAND} > docs/fields.md`; a test fails when it is stale. -->

What becomes of each field of a body, by endpoint. The tables are made from the declarations that the parser itself follows
(`runtime/quire/server/bodies/fields.py`), and a test sends every field to the server and looks whether it is so. [The server](server.md) says more
of most of them, [sampling](sampling.md) has the bounds of sampling parameters.

| | |
|---|---|
| {USED}, {REQUIRED} | it has the effect that its name says; a bad value is a 400 that names it |
| {IGNORED} | accepted, without effect, for the reason [below](#ignored) |
| {REFUSED} | a 400 that names it, unless its value asks for nothing ([below](#refused)) |
| {UNKNOWN} | unknown there, as are all that are not in the table: accepted, and named in the response header `{IGNORED_HEADER}` (16 at most) |
"""


@dataclass(frozen=True)
class Behaviour:
    """What becomes of a field. text: what it means, why it is ignored, or what is taken and what to do instead."""

    kind: str
    text: str = ""
    taken: str = ""


def bodies() -> dict[str, type[Fields]]:
    """The body of each endpoint that takes one."""
    return dict(bodies_of(create_app(Frontend(load(ServeConfig, flags={}, environ={}))).routes))


def behaviours(model: type[Fields]) -> dict[str, Behaviour]:
    """All fields that a body knows; the others are unknown."""
    found: dict[str, Behaviour] = {}
    for name, field in model.model_fields.items():
        found[field.alias or name] = Behaviour(REQUIRED if field.is_required() else USED, field.description or "")
    for name, why in model.IGNORED.items():
        found[name] = Behaviour(IGNORED, why)
    for name, refused in model.REFUSED.items():
        taken = ", ".join(f"`{json.dumps(one)}`" for one in refused.neutral)
        found[name] = Behaviour(REFUSED, refused.instead, taken)
    return found


def inside(model: type[Fields], place: str = "", outer: tuple[type[Fields], ...] = ()) -> Iterator[tuple[str, Any]]:
    """The objects that a body may hold: where, and the model."""
    for name, field in model.model_fields.items():
        for is_list, found in _models_in(field.annotation):
            if found not in outer:
                where = f"{place}{field.alias or name}{'[]' if is_list else ''}"
                yield where, found
                yield from inside(found, f"{where}.", (*outer, found))


def reference() -> str:
    """The whole of docs/fields.md."""
    known = bodies()
    found = {path: behaviours(model) for path, model in known.items()}
    parts = [HEAD, *_matrices(found), "## Meaning\n", _meanings(found)]
    parts += ["## Refused\n", _table(("field", "where", "taken all the same", "instead"), _told(found, REFUSED))]
    ignored = [(name, where, why) for name, where, _, why in _told(found, IGNORED)]
    parts += ["## Ignored\n", _table(("field", "where", "why"), ignored)]
    parts += [
        "## Inside of objects\n",
        INSIDE,
        _table(("object", "where", "fields", "ignored", "others"), _objects(known)),
    ]
    return "\n".join(parts)


INSIDE = """Fields of objects are as strict as those of the body.
"""
WIDTH = 4
"""Endpoints side by side."""


def _matrices(found: Mapping[str, Mapping[str, Behaviour]]) -> Iterator[str]:
    paths = list(found)
    names = list(dict.fromkeys(name for fields in found.values() for name in fields))
    for begin in range(0, len(paths), WIDTH):
        some = paths[begin : begin + WIDTH]
        rows = [
            (f"`{name}`", *(found[path][name].kind if name in found[path] else UNKNOWN for path in some))
            for name in names
            if any(name in found[path] for path in some)
        ]
        yield f"## {', '.join(f'`{path}`' for path in some)}\n"
        yield _table(("field", *(path.removeprefix("/v1") for path in some)), rows)


def _meanings(found: Mapping[str, Mapping[str, Behaviour]]) -> str:
    meanings: dict[tuple[str, str], list[str]] = {}
    for path, fields in found.items():
        for name, one in fields.items():
            if one.kind in (USED, REQUIRED):
                meanings.setdefault((name, one.text), []).append(path)
    several = {name for name, _ in meanings if sum(name == other for other, _ in meanings) > 1}
    rows = [
        (f"`{name}`", ", ".join(f"`{path}`" for path in paths) if name in several else "", text)
        for (name, text), paths in sorted(meanings.items())
    ]
    return _table(("field", "where, if not everywhere alike", "meaning"), rows)


def _told(found: Mapping[str, Mapping[str, Behaviour]], kind: str) -> list[tuple[str, str, str, str]]:
    told: dict[tuple[str, str, str], list[str]] = {}
    for path, fields in found.items():
        for name, one in fields.items():
            if one.kind == kind:
                told.setdefault((name, one.taken, one.text), []).append(path)
    return [
        (f"`{name}`", ", ".join(f"`{path}`" for path in paths), taken, text)
        for (name, taken, text), paths in sorted(told.items())
    ]


def _objects(known: Bodies) -> list[tuple[str, str, str, str, str]]:
    objects: dict[tuple[str, type[Fields]], list[str]] = {}
    for path, model in known.items():
        for where, found in inside(model):
            objects.setdefault((where, found), []).append(path)
    rows = []
    for (where, model), paths in sorted(objects.items(), key=lambda item: item[0][0]):
        fields = behaviours(model)
        used = ", ".join(f"`{name}`" for name, one in fields.items() if one.kind in (USED, REQUIRED))
        ignored = "; ".join(f"`{name}`: {one.text}" for name, one in fields.items() if one.kind == IGNORED)
        others = model.OTHERS if model.PASSED_ON else "named in the header, with their place"
        rows.append((f"`{where}`", ", ".join(f"`{path}`" for path in paths), used, ignored, others))
    return rows


def _models_in(annotation: Any, is_list: bool = False) -> Iterator[tuple[bool, type[Fields]]]:
    if isinstance(annotation, type) and issubclass(annotation, Fields):
        yield is_list, annotation
    for inner in typing.get_args(annotation):
        yield from _models_in(inner, is_list or typing.get_origin(annotation) is list)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    if arguments[:1] != ["--check"]:
        print(reference(), end="")
        return 0
    stale = [file for file in arguments[1:] if Path(file).read_text() != reference()]
    for file in stale:
        print(f"{file} is stale: {COMMAND} > {file}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
