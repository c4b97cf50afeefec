"""The engine process: `python -m quire.engine.process FOLDER`, started by `spawn` only.

Configuration comes as a line of JSON on standard input, some time after the start; it stays open: when the parent dies it closes, and
so does this process.
The loop polls its sockets and steps. Idle, it blocks in poll and wakes once a second for a heartbeat. A fault of one
request is a delta with an error; a fault of the step ends the process with EngineFailed and status 1.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import signal
import sys
import time
from pathlib import Path

from quire.models.lean_torch import import_torch

import_torch()  # before others import the whole of it
# isort: split
import msgspec
import zmq

from quire.config import EngineConfig
from quire.engine import wire
from quire.engine.core import EngineCore
from quire.engine.stages import Stages
from quire.engine.startup import build
from quire.errors import EngineDeadError, QuireError
from quire.logs import set_up_logging
from quire.request import (
    AbortRequest,
    AddRequest,
    EngineFailed,
    FromEngine,
    PoolRequest,
    ResetPrefixCache,
    Shutdown,
    StepOutputs,
)

HEARTBEAT_S = 1.0
LINGER_MS = 2000
PR_SET_PDEATHSIG = 1

_log = logging.getLogger("quire.engine")


class EngineProcess:
    """The loop around a core: sockets in, sockets out."""

    def __init__(self, endpoints: wire.Endpoints, lifeline: int) -> None:
        """lifeline: a file descriptor that becomes readable (at its end) when the parent is gone."""
        self._context = zmq.Context()
        self._requests = self._context.socket(zmq.PULL)
        self._requests.connect(endpoints.requests)
        self._outputs = self._context.socket(zmq.PUSH)
        self._outputs.set(zmq.SNDHWM, 0)  # the loop never blocks on a slow server; a dead one ends us
        self._peer = self._outputs.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._outputs.connect(endpoints.outputs)
        self._lifeline = lifeline
        self._poller = zmq.Poller()
        self._poller.register(self._requests, zmq.POLLIN)
        self._poller.register(lifeline, zmq.POLLIN)
        self._poller.register(self._peer, zmq.POLLIN)

    def send(self, message: FromEngine) -> None:
        self._outputs.send(wire.encoder.encode(message))

    def run(self, core: EngineCore) -> None:
        """Serve until told to stop. Raises EngineDeadError where nobody is left to answer."""
        spoke = time.monotonic()
        while True:
            wait_s = 0.0 if core.has_work else max(spoke + HEARTBEAT_S - time.monotonic(), 0.0)
            if not self._receive(core, wait_s):
                return
            if core.has_work:
                self.send(core.step())
                spoke = time.monotonic()
            elif time.monotonic() >= spoke + HEARTBEAT_S:
                core.check()
                self.send(StepOutputs(deltas=[], stats=core.stats()))
                spoke = time.monotonic()

    def close(self) -> None:
        """Give sent messages a moment to leave, then drop everything."""
        self._outputs.disable_monitor()
        self._context.destroy(linger=LINGER_MS)

    def _receive(self, core: EngineCore, wait_s: float) -> bool:
        """Take in all messages that are there, waiting for a first one; False when the loop must end."""
        ready = dict(self._poller.poll(math.ceil(wait_s * 1000)))
        if self._lifeline in ready:
            _log.warning("the server process is gone; the engine ends too")
            return False
        changed = False
        while self._requests in ready:
            try:
                frame = self._requests.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                message = wire.to_engine.decode(frame)
            except Exception as exc:  # noqa: BLE001 - whatever came, it is the fault of one request
                _refuse(core, frame, exc)
                continue
            match message:
                case AddRequest() as request:
                    core.add(request)
                case PoolRequest() as request:
                    core.pool(request)
                case AbortRequest(request_ids=ids):
                    core.abort(ids)
                    changed = True
                case ResetPrefixCache():
                    core.reset_prefix_cache()
                case Shutdown():
                    return False
        if self._peer in ready:
            self._peer.recv_multipart(zmq.NOBLOCK)
            raise EngineDeadError("the server closed its socket and did not say why; the engine ends too")
        if changed and not core.has_work:
            self.send(StepOutputs(deltas=[], stats=core.stats()))
        return True


def main(arguments: list[str]) -> int:
    """Start, serve, end. Returns the exit status; the last words went to the server as EngineFailed."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle: it drains, then shuts us down
    lifeline = sys.stdin.fileno()
    imported_s = time.monotonic()
    if not (line := sys.stdin.buffer.readline()):
        return 0  # nothing came of it: the server ended before it had a configuration
    settings = msgspec.json.decode(line)
    set_up_logging(settings["log_level"], settings["log_format"])
    stages = Stages()
    stages.seconds["import"] = imported_s - float(settings["spawned_s"])
    process = EngineProcess(wire.endpoints(Path(arguments[0])), lifeline)
    try:
        core, ready = build(EngineConfig(**settings["config"]), stages)
        gc.collect()
        gc.freeze()  # the pool's blocks live as long as the process; the collector need not walk over them in a step
        process.send(ready)
        process.run(core)
    except EngineDeadError as exc:
        _log.error("%s", exc)
        return 1
    except QuireError as exc:
        process.send(EngineFailed(kind=type(exc).__name__, message=str(exc)))
        return 1
    except Exception as exc:  # noqa: BLE001 - the last thing this process does is say why it ends
        _log.exception("the engine failed")
        process.send(EngineFailed(kind="EngineDeadError", message=f"the engine failed: {_last_words(exc)}"))
        return 1
    finally:
        process.close()
    return 0


def _refuse(core: EngineCore, frame: bytes, cause: Exception) -> None:
    """Answer what cannot be read: a checked request never comes to this, and one that does must not end the others."""
    _log.error("a message of %d bytes cannot be read: %s", len(frame), cause)
    core.refuse(wire.addressees(frame), f"the engine cannot read it: {cause}")


def _last_words(exc: Exception) -> str:
    if isinstance(exc, MemoryError):
        return "out of memory; lower --kv-cache-memory, --max-num-batched-tokens or --max-num-seqs"
    lines = str(exc).strip().splitlines()
    return f"{type(exc).__name__}: {lines[0]}" if lines else type(exc).__name__


def _die_with_parent() -> None:
    """On Linux the kernel kills us when the thread that started us ends, also in the middle of a step."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
