"""Where downloads and builds are kept between runs; shared by the image builds and the model fetcher."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.progress import Progress


def cache_root() -> Path:
    """`${QUIRE_CACHE_DIR:-${XDG_CACHE_HOME:-~/.cache}/quire}`."""
    own = os.environ.get("QUIRE_CACHE_DIR")
    if own:
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "quire"


@contextmanager
def exclusive(lock: Path, progress: Progress, what: str) -> Iterator[None]:
    """Hold the lock file; say so once when another process holds it. The kernel releases it when this process dies."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            progress.say(f"waiting for process {file.read().strip() or '?'}, which holds {what}")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
