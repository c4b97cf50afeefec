"""Image archives, OCI and Docker layout: what is in one, and how to pack a program into a new one. Reads only headers and manifests.

Pure but for reading the archive. The harness writes Docker archives, because every engine loads them.
"""

import hashlib
import io
import json
import platform
import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import UsageError

DEFAULT_REGISTRY = "docker.io"
"""What containerd and the kubelet put before a name without a registry; nothing is ever fetched from there."""

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"

_REF_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_TAG = re.compile(r"[\w][\w.-]{0,127}")


@dataclass(frozen=True)
class Archive:
    """An image archive and the images in it."""

    path: Path
    refs: tuple[str, ...]
    """Full references, as containerd stores them."""
    identity: str
    """Hash of the manifest: two archives with the same identity hold the same images."""


def full_ref(name: str) -> str:
    """The reference as the kubelet resolves it: registry, repository, tag. `quire/runtime:1` -> `docker.io/quire/runtime:1`."""
    first, _, rest = name.partition("/")
    if not rest:
        name = f"{DEFAULT_REGISTRY}/library/{name}"
    elif "." not in first and ":" not in first and first != "localhost":
        name = f"{DEFAULT_REGISTRY}/{name}"
    return name if ":" in name.rsplit("/", 1)[1] or "@" in name else f"{name}:latest"


def repository(ref: str) -> str:
    """The reference without its tag."""
    return ref.rpartition(":")[0]


def read(path: Path) -> Archive:
    """What the archive holds. Raises UsageError where it is not an image archive or its images have no names."""
    try:
        with tarfile.open(path) as tar:
            raw = _member(tar, "index.json") or _member(tar, "manifest.json")
        names = manifest_names(raw) if raw is not None else ()
    except FileNotFoundError as error:
        raise UsageError(f"image archive {path} does not exist") from error
    except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"image archive {path} cannot be read: {error}; build it again") from error
    if raw is None:
        raise UsageError(
            f"{path} is not an image archive: it holds neither index.json (oci-archive) nor manifest.json (docker-archive)"
        )
    if not names:
        raise UsageError(
            f"image archive {path} holds no image with a name and a tag; build it with one, such as quire/runtime:dev-1"
        )
    return Archive(path.absolute(), tuple(full_ref(name) for name in names), hashlib.sha256(raw).hexdigest())


def manifest_names(raw: bytes) -> tuple[str, ...]:
    """Image names in an `index.json` or a Docker `manifest.json`."""
    document = json.loads(raw)
    if isinstance(document, list):
        return tuple(name for entry in document for name in entry.get("RepoTags") or ())
    found = []
    for manifest in document.get("manifests", ()):
        annotations = manifest.get("annotations") or {}
        name = next((annotations[key] for key in _REF_NAMES if annotations.get(key)), "")
        if name and not _TAG.fullmatch(name):  # a bare tag does not say which image it is
            found.append(name)
    return tuple(found)


def own_manifest(index: dict[str, Any], path: Path) -> str:
    """Digest of what an index has for this machine. Raises UsageError where it has nothing."""
    offered = [entry.get("platform", {}).get("architecture", architecture()) for entry in index["manifests"]]
    if architecture() not in offered:
        raise UsageError(f"image archive {path} is for {', '.join(offered)}; this machine needs {architecture()}")
    digest: str = index["manifests"][offered.index(architecture())]["digest"]
    return digest


def _member(tar: tarfile.TarFile, name: str) -> bytes | None:
    for candidate in (name, f"./{name}"):
        try:
            file = tar.extractfile(candidate)
        except KeyError:
            continue
        return file.read() if file else None
    return None


def architecture() -> str:
    """This machine's architecture in the words of image manifests."""
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def pack(name: str, files: dict[str, bytes], entrypoint: str) -> bytes:
    """A Docker archive with one layer of executable files and a numeric non-root user. Equal input gives equal bytes."""
    layer = _tar(files, mode=0o755)
    config = {
        "architecture": architecture(),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {"Entrypoint": [entrypoint], "User": "65535:65535", "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "quire e2e/cluster"}],
    }
    config_bytes = json.dumps(config, sort_keys=True).encode()
    config_name = f"{hashlib.sha256(config_bytes).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]
    return _tar(
        {config_name: config_bytes, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}, mode=0o644
    )


def chain_ids(diff_ids: list[str]) -> list[str]:
    """Names of the unpacked layers, bottom first: each hashes the one below and its own content (OCI image specification)."""
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(f"sha256:{hashlib.sha256(f'{chain[-1]} {diff_id}'.encode()).hexdigest()}" if chain else diff_id)
    return chain


def pointer(name: str, manifest: str, media_type: str, blobs: dict[str, bytes]) -> bytes:
    """An OCI archive that names an image and holds only the given blobs, by digest in hex; `manifest` is one of them."""
    entry = {
        "mediaType": media_type,
        "digest": f"sha256:{manifest}",
        "size": len(blobs[manifest]),
        "annotations": {"io.containerd.image.name": name},
    }
    files = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(),
    }
    return _tar(files | {f"blobs/sha256/{digest}": content for digest, content in blobs.items()}, mode=0o644)


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
