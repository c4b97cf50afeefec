"""A real Prometheus for tests, installed from Debian where there is none."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from cluster import prerequisites, wait
from cluster.errors import DeadlineError
from cluster.progress import Progress
from dashboards import cluster_panels


def program(name: str) -> str:
    """The path of prometheus or promtool. Raises PrerequisiteError where it cannot be had."""
    if not (found := shutil.which(name)):
        prerequisites.ensure(("prometheus",), Progress())
        found = shutil.which(name)
    return found or name


def metric_names(query: str) -> set[str]:
    """The names of metrics in a query: what stands before labels, a range, an operator or the end, and is no function."""
    bare = re.sub(r'"[^"]*"|\b(?:by|ignoring|on) \([^)]*\)|\[[^]]*\]', " ", query)
    return {
        name
        for name in re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?![a-zA-Z0-9_:(=!~])", bare)
        if "_" in name and "__" not in name
    }


def filled_in(query: str, window: str = "10s") -> str:
    """A dashboard's query as Grafana sends it, with everything selected."""
    for variable, value in (("$__rate_interval", window), ("$model", ".*"), ("$instance", ".*"), ("$namespace", ".*")):
        query = query.replace(variable, value)
    return query


OF_TROUBLE = ("reconcile_errors", "scrapes_total", "metrics_api_requests", "certificate_expiry")
"""What an operator tells only where something is refused, a pod is ready, or the metrics API is on."""


def operator_queries() -> list[str]:
    """What the dashboard asks of the operator, as Grafana sends it."""
    queries = {query.text for row in cluster_panels.ROWS for panel in row.panels for query in panel.queries}
    return sorted(filled_in(query) for query in queries if "quire_operator_" in query)


class Prometheus:
    """One that runs."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series of an instant query whose value is a number."""
        answer = self.http.get("/api/v1/query", params={"query": query}).json()
        assert answer["status"] == "success", f"{query}: {answer}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return [series for series in result if series["value"][1] != "NaN"]

    def has(self, query: str, *, deadline_s: float) -> bool:
        """Whether it has series before the deadline."""
        try:
            wait.until(query, lambda: None if self.ask(query) else "no data", deadline_s=deadline_s, interval_s=0.2)
        except DeadlineError:
            return False
        return True


@contextmanager
def prometheus(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Scrapes `/metrics` of the targets (host:port) twice a second. folder: an empty one."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
        "scrape_configs": [{"job_name": "quire", "static_configs": [{"targets": list(targets)}]}],
    }
    settings, log = folder / "prometheus.yml", folder / "log"
    settings.write_text(json.dumps(config))
    command = [program("prometheus"), f"--config.file={settings}", f"--storage.tsdb.path={folder / 'data'}"]
    with log.open("wb") as out:
        handle = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=out, stderr=out)
    running = Prometheus(f"http://127.0.0.1:{port}")
    try:
        wait.until("Prometheus is ready", lambda: _missing(running), deadline_s=60, log=log)
        yield running
    finally:
        running.http.close()
        handle.terminate()
        handle.wait(30)


def _missing(running: Prometheus) -> str | None:
    try:
        status = running.http.get("/-/ready").status_code
    except httpx.TransportError as exc:
        return str(exc)
    return None if status == 200 else f"status {status}"
