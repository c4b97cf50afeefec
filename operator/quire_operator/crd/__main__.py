"""`python -m quire_operator.crd [--root DIR] [--check]`: write, or compare, the generated files of the repository."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from quire_operator.crd import manifest, reference
from quire_operator.crd.kinds import KINDS


def outputs() -> dict[str, str]:
    """Path below the repository's root to content."""
    crds = {manifest.file_name(kind): manifest.crd_yaml(kind) for kind in KINDS}
    return {
        **{f"{folder}/{name}": text for folder in ("crds", "charts/quire/files/crds") for name, text in crds.items()},
        f"docs/{reference.FILE_NAME}": reference.reference(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m quire_operator.crd", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="root of the repository; default: here")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file is stale")
    args = parser.parse_args()
    stale = [
        path
        for path, text in outputs().items()
        if not (args.root / path).is_file() or (args.root / path).read_text() != text
    ]
    if args.check:
        for path in stale:
            print(f"{path} is stale: run `make manifests`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        target = args.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(outputs()[path])
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
