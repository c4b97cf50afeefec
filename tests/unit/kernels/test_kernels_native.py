"""Parts of the extension that are best seen without Python, each in a program of its own (native/): every order in which threads
can walk through a region, every cut of attention. A compiler makes them here, as it made the extension."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "native"
SOURCES = Path(__file__).parents[3] / "kernels" / "csrc"
COMPILER = shlex.split(os.environ.get("CXX", "g++"))
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # of `make test-asan`


@pytest.mark.skipif(shutil.which(COMPILER[0]) is None, reason="there is no C++ compiler")
@pytest.mark.parametrize(
    ("program", "parts"),
    [("region_orders", []), ("attention_schedules", ["attention/schedule.cpp", "common/pool.cpp"])],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_native(program: str, parts: list[str], tmp_path: Path) -> None:
    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )

    sources = [HERE / f"{program}.cpp", *(SOURCES / part for part in parts)]
    options = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I", SOURCES]
    compiled = run(*COMPILER, *options, *sources, "-o", tmp_path / program)
    assert compiled.returncode == 0, compiled.stdout
    done = run(tmp_path / program)
    assert done.returncode == 0, done.stdout
