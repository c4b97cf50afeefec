"""Keep the disk from filling: old archives, their tags in the engine's store, and buildah's layers that no kept build used."""

import json
from dataclasses import dataclass
from pathlib import Path

from images import base
from images.engines import Buildah, Engine
from images.layout import IMAGES, REGISTRY, Layout

KEEP = 2
"""Archives per image: this one and the one before, for going back and forth between two branches."""


@dataclass(frozen=True)
class Pruned:
    """What went."""

    archives: tuple[Path, ...]
    tags: tuple[str, ...]
    layers: int


def prune(layout: Layout, engine: Engine, keep: int = KEEP) -> Pruned:
    """Drop all but the `keep` most recently used archives of each image and what belonged to them. The caller holds the lock."""
    gone: list[Path] = []
    tags: list[str] = []
    for name in IMAGES:
        archives = layout.archives(name)
        for archive in archives[keep:]:
            archive.unlink()
            gone.append(archive)
        kept = {archive.stem.removeprefix(f"{name}-") for archive in archives[:keep]}
        for record in layout.records.glob(f"{name}-dev-*.json"):
            if record.stem.removeprefix(f"{name}-") not in kept:
                record.unlink()
        repository = f"{REGISTRY}/quire/{name}"
        for tag in engine.tags(repository):
            if tag.startswith("dev-") and tag not in kept:
                engine.remove(f"{repository}:{tag}")
                tags.append(tag)
    for tarball in layout.root.glob("base-*.tar"):
        if tarball.stem != f"base-{base.identity()}":
            tarball.unlink()
            tarball.with_suffix(".json").unlink(missing_ok=True)
            gone.append(tarball)
    for tag in engine.tags(base.REPOSITORY):
        if tag != base.identity():
            engine.remove(f"{base.REPOSITORY}:{tag}")
            tags.append(tag)
    layers = engine.drop_unused(used_layers(layout)) if isinstance(engine, Buildah) else 0
    return Pruned(tuple(gone), tuple(tags), layers)


def used_layers(layout: Layout) -> tuple[str, ...]:
    """Ids, or beginnings of ids, of all images that the builds of the kept archives went through."""
    found: dict[str, None] = {}
    for record in sorted(layout.records.glob("*.json")):
        found.update(dict.fromkeys(json.loads(record.read_text())["layers"]))
    return tuple(found)
