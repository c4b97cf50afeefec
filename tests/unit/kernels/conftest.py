"""Every implementation that can run here, behind the public door; where QUIRE_CPU_ISA names an instruction set, that one alone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from quire_kernels import cpu, dispatch, ops

FORCED = os.environ.get("QUIRE_CPU_ISA")
CPU_IMPLEMENTATIONS = [f"cpu-{isa}" for isa in ([FORCED] if FORCED else cpu.available_isas())]
IMPLEMENTATIONS = CPU_IMPLEMENTATIONS if FORCED else ["ref", *CPU_IMPLEMENTATIONS]


def _use(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[str]:
    choice, _, isa = name.partition("-")
    monkeypatch.setenv(dispatch.CHOICE_VARIABLE, choice)
    dispatch.select.cache_clear()
    before, threads = cpu.isa(), ops.num_threads()
    if isa:
        cpu.use_isa(isa)
    yield name
    cpu.use_isa(before)
    ops.set_num_threads(threads)
    dispatch.select.cache_clear()


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """`ops` served by each implementation in turn."""
    yield from _use(monkeypatch, request.param)


@pytest.fixture(params=CPU_IMPLEMENTATIONS)
def cpu_implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """`ops` served by the C++ kernels of each instruction set in turn."""
    yield from _use(monkeypatch, request.param)
