"""The engine's end of the nursery, and of the workers it forks. Never waits."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import weakref
from multiprocessing.connection import Connection

import msgspec

from quire.engine.grammar import protocol as say


class Nursery:
    """The process that forks workers. It ends when this object does, and with the engine."""

    def __init__(self, settings: say.Settings) -> None:
        """Raises OSError where there is no process to be had."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "quire.engine.grammar.worker", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            except BaseException:
                ours.close()
                raise
        self.control = ours
        """Readable when it has said how a worker ended."""
        self.close = weakref.finalize(self, _end, ours, self._process)
        self._patience = struct.pack("@ll", max(int(settings.limits.mask_wall_s), 1), 0)
        self._num_workers = 0
        self._endings: dict[int, int] = {}
        self._unread = b""
        frame = msgspec.msgpack.encode(settings)
        ours.sendall(len(frame).to_bytes(4) + frame)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def worker(self) -> Worker:
        """Have a worker forked; raises OSError where the process is gone."""
        self._read()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # of one that is stopped in the middle of a message
                ours.setsockopt(socket.SOL_SOCKET, option, self._patience)
            socket.send_fds(self.control, [b"w"], [theirs.fileno()])
            self._num_workers += 1
            return Worker(self, self._num_workers, Connection(ours.detach()))

    def ending(self, number: int) -> int | None:
        """The exit code of a worker that did not end by itself, as far as is known."""
        self._read()
        return self._endings.pop(number, None)

    def _read(self) -> None:
        try:
            while data := self.control.recv(4096, socket.MSG_DONTWAIT):
                self._unread += data
        except OSError:  # nothing more is there
            pass
        whole = len(self._unread) // say.ENDING.size * say.ENDING.size
        self._endings.update(say.ENDING.iter_unpack(self._unread[:whole]))
        self._unread = self._unread[whole:]


class Worker:
    """A socket at whose other end is the process of one grammar. That process ends when this object does."""

    def __init__(self, nursery: Nursery, number: int, link: Connection) -> None:
        self._nursery = nursery
        self._number = number
        self._dead = False
        self.link = link

    @property
    def waiting_on(self) -> Connection | socket.socket:
        """What becomes readable with its next message, or once it has ended and it is known how."""
        return self._nursery.control if self._dead else self.link

    def died(self) -> None:
        """Its socket is closed."""
        self._dead = True

    def ending(self) -> int | None:
        """How it ended, as an exit code; None while that may still come."""
        ended = self._nursery.ended  # before the last look
        found = self._nursery.ending(self._number)
        return say.NOT_BORN if found is None and ended else found

    def close(self) -> None:
        self.link.close()


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    process.kill()
    process.wait()
