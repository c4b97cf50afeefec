"""Programs that look at the files: those of Go built by the harness, those of Python's index in environments of their own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

from client_environments import environment, python_of
from cluster.errors import CommandError
from cluster.progress import Progress
from cluster.run import run, tail
from cluster.tools import CHART, ensure
from lint_chart.findings import Accepted, Finding, of_checkov, of_hadolint, of_trivy

ROOT = Path(__file__).resolve().parents[2]
CHART_FOLDER = ROOT / "charts" / "quire"
README = CHART_FOLDER / "README.md"
PODS = ROOT / "tests" / "unit" / "operator" / "snapshots"
"""What the operator makes for one spec per feature; a unit test keeps it so."""
DOCKERFILES = tuple(sorted(ROOT.glob("Dockerfile.*")))
REQUIREMENTS = Path(__file__).parent / "requirements"
ACCEPTED = Path(__file__).parent / "accepted.yaml"
KUBERNETES = "1.34.4"
DEADLINE_S = 300.0

VARIANTS = {
    "default": {},
    "several": {"operator": {"replicas": 2}, "router": {"replicas": 3}, "metrics": {"dashboard": {"enabled": True}}},
    "least": {
        "watchNamespaces": ["models"],
        "metricsApi": {"enabled": False},
        "rbac": {"aggregate": False},
        "crds": {"install": False},
    },
}
"""Values under which the chart is looked at."""


class Scanners:
    """`pip` packages and Go programs are installed or built where they are not there yet. Raises CannotInstallError, HarnessError."""

    def __init__(self, progress: Progress) -> None:
        self._go = ensure(progress, CHART)
        self._scanners = python_of("scanners", REQUIREMENTS).parent
        self._checkov = python_of("checkov", REQUIREMENTS).parent

    def helm_lint(self) -> None:
        """Raises CommandError."""
        run([self._go["helm"], "lint", "--strict", "--kube-version", KUBERNETES, CHART_FOLDER], deadline_s=DEADLINE_S)

    def unit_tests(self) -> str:
        """The last lines of what helm-unittest says. Raises CommandError."""
        return run([self._go["helm-unittest"], "--strict", CHART_FOLDER], deadline_s=DEADLINE_S)

    def readme(self) -> str:
        """The chart's README as it should be."""
        command: list[str | Path] = [
            self._go["helm-docs"],
            "--dry-run",
            "--sort-values-order=file",
            "--log-level=error",
        ]
        return run([*command, f"--chart-search-root={CHART_FOLDER}"], deadline_s=DEADLINE_S, cwd=ROOT)

    def rendered(self, folder: Path) -> Path:
        """The chart under each of VARIANTS."""
        out = folder / "chart"
        out.mkdir()
        for name, values in VARIANTS.items():
            command: list[str | Path] = [
                self._go["helm"],
                "template",
                "quire",
                CHART_FOLDER,
                "--namespace=quire-system",
                "--values=-",
            ]
            text = run([*command, f"--kube-version={KUBERNETES}"], input_text=json.dumps(values), deadline_s=DEADLINE_S)
            (out / f"{name}.yaml").write_text(text)
        return out

    def looked_at(self, kind: str, folder: Path) -> list[Finding]:
        """Of Kubernetes objects."""
        checkov: list[str | Path] = ["--directory", folder, "--framework=kubernetes"]
        return [*self._by_checkov(kind, checkov), *self._by_trivy(kind, ["config", "--skip-check-update", folder])]

    def dockerfiles(self) -> list[Finding]:
        """Of all three."""
        kind = "dockerfiles"
        found = of_hadolint(kind, self._run([self._scanners / "hadolint", "--format=json", *DOCKERFILES], cwd=ROOT))
        found += self._by_checkov(kind, ["--framework=dockerfile", "--file", *DOCKERFILES])
        for file in DOCKERFILES:
            found += self._by_trivy(kind, ["config", "--skip-check-update", file])
        return found

    def _by_checkov(self, kind: str, words: Sequence[str | Path]) -> list[Finding]:
        # --skip-download: without a network it ends in a traceback.
        command: list[str | Path] = [
            self._checkov / "python",
            self._checkov / "checkov",
            "--skip-download",
            "--quiet",
            "--compact",
            "--output=json",
        ]
        return of_checkov(kind, self._run([*command, *words]))

    def _by_trivy(self, kind: str, words: Sequence[str | Path]) -> list[Finding]:
        return of_trivy(kind, self._run([self._scanners / "trivy", *words, "--quiet", "--format=json"]))

    def _run(self, command: Sequence[str | Path], cwd: Path | None = None) -> str:
        """Standard output; status 1 is "something was found"."""
        words = [str(word) for word in command]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env=environment(), cwd=cwd, timeout=DEADLINE_S
        )
        if done.returncode not in (0, 1) or not done.stdout.strip():
            raise CommandError(f"`{' '.join(words[:3])} ...` ended with status {done.returncode}:\n{tail(done.stderr)}")
        return done.stdout


def accepted() -> Accepted:
    """The table of `accepted.yaml`."""
    table: Accepted = yaml.safe_load(ACCEPTED.read_text())
    return table
