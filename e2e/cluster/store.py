"""Container images of the cluster: one seed store, and node stores that are hard links to it.

An archive is imported and unpacked once, into the seed, by a containerd that runs only for that. A node gets the same
blobs and layer folders as hard links, before it starts (`populate`) or while it runs (`link`): a runtime image of
gigabytes is on the disk once and reaches a node in seconds. Lower layers of an overlay are never written, so sharing is safe.
Node stores are parked when a cluster ends and brought up to date with the seed when the next one starts.

Two file formats of containerd's local stores are relied on: `blobs/sha256/DIGEST`, and `snapshots/ID/fs`, whose IDs come from
each store's own database. Hence the maps layer -> ID in `seed.json` and in each node store's `layers.json`.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cluster import archive, configs, wait
from cluster.archive import Archive
from cluster.errors import CommandError, DeadlineError, UsageError
from cluster.layout import Layout
from cluster.processes import DAEMON_ENV
from cluster.progress import Progress
from cluster.run import run

CONTENT = "io.containerd.content.v1.content"
BLOBS = f"{CONTENT}/blobs/sha256"
SNAPSHOTS = "io.containerd.snapshotter.v1.overlayfs"
DATABASES = (f"{SNAPSHOTS}/metadata.db", "io.containerd.metadata.v1.bolt/meta.db")
KEEP = 2
"""Images kept per repository: the newest and the one before it, so that a rollback finds its image."""
IMPORT_DEADLINE_S = 900.0
ANSWER_DEADLINE_S = 10.0
PROBE = "quire-probe"


@dataclass
class SeedImage:
    """One image of the seed."""

    identity: str
    digest: str
    media_type: str
    layers: list[str]
    """Chain IDs, bottom first: the names of the unpacked layers."""
    blobs: list[str]
    """Digests (hex) of manifest, configuration and layers; the manifest first, then the configuration."""
    loaded: float
    """When it was last asked for, in seconds since the epoch; pruning goes by it."""
    indexes: list[str] = field(default_factory=list)
    """Digests (hex) of the indexes above the manifest, outermost first: what some builders give an image's name to."""

    @property
    def targets(self) -> set[str]:
        """Digests that a node's record of this image may name: a linked image has the manifest, a copied record the index."""
        return {self.digest, *(f"sha256:{index}" for index in self.indexes)}


@dataclass
class Seed:
    """Index of the seed store."""

    images: dict[str, SeedImage] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    """Chain ID -> number of its folder in the seed's snapshot store."""

    def save(self, path: Path) -> None:
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(asdict(self), indent=1))
        scratch.rename(path)

    def put(self, ref: str, image: SeedImage, folders: Mapping[str, str]) -> None:
        """Take an image in, perhaps in place of another of its name. `folders` names those of its layers."""
        self.images[ref] = image
        self.folders |= folders
        self.trim()

    def forget(self, ref: str) -> None:
        """Drop an image, and the layers that no other image has."""
        del self.images[ref]
        self.trim()

    def trim(self) -> None:
        """Drop the layers of no image."""
        # containerd collects a layer without an image some time after the image went; its folder must not be linked then.
        used = {layer for image in self.images.values() for layer in image.layers}
        self.folders = {layer: folder for layer, folder in self.folders.items() if layer in used}


def read_seed(layout: Layout) -> Seed:
    """The seed's index; an empty one where there is no seed."""
    path = layout.seed / "seed.json"
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return Seed()
    seed = Seed({ref: SeedImage(**image) for ref, image in document["images"].items()}, document["folders"])
    seed.trim()
    return seed


class Ctr:
    """containerd's command line at one socket, in the namespace that the kubelet uses."""

    def __init__(self, socket: Path) -> None:
        self._prefix = ["ctr", "--connect-timeout", "2s", "--address", str(socket), "--namespace", "k8s.io"]

    def __call__(self, *arguments: str | Path, deadline_s: float = 60.0, input_file: Path | None = None) -> str:
        return run([*self._prefix, *arguments], deadline_s=deadline_s, env=DAEMON_ENV, input_file=input_file)

    def answers(self) -> str | None:
        """None when the daemon answers."""
        try:
            self("version", deadline_s=ANSWER_DEADLINE_S)
        except (CommandError, DeadlineError) as error:
            return str(error)
        return None

    def images(self) -> dict[str, str]:
        """Reference -> manifest digest."""
        rows = [line.split() for line in self("images", "list").splitlines()[1:]]
        return {row[0]: row[2] for row in rows}

    def layers(self) -> set[str]:
        return {line.split()[0] for line in self("snapshots", "list").splitlines()[1:]}

    def images_in_use(self) -> set[str]:
        """References of the images that containers, running or not, were made from."""
        rows = [line.split() for line in self("containers", "list").splitlines()[1:]]
        return {row[1] for row in rows if len(row) > 1}

    def upper_folder(self, *arguments: str) -> Path:
        """Make a snapshot and return the folder that holds its own files."""
        mount = json.loads(self("snapshots", *arguments))[0]
        upper = next(
            (option.removeprefix("upperdir=") for option in mount["Options"] if option.startswith("upperdir=")), None
        )
        return Path(upper or mount["Source"])


