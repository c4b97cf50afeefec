"""The programs that the chosen provider needs: all of a cluster's for the local one, for others kubectl and helm.

`python -m cluster.programs` has them built. It runs before the virtual environment exists, so this module imports, directly
and indirectly, only the standard library.
"""

import shutil
import sys
from pathlib import Path

from cluster import choice, interrupt, tools
from cluster.errors import HarnessError
from cluster.progress import Progress


def ensure(provider: str, progress: Progress) -> dict[str, Path]:
    """Program name -> path, building what is not there."""
    return tools.ensure(progress) if provider == "local" else clients(progress)


def clients(progress: Progress) -> dict[str, Path]:
    """kubectl and helm: the machine's own, otherwise built from the module proxy."""
    found = {}
    for program, sources in (("kubectl", (tools.KUBERNETES, tools.KUBECTL)), ("helm", (tools.HELM,))):
        if here := shutil.which(program):
            found[program] = Path(here)
            continue
        tool = next((tool for tool in sources if tools.bin_dir(tool).is_dir()), sources[-1])
        found[program] = tools.ensure(progress, (tool,))[program]
    return found


if __name__ == "__main__":
    interrupt.install()
    try:
        ensure(choice.provider(), Progress())
    except HarnessError as error:
        sys.exit(f"cluster: error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
