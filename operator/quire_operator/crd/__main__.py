"""`python -m quire_operator.crd [--root DIR] [--check]`: write, or compare, the generated files of the repository."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from quire_operator.crd import manifest, reference


def outputs() -> dict[str, str]:
    """Path below the repository's root to content."""
    crd = manifest.crd_yaml()
    return {
        f"crds/{manifest.FILE_NAME}": crd,
        f"charts/quire/files/crds/{manifest.FILE_NAME}": crd,
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
