"""Where the other engines live, and how commands are run there: outside the repository, in the user's cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from quire.bench import machine


class PeerError(Exception):
    """An engine cannot be installed or does not run here; the message is the reason, in one line."""


def folder(*parts: str) -> Path:
    """`$QUIRE_CACHE_DIR/peers/…`, by default in ~/.cache/quire; made."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(os.environ.get("QUIRE_CACHE_DIR") or Path(cache) / "quire", "peers", *parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


def cpu_tag() -> str:
    """A short name of this CPU's instruction sets: what was compiled for one CPU must not run on another."""
    return hashlib.sha256(" ".join(machine.cpu()[1]).encode()).hexdigest()[:8]


def run(command: Sequence[str | Path], log: Path, *, environment: Mapping[str, str] | None = None) -> None:
    """Run to the end with all output in `log`. Raises PeerError with the last line of it."""
    words = [str(word) for word in command]
    print(f"    {' '.join(words)[:160]}", file=sys.stderr, flush=True)
    with log.open("ab") as output:
        output.write(f"$ {' '.join(words)}\n".encode())
        output.flush()
        done = subprocess.run(
            words, stdout=output, stderr=subprocess.STDOUT, check=False, env={**os.environ, **(environment or {})}
        )
    if done.returncode:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise PeerError(f"{Path(words[0]).name} ended with status {done.returncode}: {lines[-1][:300]} (see {log})")


def output_of(command: Sequence[str | Path], *, environment: Mapping[str, str] | None = None) -> str:
    """Standard output of a command. Raises PeerError with the last line of what it said."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}
        )
    except OSError as exc:
        raise PeerError(f"{words[0]} does not run: {exc.strerror or exc}") from exc
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        raise PeerError(f"{Path(words[0]).name} ended with {how}: {lines[-1][:300] if lines else 'it said nothing'}")
    return done.stdout


def venv(path: Path, log: Path) -> Path:
    """A virtual environment; its Python."""
    python = path / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", path], log)
    return python
