"""Folders of wheels that pip finds by PIP_FIND_LINKS, made visible to a build as one read-only folder.

A CPU-only torch in such a folder makes the runtime image six times smaller. Hard links where the file system allows,
copies elsewhere; the files are never changed.
"""

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cluster.errors import UsageError
from images.identity import hash_of

_SUFFIXES = (".whl", ".tar.gz", ".zip")
_TAIL_BYTES = 4 << 20


@dataclass(frozen=True)
class FindLinks:
    """What pip's `find-links` names: distributions in local folders, and pages elsewhere."""

    files: tuple[Path, ...]
    urls: tuple[str, ...]

    @property
    def identity(self) -> str:
        """Equal for equal files wherever they lie; `none` without any."""
        return hash_of(_fingerprint(path) for path in self.files) if self.files else "none"


def parse_find_links(value: str) -> FindLinks:
    """`value` as pip takes it: folders, file: URLs and web pages, separated by white space.

    Of two files with one name the first folder's wins. A folder that does not exist is skipped, as pip does.
    """
    files: dict[str, Path] = {}
    urls = []
    for entry in value.split():
        split = urlsplit(entry)
        if split.scheme in {"http", "https"}:
            urls.append(entry)
            continue
        folder = Path(unquote(split.path) if split.scheme == "file" else entry).expanduser()
        if folder.is_file() and not folder.name.endswith(_SUFFIXES):
            raise UsageError(
                f"PIP_FIND_LINKS names the page {folder}; an image build takes folders of wheels and web pages only"
            )
        found = [folder] if folder.is_file() else sorted(folder.iterdir()) if folder.is_dir() else []
        for path in found:
            if path.is_file() and path.name.endswith(_SUFFIXES):
                files.setdefault(path.name, path)
    return FindLinks(tuple(files[name] for name in sorted(files)), tuple(urls))


def stage(find_links: FindLinks, folder: Path) -> Path:
    """Fill the new folder with the files and return it."""
    folder.mkdir(parents=True)
    for path in find_links.files:
        target = folder / path.name
        try:
            os.link(path.resolve(), target)
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(path, target)
    return folder


def _fingerprint(path: Path) -> str:
    """Name, size and a hash of the file's end, where a wheel keeps its members' names, sizes and checksums."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _TAIL_BYTES))
        return f"{path.name} {size} {hashlib.sha256(file.read()).hexdigest()}"
