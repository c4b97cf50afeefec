"""What is kept and what goes when the disk is tidied."""

from __future__ import annotations

import json
import os
from pathlib import Path

from images import base
from images.layout import Layout
from images.prune import prune, used_layers


class Store:
    """An engine's store of tags."""

    name = "store"
    pulls_base = False

    def __init__(self, **tags: set[str]) -> None:
        self.kept = {f"docker.io/quire/{name}": found for name, found in tags.items()}

    def tags(self, repository: str) -> tuple[str, ...]:
        return tuple(sorted(self.kept.get(repository, set())))

    def remove(self, ref: str) -> None:
        repository, _, tag = ref.rpartition(":")
        self.kept[repository].remove(tag)


def layout_with(root: Path, *archives: str) -> Layout:
    """The archives, the last one used most recently, each with a record of one layer."""
    layout = Layout(root)
    layout.records.mkdir()
    for age, name in enumerate(archives):
        (root / f"{name}.tar").touch()
        os.utime(root / f"{name}.tar", (age, age))
        (layout.records / f"{name}.json").write_text(json.dumps({"layers": [f"layer-of-{name}", "shared"]}))
    return layout


def test_the_most_recently_used_stay_with_their_tags_and_layers(tmp_path: Path) -> None:
    layout = layout_with(tmp_path, "runtime-dev-1", "runtime-dev-2", "operator-dev-9", "runtime-dev-3")
    store = Store(runtime={"dev-1", "dev-2", "dev-3", "v1.0"}, operator={"dev-9", "dev-8"})
    gone = prune(layout, store, keep=2)  # type: ignore[arg-type]  # prune asks a store for no more
    assert {path.stem for path in gone.archives} == {"runtime-dev-1"}
    assert set(gone.tags) == {"dev-1", "dev-8"}
    assert store.kept["docker.io/quire/runtime"] == {"dev-2", "dev-3", "v1.0"}  # what a person tagged is a person's
    assert set(used_layers(layout)) == {
        "shared",
        "layer-of-runtime-dev-2",
        "layer-of-runtime-dev-3",
        "layer-of-operator-dev-9",
    }


def test_keeping_none_empties_the_cache(tmp_path: Path) -> None:
    layout = layout_with(tmp_path, "runtime-dev-1", "operator-dev-9")
    prune(layout, Store(runtime={"dev-1"}), keep=0)  # type: ignore[arg-type]
    assert not list(tmp_path.glob("*.tar")) and used_layers(layout) == ()


def test_bases_of_other_recipes_go(tmp_path: Path) -> None:
    layout = layout_with(tmp_path)
    current = f"base-{base.identity()}"
    for stem in (current, "base-0123456789ab"):
        (tmp_path / f"{stem}.tar").touch()
        (tmp_path / f"{stem}.json").touch()
    store = Store()
    store.kept[base.REPOSITORY] = {base.identity(), "0123456789ab"}
    prune(layout, store)  # type: ignore[arg-type]
    assert {path.name for path in tmp_path.glob("base-*")} == {f"{current}.tar", f"{current}.json"}
    assert store.kept[base.REPOSITORY] == {base.identity()}
