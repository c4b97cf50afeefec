"""Environments of other people's clients: each a folder of its own in the user's cache, made once and named by the content of its requirements.

`python tests/support/client_environments.py` makes all of them beforehand.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CLIENTS = Path(__file__).resolve().parents[1] / "clients"
REQUIREMENTS = CLIENTS / "requirements"
JAVASCRIPT = CLIENTS / "javascript"
LOCK = "package-lock.json"


class CannotInstallError(Exception):
    """The message says why, in the installer's words."""


def python_of(name: str) -> Path:
    """The Python of an environment with `requirements/NAME.txt`; made if there is none. Raises CannotInstallError."""
    requirements = REQUIREMENTS / f"{name}.txt"
    # the interpreter's own path: an environment points at it
    key = _digest(requirements.read_bytes(), sys.version.encode(), os.path.realpath(sys.executable).encode())
    with _made(name, key) as (folder, log):
        if not log.done:
            log.run([sys.executable, "-m", "venv", folder / "venv"])
            pip = [folder / "venv" / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
            log.run([*pip, "install", "--no-compile", "--requirement", requirements])
        return folder / "venv" / "bin" / "python"


def node_of() -> tuple[Path, Path]:
    """node, and the folder whose `node_modules` holds the packages of `javascript/package-lock.json`. Raises CannotInstallError."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise CannotInstallError("there is no node and npm: install nodejs and npm (Debian's packages are called so)")
    files = [JAVASCRIPT / "package.json", JAVASCRIPT / LOCK]
    with _made("javascript", _digest(*(file.read_bytes() for file in files))) as (folder, log):
        if not log.done:
            for file in files:
                shutil.copy(file, folder)
            log.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder])
        return Path(node), folder


class _Log:
    """What an installer says. done: it has been here before."""

    def __init__(self, file: Path, *, done: bool) -> None:
        self.done = done
        self._file = file

    def run(self, command: Sequence[str | Path]) -> None:
        words = [str(word) for word in command]
        with self._file.open("ab") as output:
            ended = subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, check=False, env=environment())
        if ended.returncode:
            last = self._file.read_text(errors="replace").strip().splitlines()[-1:] or [""]
            raise CannotInstallError(
                f"{' '.join(words[:5])} ... ended with status {ended.returncode}: {last[0][:300]} ({self._file})"
            )


def environment() -> dict[str, str]:
    """Variables of installers and clients: nothing of this interpreter's, nothing that asks a network while it is used."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "VIRTUAL_ENV", "OPENAI_", "ANTHROPIC_"))
    }
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",  # theirs are not ours to mend
    }


@contextmanager
def _made(name: str, key: str) -> Iterator[tuple[Path, _Log]]:
    """The folder of an environment, locked while it is looked at or made; older ones of that name are thrown away when a new one is done."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(os.environ.get("QUIRE_CACHE_DIR") or cache / "quire") / "clients"
    home.mkdir(parents=True, exist_ok=True)
    folder = home / f"{name}-{key}"
    with (home / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = folder / "installed"
        done = mark.exists()
        if not done:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        yield folder, _Log(folder / "install.log", done=done)
        if not done:
            mark.touch()
            for other in home.glob(f"{name}-*"):
                if other != folder and other.name.rpartition("-")[0] == name:
                    shutil.rmtree(other, ignore_errors=True)


def _digest(*parts: bytes) -> str:
    joined = b"\0".join([*parts, sysconfig.get_platform().encode()])
    return hashlib.sha256(joined).hexdigest()[:12]


def main() -> int:
    """Make all of them; the exit status."""
    names = sorted(file.stem for file in REQUIREMENTS.glob("*.txt"))
    status = 0
    for name, make in [*((name, lambda name=name: python_of(name)) for name in names), ("javascript", node_of)]:
        began_s = time.monotonic()
        try:
            make()
        except CannotInstallError as exc:
            print(f"    {name}: {exc}", file=sys.stderr)
            status = 1
        else:
            print(f"    {name}: {time.monotonic() - began_s:.1f} s")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
