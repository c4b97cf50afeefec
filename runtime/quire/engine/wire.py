"""The sockets between server and engine: two PUSH/PULL pairs over ipc in a private folder, msgpack frames.

The client binds both ends before it starts the process, so no message is ever lost to a race.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from quire.request import FromEngine, Sibling, ToEngine

encoder = msgspec.msgpack.Encoder()
to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)


class _Head(msgspec.Struct):
    """What answers to a request need of it."""

    request_id: str
    siblings: tuple[Sibling, ...] = ()


_head = msgspec.msgpack.Decoder(_Head)


def addressees(frame: bytes) -> list[str]:
    """The ids of the request in a frame that cannot be decoded, its siblings' too; empty where not even they can be read."""
    try:
        head = _head.decode(frame)
    except (msgspec.DecodeError, RecursionError):
        return []
    return [head.request_id, *(sibling.request_id for sibling in head.siblings)]


@dataclass(frozen=True)
class Endpoints:
    """Socket addresses: requests go to the engine, outputs come from it."""

    folder: Path
    requests: str
    outputs: str


def endpoints(folder: Path) -> Endpoints:
    """The two addresses in a folder."""
    return Endpoints(folder, f"ipc://{folder}/requests", f"ipc://{folder}/outputs")