# --- decisions -------------------------------------------------------------------------------------------------------


def superseded(loaded: Mapping[str, float], protect: Iterable[str], keep: int = KEEP) -> list[str]:
    """References to drop: older ones of a repository beyond `keep`, but none that is protected. `loaded` maps reference -> time."""
    guarded = set(protect)
    by_repository: dict[str, list[str]] = {}
    for ref in sorted(loaded, key=lambda ref: (loaded[ref], ref), reverse=True):
        by_repository.setdefault(archive.repository(ref), []).append(ref)
    return sorted(ref for refs in by_repository.values() for ref in refs[keep:] if ref not in guarded)


@dataclass(frozen=True)
class Refresh:
    """How a parked store's snapshot folders become the seed's: renames first, then the rest."""

    rename: dict[str, str]
    delete: list[str]
    link: list[str]


def refresh(seed: Mapping[str, str], parked: Mapping[str, str], existing: Iterable[str]) -> Refresh:
    """Plan it. `seed` and `parked` map layer -> folder; `existing` are the folders that the parked store has."""
    present = set(existing)
    rename = {parked[layer]: folder for layer, folder in seed.items() if parked.get(layer) in present}
    reused = set(rename.values())
    return Refresh(
        rename=rename,
        delete=sorted(present - rename.keys()),
        link=sorted(folder for folder in seed.values() if folder not in reused),
    )


# --- the seed --------------------------------------------------------------------------------------------------------


def load_into_seed(layout: Layout, archives: Iterable[Archive], progress: Progress) -> Seed:
    """Import what the seed lacks, and forget superseded images. Returns the index."""
    seed, wanted = read_seed(layout), list(archives)
    fresh = [item for item in wanted if any(not _has(seed, ref, item.identity) for ref in item.refs)]
    if not fresh:
        _touch(layout, seed, wanted)
        return seed
    layout.seed.mkdir(parents=True, exist_ok=True)
    index = layout.seed / "seed.json"
    with _seed_daemon(layout) as ctr:
        for stray in ctr.images().keys() - seed.images.keys():  # of an import or a removal that was cut off
            ctr("images", "remove", "--sync", stray, deadline_s=300)
        for item in fresh:
            size = item.path.stat().st_size
            with progress.step(f"import {', '.join(item.refs)} ({size / 1e6:.0f} MB) into the seed store"):
                _import(ctr, layout, item, seed)
            seed.save(index)
        newest = {ref for item in wanted for ref in item.refs}
        for ref in superseded({ref: image.loaded for ref, image in seed.images.items()}, newest):
            progress.say(f"drop {ref} from the seed store: superseded")
            seed.forget(ref)
            seed.save(index)  # before its files go: nodes must never be given what is only half there
            ctr("images", "remove", "--sync", ref, deadline_s=300)
    _touch(layout, seed, wanted)
    return seed


def _touch(layout: Layout, seed: Seed, archives: Iterable[Archive]) -> None:
    """Note that these images were asked for now, and save the index."""
    for item in archives:
        for ref in item.refs:
            seed.images[ref].loaded = time.time()
    seed.save(layout.seed / "seed.json")


def _has(seed: Seed, ref: str, identity: str) -> bool:
    return ref in seed.images and seed.images[ref].identity == identity


def _import(ctr: Ctr, layout: Layout, item: Archive, seed: Seed) -> None:
    before = set(ctr.images())
    ctr("images", "import", item.path, deadline_s=IMPORT_DEADLINE_S)
    for name, digest in ctr.images().items():
        full = archive.full_ref(name)
        if full in item.refs and name != full:  # imported under the short name that the archive gives
            ctr("images", "tag", "--force", name, full)
            ctr("images", "remove", name)
        if full in item.refs:
            seed.put(full, *_describe(ctr, layout, item, digest))
    lost = [ref for ref in item.refs if ref not in seed.images]
    if lost:
        found = sorted(set(ctr.images()) - before)
        raise UsageError(f"{item.path}: containerd imported {found or 'nothing'}, not {', '.join(lost)}")


