"""`python -m images build runtime operator [--json]`, `base`, `prune`, `size`. Results go to stdout, progress to stderr."""

import argparse
import json
import sys
from collections.abc import Sequence

from cluster import interrupt
from cluster.caches import exclusive
from cluster.errors import HarnessError
from cluster.progress import Progress
from images import base as debian
from images.build import Wanted, build
from images.contents import read
from images.engines import choose
from images.host import host_pip
from images.layout import IMAGES, Layout
from images.prune import KEEP, prune


def parser() -> argparse.ArgumentParser:
    """The command line."""
    default = Wanted.of_environment()
    top = argparse.ArgumentParser(
        prog="python -m images", description="Build Quire's container images, once per content."
    )
    top.add_argument(
        "--engine",
        metavar="NAME",
        default=default.engine,
        help="docker, podman or buildah (default: $QUIRE_IMAGE_ENGINE, else the first that works here)",
    )
    commands = top.add_subparsers(dest="command", required=True)
    make = commands.add_parser("build", help="build images whose content has changed; print references and archives")
    make.add_argument("names", nargs="+", choices=IMAGES, metavar="IMAGE", help=" or ".join(IMAGES))
    make.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    make.add_argument(
        "--base",
        metavar="IMAGE",
        default=default.base,
        help="build on this image, or on one by `debootstrap` (default: $QUIRE_IMAGE_BASE, else a public Debian where it can be pulled)",
    )
    make.add_argument("--fresh", action="store_true", help="build even if nothing changed, with the newest packages")
    commands.add_parser("base", help="make the Debian base by debootstrap; print its path")
    away = commands.add_parser(
        "prune", help=f"delete all but the {KEEP} most recently used archives of each image, and unused layers"
    )
    away.add_argument("--keep", type=int, default=KEEP, metavar="N", help=f"how many to keep (default {KEEP})")
    commands.add_parser("size", help="sizes of the archives there are, layer by layer")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0, or 1 with one sentence on stderr."""
    options = parser().parse_args(arguments)
    progress = Progress()
    layout = Layout.of_user()
    try:
        match options.command:
            case "build":
                _build(options, progress)
            case "base":
                with exclusive(layout.lock, progress, "the image builds"):
                    print(debian.ensure_base(layout, host_pip(), progress).tarball)
            case "prune":
                _prune(layout, options, progress)
            case _:
                _size(layout)
    except HarnessError as error:
        print(f"images: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("images: interrupted", file=sys.stderr)
        return 130
    return 0


def _build(options: argparse.Namespace, progress: Progress) -> None:
    built = build(list(dict.fromkeys(options.names)), Wanted(options.engine, options.base, options.fresh), progress)
    if options.json:
        print(json.dumps({image.name: {"ref": image.ref, "archive": str(image.archive)} for image in built}))
    else:
        for image in built:
            print(f"{image.ref}  {image.archive}")


def _prune(layout: Layout, options: argparse.Namespace, progress: Progress) -> None:
    if options.keep < 0:
        raise SystemExit(f"images: error: --keep {options.keep} is below 0; give the number of archives to keep")
    layout.records.mkdir(parents=True, exist_ok=True)
    with exclusive(layout.lock, progress, "the image builds"):
        gone = prune(layout, choose(layout, options.engine, lambda: None), options.keep)
    print(f"removed {len(gone.archives)} archives, {len(gone.tags)} tags, {gone.layers} layers")


def shorten(step: str) -> str:
    """An instruction of an image's history, without its mounts, in one line."""
    return " ".join(word for word in step.split() if not word.startswith("--mount="))[:110]


def _size(layout: Layout) -> None:
    for name in IMAGES:
        for archive in layout.archives(name):
            contents = read(archive)
            print(
                f"{archive.stem}: {contents.unpacked_bytes / 1e6:.0f} MB unpacked, {archive.stat().st_size / 1e6:.0f} MB archive"
            )
            steps = [step for step in contents.config["history"] if not step.get("empty_layer")]
            for size, step in zip(contents.layer_bytes, steps, strict=True):
                print(f"  {size / 1e6:8.1f} MB  {shorten(step.get('created_by', ''))}")


if __name__ == "__main__":
    interrupt.install()
    sys.exit(main())
