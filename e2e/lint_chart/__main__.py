"""`python -m lint_chart [--write]`. --write: make the chart's README anew; nothing else."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from client_environments import CannotInstallError
from cluster.errors import HarnessError
from cluster.progress import Progress
from lint_chart.findings import judged
from lint_chart.scanners import PODS, README, Scanners, accepted


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    progress = Progress()
    scanners = Scanners(progress)
    if arguments:
        README.write_text(scanners.readme())
        return 0
    wrong: list[str] = []
    with progress.step("helm lint, helm-unittest and helm-docs"):
        scanners.helm_lint()
        scanners.unit_tests()
        if README.read_text() != scanners.readme():
            wrong.append("the chart's README.md is stale: run `make lint-chart ARGS=--write`")
    with progress.step("checkov and trivy: the chart"), tempfile.TemporaryDirectory() as folder:
        found = scanners.looked_at("chart", scanners.rendered(Path(folder)))
    with progress.step("checkov and trivy: pods of models"):
        found += scanners.looked_at("pods", PODS)
    with progress.step("hadolint, checkov and trivy: Dockerfiles"):
        found += scanners.dockerfiles()
    wrong += judged(found, accepted())
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (HarnessError, CannotInstallError) as error:
        sys.exit(f"lint-chart: error: {error}")