def _describe(ctr: Ctr, layout: Layout, item: Archive, digest: str) -> tuple[SeedImage, dict[str, str]]:
    """What was imported, and the folders of its layers."""
    blobs = layout.seed / "store" / BLOBS
    manifest = json.loads((blobs / digest.removeprefix("sha256:")).read_bytes())
    indexes: list[str] = []
    while "manifests" in manifest:
        indexes.append(digest.removeprefix("sha256:"))
        digest = archive.own_manifest(manifest, item.path)
        manifest = json.loads((blobs / digest.removeprefix("sha256:")).read_bytes())
    config = json.loads((blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_bytes())
    layers = archive.chain_ids(config["rootfs"]["diff_ids"])
    folders = dict(zip(layers, _folders(ctr, layers[-1]), strict=True))
    digests = [digest, manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])]
    unique = list(dict.fromkeys(entry.removeprefix("sha256:") for entry in digests))
    media_type = manifest.get("mediaType") or archive.OCI_MANIFEST
    return SeedImage(item.identity, digest, media_type, layers, unique, time.time(), indexes), folders


def _folders(ctr: Ctr, top: str) -> list[str]:
    """Numbers of the snapshot folders below and including a layer, bottom first, from the mount of a snapshot on top of it."""
    # `prepare`, not `view`: ctr labels only the former against garbage collection, which may run at any moment.
    if PROBE in ctr.layers():  # left by an import that was killed
        ctr("snapshots", "remove", PROBE)
    mount = json.loads(ctr("snapshots", "prepare", "--mounts", PROBE, top))[0]
    ctr("snapshots", "remove", PROBE)
    lower = next(option.removeprefix("lowerdir=") for option in mount["Options"] if option.startswith("lowerdir="))
    return [Path(path).parent.name for path in reversed(lower.split(":"))]


@contextmanager
def _seed_daemon(layout: Layout) -> Iterator[Ctr]:
    """A containerd on the host that serves the seed while the block runs, and dies with this process."""
    shutil.rmtree(layout.seed / "state", ignore_errors=True)
    config = layout.seed / "containerd.toml"
    config.write_text(configs.seed_containerd(layout))
    log = layout.log("seed", "containerd")
    ctr = Ctr(layout.seed / "c.sock")
    command = ["setpriv", "--pdeathsig", "KILL", "containerd", "-c", str(config)]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=DAEMON_ENV, start_new_session=True
        )
    try:
        wait.until("start of the seed store's containerd", ctr.answers, deadline_s=30, log=log)
        yield ctr
    finally:
        daemon.terminate()  # it closes its databases
        try:
            daemon.wait(30)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


# --- node stores -----------------------------------------------------------------------------------------------------


def _read_layers(store: Path) -> dict[str, str] | None:
    """Layer -> folder of a node's store; None where the store is not in a known state."""
    try:
        layers: dict[str, str] = json.loads((store / "layers.json").read_text())
    except FileNotFoundError:
        return None
    return layers


def _write_layers(store: Path, layers: Mapping[str, str]) -> None:
    scratch = store / "layers.tmp"
    scratch.write_text(json.dumps(layers, indent=1))
    scratch.rename(store / "layers.json")


def _copy_linked(source: Path, target: Path) -> None:
    """Copy what is in a folder: directories anew with all attributes, files as hard links."""
    run(["cp", "-al", f"{source}/.", f"{target}/"], deadline_s=300)


def populate(layout: Layout, node: str) -> None:
    """Give a node that does not run yet the seed's images: from its parked store where there is one."""
    store, parked, seed = layout.store(node), layout.parked / node, read_seed(layout)
    if parked.exists():
        if _read_layers(parked) is None:  # an earlier refresh was cut off
            shutil.rmtree(parked)
        else:
            parked.rename(store)
    layers = _read_layers(store) or {}
    (store / "layers.json").unlink(missing_ok=True)  # until this is done, the store is in no known state
    snapshots, blobs = store / SNAPSHOTS / "snapshots", store / BLOBS
    for folder in (snapshots, blobs, store / "io.containerd.metadata.v1.bolt"):
        folder.mkdir(parents=True, exist_ok=True)
    for stale in (*store.iterdir(), *(store / CONTENT).iterdir()):
        if stale.name not in (CONTENT, SNAPSHOTS, "io.containerd.metadata.v1.bolt", "blobs"):
            shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
    _refresh_snapshots(
        snapshots, layout.seed / "store" / SNAPSHOTS / "snapshots", refresh(seed.folders, layers, os.listdir(snapshots))
    )
    wanted = {blob for image in seed.images.values() for blob in (*image.blobs, *image.indexes)}
    here = set(os.listdir(blobs))
    for blob in here - wanted:
        (blobs / blob).unlink()
    for blob in wanted - here:
        os.link(layout.seed / "store" / BLOBS / blob, blobs / blob)
    for database in DATABASES:
        if (layout.seed / "store" / database).exists():
            shutil.copy2(layout.seed / "store" / database, store / database)
    _write_layers(store, seed.folders)


