"""Packed weights on disk: what one start packs the next ones map (`--packed-cache`).

A folder of files `<key>.packed` (`packed_key`, `packed_file`). A file appears whole, by a rename, and never changes; so any number of processes may read
and write, and a crash leaves nothing but a file `*.part`, which whoever writes next removes. Writing goes on beside the start
and never stops it: what cannot be written is said once. What is removed or replaced stays where it is mapped.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.config import EngineConfig, parse_bytes
from quire.config.describe import flag_of
from quire.errors import ConfigError, ModelError
from quire.models import packed_file
from quire.models.bundled import cache_root
from quire.models.packed_file import Unusable
from quire.models.packing import Matrix
from quire.models.precision import AT_LOAD, Precision
from quire_kernels.ops import PackedWeight

LEAST_BYTES = 64 << 20
"""Of weights that are kept where nobody names a folder: less is packed in no time."""
LEFT_FREE = 0.10
"""Of a volume: with less a kubelet begins to evict pods."""
_WHOLE, _PART = ".packed", ".part"
_STALE_S = 60.0
"""Age of a part whose writer may be looked for: a new one has no lock yet."""

_log = logging.getLogger(__name__)


def cache_of(config: EngineConfig) -> PackedCache | None:
    """The cache that a configuration asks for; raises ConfigError where it names a folder that cannot be one."""
    if config.packed_cache == "none":
        return None
    most = parse_bytes(config.packed_cache_size, flag="--packed-cache-size")
    try:
        if config.packed_cache != "auto":
            return PackedCache(Path(config.packed_cache).expanduser(), most, left_free=LEFT_FREE)
        return PackedCache(cache_root() / "packed", most, least_bytes=LEAST_BYTES, left_free=LEFT_FREE)
    except RuntimeError as exc:  # nobody's home is known
        if config.packed_cache != "auto":
            raise ConfigError(f"--packed-cache {config.packed_cache}: {exc} Write the folder out") from exc
        _log.info("packed weights are not kept: %s", exc)
        return None


class PackedCache:
    """most_bytes: of all that is kept in the folder. least_bytes: of weights that are kept. left_free: share of the volume that stays free."""

    def __init__(self, folder: Path, most_bytes: int, *, least_bytes: int = 0, left_free: float = 0.0) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        self._least_bytes = least_bytes
        self._left_free = left_free
        self._writing: list[threading.Thread] = []

    def is_for(self, precision: Precision, num_bytes: int) -> bool:
        """Whether to look here for so many bytes of weights. Not for those that are held as the files have them: they are read and laid
        out anew in little more time than it takes to read them from here, and need no second copy on disk."""
        return precision.quantization in AT_LOAD.values() and num_bytes >= self._least_bytes

    def entry(self, key: Callable[[], str], matrices: Sequence[Matrix]) -> Entry | None:
        """The place of such weights; None where no key can be made."""
        try:
            return Entry(self, key(), key, matrices)
        except (OSError, ModelError) as exc:
            _log.warning("packed weights are not kept: the model's files cannot be looked at (%s)", exc)
            return None

    def wait(self) -> None:
        """Until all that was left to be kept is written, or said not to be."""
        for thread in self._writing:
            thread.join()

    def path_of(self, key: str) -> Path:
        return self.folder / f"{key}{_WHOLE}"

    def begin(self, write: Callable[[], None]) -> None:
        """Write, beside what the caller goes on to do. The process does not end before. Raises RuntimeError where no thread can be had."""
        self._writing = [thread for thread in self._writing if thread.is_alive()]
        thread = threading.Thread(target=write, name="packed-cache")
        thread.start()
        self._writing.append(thread)

    def make_room(self, key: str, num_bytes: int) -> None:
        """Raises OSError where there is none for a file of so many bytes. Removes those that were used the longest ago, and what crashes left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if num_bytes > self._most_bytes:
            raise OSError(
                f"they have {_mib(num_bytes)}, and --packed-cache-size allows {_mib(self._most_bytes)}; raise it"
            )
        _remove_parts(self.folder)
        files: list[Used] = []
        for path in self.folder.glob(f"*{_WHOLE}"):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                files.append(Used(path.name, stat.st_size, stat.st_mtime_ns))
        others = {file.name: file for file in files if file.name != self.path_of(key).name}
        names = surplus(list(others.values()), self._most_bytes - num_bytes)
        self._check_volume(
            num_bytes, sum(others[name].num_bytes for name in names)
        )  # nothing goes for what is not kept then
        for name in names:
            _log.info("packed weights: %s makes room", self.folder / name)
            (self.folder / name).unlink(missing_ok=True)
        self._check_volume(num_bytes)  # what is mapped still takes its room

    def _check_volume(self, num_bytes: int, freed: int = 0) -> None:
        """Raises OSError where too little of the volume would stay free. freed: bytes of files that are still to go."""
        volume = shutil.disk_usage(self.folder)
        free = volume.free + freed
        if free - num_bytes < self._left_free * volume.total:
            raise OSError(
                f"they have {_mib(num_bytes)}, of the {_mib(free)} that are free {self._left_free:.0%} of the volume stay so"
            )


