"""The dashboards: their files are fresh, and every query of them has data in a real Prometheus that scrapes a real engine and a real
router under load, and (in `operator/test_operator_whole.py` and `test_operator_rights.py`) the operator's process.

So have the queries that dashboards, scaling rules and endpoint pickers ask about vLLM, of the same engine.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster import wait
from dashboards import cluster_panels, panels
from dashboards.panels import WHOLE, Panel, Row
from helm_kit import CHART
from prometheus_kit import Prometheus, filled_in, metric_names, prometheus
from quire_operator import telemetry
from quire_router.metrics import Metrics as RouterMetrics
from quire_testing.tiny_llama import make_model, save_folder
from router_load import routed
from tiny_text import VOCAB_SIZE, write_tokenizer

# The first use may install Prometheus.
pytestmark = pytest.mark.timeout(1200)

FILES = CHART / "files" / "dashboards"
ENGINES, CLUSTER = "quire-engines.json", "quire-cluster.json"
ROWS: dict[str, tuple[Row, ...]] = {ENGINES: panels.ROWS, CLUSTER: cluster_panels.ROWS}
VARIABLES = {ENGINES: {"datasource", "model", "instance"}, CLUSTER: {"datasource", "model", "namespace"}}
WINDOW = "10s"
FLAGS = ("--dtype=float32", "--cpu-threads=1", "--max-model-len=128", "--num-blocks=12", "--swap-space=1Mi", "--max-num-seqs=2",
         "--max-queue-size=1", "--metrics-compat=vllm", "--log-level=warning", "--served-model-name=tiny")  # fmt: skip

VLLM_HISTOGRAMS = (
    "e2e_request_latency_seconds",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "time_per_output_token_seconds",
    "request_time_per_output_token_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "iteration_tokens_total",
)
VLLM_QUERIES = [
    *(f'histogram_quantile(0.99, sum by (le) (rate(vllm:{name}_bucket{{model_name="tiny"}}[{WINDOW}])))'
      for name in VLLM_HISTOGRAMS),
    *(f'rate(vllm:{name}_sum{{model_name="tiny",engine="0"}}[{WINDOW}]) / rate(vllm:{name}_count[{WINDOW}])'
      for name in VLLM_HISTOGRAMS),
    *(f'vllm:{name}{{model_name="tiny"}}' for name in (
        "num_requests_running", "num_requests_waiting", "num_requests_swapped", "kv_cache_usage_perc", "gpu_cache_usage_perc",
        "cpu_cache_usage_perc", "avg_prompt_throughput_toks_per_s", "avg_generation_throughput_toks_per_s", "lora_requests_info")),
    *(f'rate(vllm:{name}_total{{model_name="tiny"}}[{WINDOW}])' for name in (
        "prompt_tokens", "generation_tokens", "prompt_tokens_cached", "prefix_cache_hits", "prefix_cache_queries",
        "gpu_prefix_cache_hits", "num_preemptions")),
    f"sum by (finished_reason) (increase(vllm:request_success_total[{WINDOW}])) > 0",
    f'sum(rate(vllm:admission_rejections_total{{reason="queue_full"}}[{WINDOW}])) > 0',
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="12"}',
    f'sum(rate(vllm:inter_token_latency_seconds_bucket{{le="0.5"}}[{WINDOW}]))',
    f'sum(rate(vllm:time_to_first_token_seconds_bucket{{le="10.0"}}[{WINDOW}]))',
]  # fmt: skip


def panels_of(file: str) -> list[Panel]:
    return [panel for row in ROWS[file] for panel in row.panels]


def queries_of(file: str) -> list[str]:
    return sorted({query.text for panel in panels_of(file) for query in panel.queries})


ROUTER_QUERIES = [query for query in queries_of(CLUSTER) if "quire_router_" in query]


@contextmanager
def engine(folder: Path) -> Iterator[int]:
    """The port of `quire serve` with a tiny model and little room."""
    write_tokenizer(save_folder(make_model(vocab_size=VOCAB_SIZE), folder))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "quire.entrypoints.cli",
        "serve",
        str(folder),
        "--host=127.0.0.1",
        f"--port={port}",
    ]
    log = folder / "log"
    with log.open("wb") as out:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        handle = subprocess.Popen([*command, *FLAGS], stdout=out, stderr=out, env=environment)
    try:
        wait.until("the engine is ready", lambda: None if _ready(port) else "it is not", deadline_s=120, log=log)
        yield port
    finally:
        handle.terminate()
        handle.wait(60)


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/ready").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def load(port: int, *, clients: int = 5) -> Iterator[None]:
    """Clients that ask without a pause: more than may run and wait, answers longer than there is room for, and new grammars."""
    done = threading.Event()
    numbers = itertools.count()

    def client(number: int) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            while not done.is_set():
                turn = next(numbers)
                body: dict[str, Any] = {
                    "prompt": f"{'the same beginning ' * 3}{turn}",
                    "max_tokens": 60,
                    "ignore_eos": True,
                }
                if number == 0:
                    body = {"prompt": "one of", "guided_choice": [f"word {turn}", "other"], "max_tokens": 30}
                http.post("/v1/completions", json=body)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with (
        engine(tmp_path_factory.mktemp("model")) as port,
        load(port),
        routed() as router,
        prometheus(tmp_path_factory.mktemp("prometheus"), [f"127.0.0.1:{port}", router]) as running,
    ):
        yield running


@pytest.mark.parametrize(
    "query", [*map(filled_in, queries_of(ENGINES)), *map(filled_in, ROUTER_QUERIES), *VLLM_QUERIES]
)
def test_every_query_has_data(live: Prometheus, query: str) -> None:
    assert live.has(query, deadline_s=30), query


def test_a_query_for_what_does_not_exist_has_none(live: Prometheus) -> None:
    assert live.has("up == 1", deadline_s=30)
    assert not live.has("quire_num_requests_flying", deadline_s=0.1)


@pytest.mark.parametrize("file", ROWS)
def test_the_file_has_every_panel_with_its_queries(file: str) -> None:
    made = json.loads((FILES / file).read_text())
    shown = {
        panel["title"] + panel["description"]: [target["expr"] for target in panel["targets"]]
        for panel in made["panels"]
        if panel["type"] != "row"
    }
    assert shown == {panel.title + panel.meaning: [query.text for query in panel.queries] for panel in panels_of(file)}
    assert [panel["title"] for panel in made["panels"] if panel["type"] == "row"] == [row.title for row in ROWS[file]]
    for panel in made["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WHOLE
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
    assert {variable["name"] for variable in made["templating"]["list"]} == VARIABLES[file]


def test_the_files_are_fresh() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="of the dev group")
    from dashboards.__main__ import made

    assert {file: file.read_text() for file in made()} == made(), "run `make manifests`"


def test_only_engine_metrics_are_asked_for_on_their_own_dashboard() -> None:
    names = {name for query in queries_of(ENGINES) for name in metric_names(query)}
    assert {name.split("_")[0] for name in names} == {"quire"} and not any("_router_" in name for name in names)


def test_everything_that_router_and_operator_tell_is_on_the_dashboard() -> None:
    """And nothing else."""
    told = {
        family.name + ("_total" if family.type == "counter" else "_bucket" if family.type == "histogram" else "")
        for registry in (RouterMetrics(lambda: ()).registry, telemetry.REGISTRY)
        for family in registry.collect()
    }
    assert {name for query in queries_of(CLUSTER) for name in metric_names(query)} == told