def _refresh_snapshots(folder: Path, seed: Path, plan: Refresh) -> None:
    moved = {old: new for old, new in plan.rename.items() if old != new}
    for old, new in moved.items():
        (folder / old).rename(folder / f".{new}")
    for name in plan.delete:
        shutil.rmtree(folder / name)
    for new in moved.values():
        (folder / f".{new}").rename(folder / new)
    for name in plan.link:
        (folder / name).mkdir()
        _copy_linked(seed / name, folder / name)


def park(layout: Layout, node: str) -> None:
    """Keep a dead node's store for the next cluster; an unknown one is deleted."""
    store, parked = layout.store(node), layout.parked / node
    if _read_layers(store) is None:
        return
    if parked.exists():
        shutil.rmtree(parked)
    parked.parent.mkdir(parents=True, exist_ok=True)
    store.rename(parked)


def drop_parked(layout: Layout, keep: Iterable[str]) -> None:
    """Delete the stores of nodes that the next cluster does not have: they would hold on to images that the seed gave up."""
    names = set(os.listdir(layout.parked)) if layout.parked.exists() else set()
    for name in names.difference(keep):
        shutil.rmtree(layout.parked / name)


def link(layout: Layout, node: str, ref: str, seed: Seed) -> bool:
    """Give a running node one image of the seed. Returns False where it has it already."""
    image, ctr, store = seed.images[ref], Ctr(layout.containerd_socket(node)), layout.store(node)
    if ctr.images().get(ref) in image.targets:
        return False
    layers, have = _read_layers(store) or {}, ctr.layers()
    for stale in (name for name in have if name.startswith(PROBE)):
        ctr("snapshots", "remove", stale)
    fresh = [layer for layer in image.layers if layer not in have]
    for index, layer in enumerate(image.layers):
        if layer in fresh:
            upper = ctr.upper_folder("prepare", "--mounts", PROBE, *image.layers[max(0, index - 1) : index])
            _copy_linked(layout.seed / "store" / SNAPSHOTS / "snapshots" / seed.folders[layer] / "fs", upper)
            ctr("snapshots", "commit", layer, PROBE)
            layers[layer] = upper.parent.name
    _write_layers(store, layers)
    _import_pointer(layout, node, ctr, image, ref)
    for layer in fresh:  # the image holds them now; ctr's own label would hold them for ever
        ctr("snapshots", "label", layer, "containerd.io/gc.root=")
    return True


def _import_pointer(layout: Layout, node: str, ctr: Ctr, image: SeedImage, ref: str) -> None:
    """Register the image: an archive of manifest and configuration only, since containerd finds the layers unpacked."""
    blobs = layout.seed / "store" / BLOBS
    name = f"quire.invalid/pointer:{image.digest.removeprefix('sha256:')[:12]}"
    small = {blob: (blobs / blob).read_bytes() for blob in image.blobs[:2]}
    pointer = layout.machine(node) / "pointer.tar"
    pointer.write_bytes(archive.pointer(name, image.blobs[0], image.media_type, small))
    ctr("images", "import", pointer)
    known = set(ctr("content", "list", "--quiet").split())
    for blob in image.blobs:
        if f"sha256:{blob}" in known:
            continue
        target = layout.store(node) / BLOBS / blob
        if not target.exists():
            os.link(blobs / blob, target)
        size = str(target.stat().st_size)
        # The store finds the blob in place and takes it over; reading it again is not needed, only possible.
        ctr(
            "content",
            "ingest",
            "--expected-digest",
            f"sha256:{blob}",
            "--expected-size",
            size,
            f"quire-{blob}",
            input_file=target,
        )
    ctr("images", "tag", "--force", name, ref)
    ctr("images", "remove", name)
    pointer.unlink()


def prune(layout: Layout, node: str, seed: Seed) -> list[str]:
    """Remove images of a running node that the seed no longer has and no container uses; returns them."""
    ctr = Ctr(layout.containerd_socket(node))
    images = ctr.images()
    wanted = {images[ref] for ref in ctr.images_in_use() if ref in images}
    wanted = wanted.union(*(image.targets for image in seed.images.values()))
    dropped = sorted(ref for ref, digest in images.items() if digest not in wanted)
    for ref in dropped:
        ctr("images", "remove", "--sync", ref, deadline_s=300)
    return dropped
