"""The sockets between server and engine: two PUSH/PULL pairs over ipc in a private folder, msgpack frames.

The client binds both ends before it starts the process, so no message is ever lost to a race.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from quire.request import FromEngine, ToEngine

encoder = msgspec.msgpack.Encoder()
to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)


@dataclass(frozen=True)
class Endpoints:
    """Socket addresses: requests go to the engine, outputs come from it."""

    folder: Path
    requests: str
    outputs: str


def endpoints(folder: Path) -> Endpoints:
    """The two addresses in a folder."""
    return Endpoints(folder, f"ipc://{folder}/requests", f"ipc://{folder}/outputs")
