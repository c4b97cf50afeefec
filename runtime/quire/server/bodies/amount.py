"""How many values a body may have, and what they take when they are read. Bytes alone tell neither: reading JSON holds up everybody, health and
streams too, and a list of two bytes takes up to a hundred times as many.

Pure. A long text is one value, whatever stands in it.
"""

from __future__ import annotations

from quire.errors import RequestError

MAX_TEXTS = 200_000
"""Texts and names of fields. A message has four: 50 000 messages. A million take a second and more to read."""
MAX_VALUES = 1_000_000
"""Of all kinds; token ids are the cheap ones."""
MAX_OBJECTS = 100_000
"""Lists and objects, which cost most: 50 000 messages are as many objects."""


OBJECT_BYTES, TEXT_BYTES, VALUE_BYTES = 350, 110, 32
"""Of memory that one takes at most once it is read, beside its characters."""


def bytes_as_read(data: bytes) -> int:
    """What a body, JSON or not, takes when it is read, at most and roughly. Raises RequestError (413) where it has more values than may be
    read."""
    wide = (
        1 if data.isascii() and b"\\u" not in data else 4
    )  # one character outside of the first plane makes each of its text so wide
    num_bytes = wide * len(data)
    if b"\\" in data:
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")  # what is left of quotes are ends of texts
    num_texts = data.count(b'"') // 2
    if num_texts > MAX_TEXTS:
        raise _too_many(num_texts, "texts and names of fields", MAX_TEXTS)
    between = b"".join(data.split(b'"')[::2])
    num_objects = between.count(b"[") + between.count(b"{")
    if num_objects > MAX_OBJECTS:
        raise _too_many(num_objects, "lists and objects", MAX_OBJECTS)
    num_values = num_objects + between.count(b",")
    if num_values > MAX_VALUES:
        raise _too_many(num_values, "values", MAX_VALUES)
    return num_bytes + num_objects * OBJECT_BYTES + num_texts * TEXT_BYTES + num_values * VALUE_BYTES


def _too_many(number: int, what: str, most: int) -> RequestError:
    return RequestError(
        f"the body has {number} {what}, but at most {most} are read; send several requests",
        code="body_too_large",
        status=413,
    )
