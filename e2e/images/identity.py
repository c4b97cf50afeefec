"""The tag of an image: a hash of everything that goes in, so that an unchanged tree builds nothing. Pure but for reading.

What counts: the Dockerfile, .dockerignore, every file that its COPY lines take in (path, executable bit, bytes), the base
image's identity, the folders of wheels, the machine's architecture, and RECIPE below. What does not: time stamps, the
commit, the address of a package index, files of other parts of the repository.
"""

import hashlib
import platform
from collections.abc import Iterable
from pathlib import Path

from images.context import input_files

RECIPE = "1"
"""Raise it when this package builds the same input into another image."""


def content_tag(dockerfile: Path, *, base_identity: str, wheels_identity: str) -> str:
    """`dev-` and twelve hex digits."""
    context = dockerfile.parent
    files = (dockerfile, context / ".dockerignore", *input_files(dockerfile))
    digest = hashlib.sha256()
    for part in (RECIPE, platform.machine(), base_identity, wheels_identity):
        _feed(digest, part.encode())
    for path in files:
        _feed(digest, path.relative_to(context).as_posix().encode())
        _feed(digest, b"x" if path.stat().st_mode & 0o100 else b"-")
        _feed(digest, path.read_bytes())
    return f"dev-{digest.hexdigest()[:12]}"


def hash_of(parts: Iterable[str]) -> str:
    """Twelve hex digits of a sequence of strings; no two different sequences run together."""
    digest = hashlib.sha256()
    for part in parts:
        _feed(digest, part.encode())
    return digest.hexdigest()[:12]


def _feed(digest: "hashlib._Hash", part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "big"))
    digest.update(part)
