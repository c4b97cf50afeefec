"""Tables and JSON of a report, the machine's facts, and what /proc says of processes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from quire.bench import machine, processes
from quire.bench.report import Figure, Report, rows, show, warnings, write
from quire.errors import ConfigError

FIGURES = (Figure("wall_s", "seconds", digits=2), Figure("ttft_s", "first token, ms", 1e3, 0))
RUNS = [{"wall_s": 3.0, "ttft_s": 0.2}, {"wall_s": 1.0, "ttft_s": 0.4}, {"wall_s": 1234.5, "ttft_s": 0.3}]


def report(runs: list[dict[str, float]]) -> Report:
    facts = {"cpu": "Abacus 3", "flags": ["avx2"], "threads": 2, "memory_bytes": 8 * 10**9, "system": "Linux"}
    return Report(
        benchmark="throughput",
        title="throughput: some",
        work={"requests": 3},
        warm_up="2 short requests",
        engine={"dtype": "float32", "kernels_fallback": ""},
        runs=runs,
        machine=facts,
        versions={"quire": "9"},
        environment={"OMP_NUM_THREADS": "2"},
    )


def test_rows_hold_median_least_and_most() -> None:
    assert rows(RUNS, FIGURES) == [["seconds", "3.00", "1.00", "1,234.50"], ["first token, ms", "300", "200", "400"]]
    assert rows(RUNS[:1], FIGURES) == [["seconds", "3.00"], ["first token, ms", "200"]]


def test_the_table_says_how_it_was_measured() -> None:
    page = io.StringIO()
    show(report(RUNS), FIGURES, console=Console(width=100, file=page))
    for words in (
        "throughput: some",
        "3 runs after a warm-up of 2 short requests",
        "Abacus 3, 2 threads, 8 GB",
        "avx2",
    ):
        assert words in page.getvalue()
    for words in ("OMP_NUM_THREADS=2", "quire 9", "dtype float32"):
        assert words in page.getvalue()


def test_json_holds_runs_and_medians(tmp_path: Path) -> None:
    write(report(RUNS), tmp_path / "r.json")
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["median"] == {"wall_s": 3.0, "ttft_s": 0.3}
    assert content["runs"] == RUNS
    assert (content["repeats"], content["warm_up"], content["versions"]) == (3, "2 short requests", {"quire": "9"})
    with pytest.raises(ConfigError, match=r"--json .* cannot be written"):
        write(report(RUNS), tmp_path / "no" / "r.json")


def test_doubtful_runs_are_called_so() -> None:
    assert warnings([{"foreign": 0.02, "stolen": 0.0}, {}]) == []
    [one] = warnings([{"foreign": 0.02}, {"foreign": 0.31}])
    assert "other processes used up to 31%" in one
    assert "hypervisor" in warnings([{"stolen": 0.2, "foreign": float("nan")}])[0]


def test_cpu_names_its_instruction_sets(tmp_path: Path) -> None:
    x86 = "processor : 0\nmodel name : Abacus: 3\nflags : fpu avx2 fma nonsense\n\nprocessor : 1\nmodel name : other\n"
    (tmp_path / "x86").write_text(x86)
    (tmp_path / "arm").write_text("processor : 0\nFeatures : fp asimd i8mm\n")
    assert machine.cpu(tmp_path / "x86") == ("Abacus: 3", ["avx2", "fma"])
    assert machine.cpu(tmp_path / "arm") == ("", ["asimd", "i8mm"])
    assert machine.cpu(tmp_path / "absent") == ("", [])


def test_versions_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"python", "torch", "quire"} <= set(machine.versions())
    monkeypatch.setenv("QUIRE_API_KEY", "secret")
    monkeypatch.setenv("QUIRE_CPU_ISA", "portable")
    found = machine.environment()
    assert found["QUIRE_CPU_ISA"] == "portable"
    assert "QUIRE_API_KEY" not in found


def test_memory_of_a_tree_counts_children_and_shared_pages_once() -> None:
    code = (
        "import os, sys, time; held = bytearray(b'x') * (64 << 20); child = os.fork();"
        "print('up', flush=True) if child else None; sys.stdin.readline() if child else time.sleep(60);"
        "os.kill(child, 9) if child else None"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        assert parent.stdout.readline() == b"up\n"
        tree = processes.tree(parent.pid)
        held = processes.pss_bytes(parent.pid)
        parent.stdin.close()
    assert len(tree) == 2
    assert 64 << 20 < held < 2 * (64 << 20)
    assert processes.pss_bytes(parent.pid) == 0


def test_noise_is_what_others_do() -> None:
    with processes.Noise() as alone:
        sum(range(3_000_000))
    assert 0 <= alone.foreign <= 1
    assert 0 <= alone.stolen <= 1
    before = processes.ticks(1)
    assert before is not None
    assert before.busy <= before.total
