"""The pause program: compiled here, once per source, and packed as the sandbox image of every pod."""

import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from cluster import archive
from cluster.run import run

SOURCE = Path(__file__).resolve().parent / "pause" / "pause.c"
COMPILE = ("gcc", "-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror", "-Wl,--build-id=none")


@dataclass(frozen=True)
class Pause:
    """The static program and the image archive that holds it."""

    program: Path
    archive: Path
    image: str


def ensure(folder: Path) -> Pause:
    """Compile and pack into the folder where that has not been done."""
    key = hashlib.sha256(" ".join((*COMPILE, platform.machine())).encode() + SOURCE.read_bytes()).hexdigest()[:12]
    image = f"quire/pause:{key}"
    pause = Pause(folder / f"pause-{key}", folder / f"pause-{key}.tar", image)
    folder.mkdir(parents=True, exist_ok=True)
    if not pause.program.exists():
        scratch = folder / f".pause-{os.getpid()}"
        run([*COMPILE, "-o", scratch, SOURCE])
        scratch.rename(pause.program)
    if not pause.archive.exists():
        scratch = folder / f".pause-{os.getpid()}.tar"
        scratch.write_bytes(archive.pack(image, {"pause": pause.program.read_bytes()}, "/pause"))
        scratch.rename(pause.archive)
    return pause
