"""What `make test-asan` and `make test-avx512-emulated` run, and that they never pass without a test. Compiler and Python are
scripts here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "e2e" / "setup" / "test-kernels"
PYTHON = """#!/bin/sh
case "$*" in
  *available_isas*) echo "$ISAS" ;;
  "-m pytest"*) echo "$QUIRE_CPU_ISA: $*" >> "$CALLS"; exit "${FAILS:-0}" ;;
esac
"""
CMAKE = """#!/bin/sh
[ "$1" != --install ] || mkdir -p "$4/quire_kernels"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in {"python": PYTHON, "cmake": CMAKE, "g++": "#!/bin/sh\n"}.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    (tmp_path / "kernels" / "quire_kernels").mkdir(parents=True)
    (tmp_path / "kernels" / "quire_kernels" / "ops.py").touch()
    return tmp_path


def run(checkout: Path, variant: str, *arguments: str, **environment: str) -> tuple[int, str, list[str]]:
    """Exit status, errors, and what pytest was called with under each instruction set, from the tests on."""
    calls = checkout / "calls"
    calls.write_text("")
    done = subprocess.run(
        [SCRIPT, variant, checkout / "bin" / "python", *arguments],
        cwd=checkout,
        env={"PATH": os.environ["PATH"], "CALLS": str(calls), "CXX": "g++", "ISAS": "portable avx2", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line.replace(": -m pytest", ":").split() for line in calls.read_text().splitlines()]
    return done.returncode, done.stderr, [" ".join([line[0], *line[line.index("benchmarks") + 1 :]]) for line in lines]


def test_every_instruction_set_runs_the_tests_of_the_kernels(checkout: Path) -> None:
    expected = ["portable: tests/unit/kernels", "avx2: tests/unit/kernels"]
    assert run(checkout, "asan") == (0, "", expected)


def test_options_leave_the_tests_and_tests_take_the_place_of_all(checkout: Path) -> None:
    expected = ["portable: tests/unit/kernels -x -k fuzz"]
    assert run(checkout, "asan", "-x", "-k", "fuzz", ISAS="portable") == (0, "", expected)
    one = "tests/unit/kernels/test_kernels_fuzz.py::test_rows"
    assert run(checkout, "asan", one, "-x", ISAS="portable") == (0, "", [f"portable: {one} -x"])


def test_the_emulation_runs_what_it_emulates(checkout: Path) -> None:
    isas = "portable avx2 avx512 avx512_vnni avx512_bf16"
    expected = [f"{isa}: tests/unit/kernels" for isa in ("avx512", "avx512_vnni", "avx512_bf16")]
    assert run(checkout, "avx512", ISAS=isas) == (0, "", expected)


def test_a_cpu_that_cannot_emulate_is_said_so(checkout: Path) -> None:
    status, errors, calls = run(checkout, "avx512", ISAS="portable")
    assert (status, calls) == (1, [])
    assert errors == (
        "make: error: nothing was tested: the emulation of AVX-512 needs an x86-64 CPU with AVX2, FMA and F16C; "
        "this one has portable\n"
    )


def test_the_first_failure_ends_it(checkout: Path) -> None:
    status, _, calls = run(checkout, "asan", FAILS="5")  # 5: pytest found no test
    assert (status, calls) == (5, ["portable: tests/unit/kernels"])


def test_another_variant_is_refused(checkout: Path) -> None:
    status, errors, calls = run(checkout, "tsan")
    assert (status, calls) == (1, [])
    assert errors == "make: error: VARIANT must be asan or avx512, got 'tsan'\n"