@dataclass(frozen=True)
class Used:
    """A file of the folder, and when it was used last."""

    name: str
    num_bytes: int
    used_ns: int


def surplus(files: Sequence[Used], most_bytes: int) -> list[str]:
    """Those to remove so that the others have at most so many bytes: the longest unused first."""
    total, names = sum(file.num_bytes for file in files), []
    for file in sorted(files, key=lambda file: (file.used_ns, file.name)):
        if total <= most_bytes:
            break
        names.append(file.name)
        total -= file.num_bytes
    return names


@dataclass(frozen=True)
class Entry:
    """Weights of one key, there or not. again: makes the key anew, of the files as they are then."""

    cache: PackedCache
    key: str
    again: Callable[[], str]
    matrices: Sequence[Matrix]

    def load(self) -> dict[str, PackedWeight] | None:
        """By name, mapped; None where there are none, or not what they should be."""
        path = self.cache.path_of(self.key)
        try:
            weights = packed_file.map_file(path, self.key, self.matrices)
        except FileNotFoundError:
            return None
        except OSError as exc:
            _log.warning("packed weights: %s cannot be read (%s); packing again", path, exc.strerror or exc)
            return None
        except Unusable as exc:
            _log.warning("packed weights: %s is of no use, for %s; packing again", path, exc)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used last now
        _log.info("packed weights: %s mapped from %s", _mib(sum(each.nbytes for each in weights.values())), path)
        return weights

    def keep(self, packed: Mapping[str, PackedWeight]) -> None:
        """Write them for later starts, beside what goes on."""
        try:
            self.cache.begin(lambda: self._keep(packed))
        except RuntimeError as exc:
            self._say_not_kept(exc)

    def _keep(self, packed: Mapping[str, PackedWeight]) -> None:
        path = self.cache.path_of(self.key)
        try:
            size = sum(each.nbytes for each in packed.values())
            self.cache.make_room(self.key, size)
            if _is_written(self.cache.folder, self.key):
                return
            self._write(path, packed)
        except (OSError, ModelError) as exc:
            self._say_not_kept(exc)

    def _say_not_kept(self, exc: Exception) -> None:
        _log.warning(
            "packed weights are not kept in %s: %s. Each start packs them again; %s names another folder, or none",
            self.cache.folder,
            getattr(exc, "strerror", None) or exc,
            flag_of("packed_cache"),
        )

    def _write(self, path: Path, packed: Mapping[str, PackedWeight]) -> None:
        descriptor, name = tempfile.mkstemp(prefix=f"{self.key}.", suffix=_PART, dir=self.cache.folder)
        part = Path(name)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                with contextlib.suppress(OSError):  # a file system without locks: parts are removed by age alone
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for piece in packed_file.contents(self.key, self.matrices, packed):
                    while len(piece):
                        piece = piece[file.write(piece) :]
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())  # else a machine that crashes may keep the name, and not the numbers
                if self.again() != self.key:
                    raise OSError("the model's files changed while they were read")
                part.replace(path)
            _log.info("packed weights: %s kept in %s", _mib(path.stat().st_size), path)
        finally:
            part.unlink(missing_ok=True)


def _is_written(folder: Path, key: str) -> bool:
    """Whether another process is at it."""
    return any(_is_locked(part) for part in folder.glob(f"{key}.*{_PART}"))


def _is_locked(part: Path) -> bool:
    try:
        with part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: who looks is not taken for who writes
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _remove_parts(folder: Path) -> None:
    """Those whose writers are gone."""
    for part in folder.glob(f"*{_PART}"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > _STALE_S and not _is_locked(part):
                part.unlink()


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.0f} MiB"
