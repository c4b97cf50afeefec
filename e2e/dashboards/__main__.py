"""`python -m dashboards [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

from dashboards import cluster_panels, panels
from dashboards.grafana import Variable, dashboard_json

FOLDER = Path(__file__).resolve().parents[2] / "charts" / "quire" / "files" / "dashboards"


def made() -> dict[Path, str]:
    """Each file and what it should hold."""
    return {
        FOLDER / "quire-engines.json": dashboard_json(
            "Quire engines",
            "quire-engines",
            panels.ROWS,
            description="Engines of Quire: what runs and waits, latencies, throughput, KV cache.",
            variables=(
                Variable("model", "Model", "label_values(quire_engine_info, model_name)"),
                Variable("instance", "Engine", 'label_values(quire_engine_info{model_name=~"$model"}, instance)'),
            ),
        ),
        FOLDER / "quire-cluster.json": dashboard_json(
            "Quire cluster",
            "quire-cluster",
            cluster_panels.ROWS,
            description="Router and operator of Quire: answers by model and status, endpoints, replicas, what fails.",
            variables=(
                Variable("model", "Model", "label_values(quire_router_requests_total, model)"),
                Variable("namespace", "Namespace", "label_values(quire_operator_replicas, namespace)"),
            ),
        ),
    }


def main(arguments: list[str]) -> int:
    stale = [file for file, text in made().items() if not file.exists() or file.read_text() != text]
    if arguments == ["--check"]:
        for file in stale:
            print(f"{file.name} is stale: run `make manifests`", file=sys.stderr)
        return 1 if stale else 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for file, text in made().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
