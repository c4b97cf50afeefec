"""kubectl and helm for clusters that this harness did not build: the machine's own, otherwise built from the module proxy."""

import shutil
from pathlib import Path

from cluster import tools
from cluster.progress import Progress


def ensure(progress: Progress) -> tuple[Path, Path]:
    """Paths of kubectl and helm."""
    found = []
    for program, tool in (("kubectl", tools.KUBERNETES), ("helm", tools.HELM)):
        here = shutil.which(program)
        found.append(Path(here) if here else tools.ensure(progress, (tool,))[program])
    return found[0], found[1]
