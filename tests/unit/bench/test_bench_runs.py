"""Each benchmark of the whole engine once, through the command line, on a tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from quire.bench import processes, stream
from quire.bench.client import Answer
from quire.bench.workloads import Work
from quire.entrypoints.cli import main
from quire.errors import RequestError
from tiny_api import tiny_folder

SMALL = ["--num-blocks=200", "--max-num-seqs=8", "--cpu-threads=1", "--dtype=float32"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started find the packages of this one, and none of the caller's settings."""
    for name in [name for name in os.environ if name.startswith("QUIRE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


def bench(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments, f"--json={tmp_path / 'out.json'}"])
    assert ended.value.code == 0
    content: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    return content


def test_throughput(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(
        tmp_path,
        *("throughput", model, "--requests=5", "--prompt-tokens=4:20", "--output-tokens=3:9", "--repeats=2", *SMALL),
    )
    [first, second] = found["runs"]
    generated = int(found["work"]["output_tokens"].partition("(")[2].split()[0])
    assert 15 <= generated <= 45
    assert first["generated_tokens_per_s"] == pytest.approx(generated / first["wall_s"])
    assert second["requests_per_s"] == pytest.approx(5 / second["wall_s"])
    assert found["engine"]["max_num_seqs"] == "8"
    assert found["engine"]["dtype"] == "float32"
    page = capsys.readouterr().out
    assert "throughput: 5 requests at once" in page
    assert "2 runs after a warm-up of 2 short requests" in page


def test_latency(model: str, tmp_path: Path) -> None:
    found = bench(tmp_path, "latency", model, "--prompt-tokens=12", "--output-tokens=6", "--repeats=3", *SMALL)
    assert found["repeats"] == 3
    for one in found["runs"]:
        assert one["prompt_tokens_per_s"] == pytest.approx(12 / one["ttft_s"])
        assert 0 < one["itl_p50_s"] <= one["itl_p95_s"]


def test_prefix_hits_only_with_the_cache(model: str, tmp_path: Path) -> None:
    work = ("--requests=4", "--prefix-tokens=64", "--suffix-tokens=8", "--output-tokens=3")
    found = bench(tmp_path, "prefix", model, *work, *SMALL)["median"]
    assert found["warm_hit_share"] > found["cold_hit_share"] > 0.5
    off = bench(tmp_path, "prefix", model, *work, "--no-enable-prefix-caching", *SMALL)["median"]
    assert off["warm_hit_share"] == off["cold_hit_share"] == 0


def test_work_that_does_not_fit_is_no_result(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "latency", model, "--prompt-tokens=500", "--output-tokens=90", *SMALL])
    assert ended.value.code == 2
    assert "request 0 came back with 12 tokens instead of 90" in capsys.readouterr().err


@pytest.mark.usefixtures("child")
def test_serve_starts_a_server_and_ends_it(model: str, tmp_path: Path) -> None:
    work = ("--requests=6", "--clients=3", "--prompt-tokens=4:20", "--output-tokens=3:9", "--output-cap=5")
    found = bench(tmp_path, "serve", model, *work, *SMALL)
    [one] = found["runs"]
    assert one["requests_per_s"] == pytest.approx(6 / one["wall_s"])
    assert 0 < one["ttft_p50_s"] <= one["ttft_p95_s"] < one["wall_s"]
    assert one["ready_s"] > 0
    assert one["pss_bytes"] > 50e6
    assert one["server_cpu_s"] + one["engine_cpu_s"] > 0  # told in ticks of 10 ms, which the work of one may not fill
    assert one["server_cpu_share"] == pytest.approx(one["server_cpu_s"] / (one["server_cpu_s"] + one["engine_cpu_s"]))
    assert found["engine"]["num_blocks"] == "200"
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert not [line for line in listed.splitlines() if "entrypoints.cli serve" in line and model in line]


@pytest.mark.usefixtures("child")
def test_stream_has_an_engine_that_computes_nothing(model: str, tmp_path: Path) -> None:
    work = ("--requests=12", "--clients=6", "--output-tokens=40", "--interval=10", "--repeats=2")
    found = bench(tmp_path, "stream", model, *work, *SMALL)
    assert len(found["runs"]) == 2
    for one in found["runs"]:
        assert one["wall_s"] > 2 * 39 * 0.01, "two after one another, a token every 10 ms"
        assert 0 <= one["joined"] < 0.5 and one["server_cpu_s"] > 0
        chunks = 12 * 40 * (1 - one["joined"])
        assert one["chunks_per_cpu_s"] == pytest.approx(chunks / one["server_cpu_s"])
        assert one["chunks_per_s"] == pytest.approx(chunks / one["wall_s"])
    assert found["engine"]["device"] == "none"
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert not [line for line in listed.splitlines() if "quire.bench.echo_server" in line and model in line]


def test_stream_without_cpu_time_is_no_result() -> None:
    """Less than a tick of the system's clock, or a system without /proc."""
    answer = Answer(asked_s=0.0, stamps=[0.0, 0.1], num_tokens=2)
    work = Work([5], 2)
    assert stream.summary([work], [answer], 0.1, 0.01)["chunks_per_cpu_s"] == pytest.approx(200)
    with pytest.raises(RequestError, match="no CPU time of the server was measured: ask for more"):
        stream.summary([work], [answer], 0.1, 0.0)


@pytest.mark.usefixtures("child")
def test_start_tells_its_stages(model: str, tmp_path: Path) -> None:
    found = bench(tmp_path, "start", model, "--repeats=1", *SMALL)
    [one] = found["runs"]
    assert 0 < one["stage_import"] < one["ready_s"] < one["first_token_s"]
    assert one["pss_bytes"] > 50e6


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize("ignored", [False, True])
def test_a_benchmark_that_is_ended_takes_its_server_along(ignored: bool) -> None:
    """ignored: Ctrl-C is, as in what a shell without job control starts with `&`."""
    program = (
        f"import asyncio, signal, sys\nif {ignored}: signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from quire.bench import servers\n"
        "async def start():\n"
        "    async with servers.running([sys.executable, '-c', 'import time; time.sleep(600)'], 9): pass\n"
        "asyncio.run(start())"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + 60
        while len(family := processes.tree(process.pid)) < 2 and time.monotonic() < ends:
            time.sleep(0.02)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        process.kill()
    assert len(family) == 2
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]


@pytest.mark.usefixtures("child")
def test_a_server_that_cannot_start_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "serve", model, "--max-model-len=9999", *SMALL])
    assert ended.value.code == 1
    assert "--max-model-len 9999 is more than the 512 tokens" in capsys.readouterr().err


def test_a_url_where_nobody_listens(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "serve", model, "--url=http://127.0.0.1:9"])
    assert "no OpenAI server answers at http://127.0.0.1:9" in capsys.readouterr().err
