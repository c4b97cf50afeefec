"""The start of the engine's process, before anything is known of the model: `python -m quire.engine.process FOLDER`.

Importing torch is most of a short start. So `quire serve` begins with this, and the new process imports while this one reads its command
line, imports the server and finds the model. Then it waits for its configuration on standard input, and ends when that closes. Nothing heavy is
imported here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Spawned:
    """A process that will be an engine. folder: of its sockets. spawned_s: when it began, by CLOCK_MONOTONIC."""

    process: subprocess.Popen[bytes]
    folder: Path
    spawned_s: float

    def end(self) -> None:
        """End it now, whatever it does. Safe to call twice."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def spawn(module: str = "quire.engine.process", *arguments: str) -> Spawned:
    """A new interpreter with a private folder for sockets. On Linux it dies with the thread that calls this. module: what it runs, with
    the folder and these arguments."""
    folder = Path(tempfile.mkdtemp(prefix="quire-"))  # only this user can enter; socket paths end at 107 characters
    command = [sys.executable, "-m", module, str(folder), *arguments]
    began = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, env=_environment())
    return Spawned(process, folder, began)


def _environment() -> dict[str, str]:
    """Ours, with this interpreter's search path, and the current folder kept off it.

    OpenMP threads that spin at barriers wait for a partner that has no CPU: with other load on 2 cores, a step of one sequence
    took 722 ms, and 160 ms with passive waiting. And torch does not look through all installed packages for devices of others, which no
    engine uses. Both variables are read when torch loads, and a user's own value wins.
    """
    path = os.pathsep.join(path for path in sys.path if path)
    ours = {"OMP_WAIT_POLICY": "PASSIVE", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return {**ours, **os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
