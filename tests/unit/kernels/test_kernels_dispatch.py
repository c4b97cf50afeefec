"""The choice of an implementation: automatic, announced when it falls back, and final when it is explicit."""

from __future__ import annotations

import builtins
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quire_kernels
from quire_kernels import cpu, dispatch, errors, ops

CHECKOUT = Path(quire_kernels.__file__).parents[1]


@pytest.fixture(autouse=True)
def undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(dispatch.CHOICE_VARIABLE, raising=False)
    dispatch.select.cache_clear()
    yield
    dispatch.select.cache_clear()


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the extension had not been built."""
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "quire_kernels._cpu":
            raise ImportError("no extension")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "quire_kernels.cpu")
    monkeypatch.setattr(builtins, "__import__", refuse)


def run(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter on the source tree."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONSAFEPATH": "1", **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_cpu_tensors_get_the_extension() -> None:
    assert ops.selection("cpu") == dispatch.Selection(ops.selection("cpu").kernels)
    assert ops.selection("cpu").kernels.NAME == "cpu"


def test_other_devices_fall_back_and_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="quire_kernels"):
        first, second = ops.selection("cuda"), ops.selection("cuda:1")
    assert first is second
    assert first.kernels.NAME == "ref"
    assert first.reason == "there are no kernels for cuda yet"
    assert [record.getMessage() for record in caplog.records] == [
        "kernels: using the slow torch reference, because there are no kernels for cuda yet"
    ]


def test_an_unbuilt_extension_falls_back_and_says_so(unbuilt: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="quire_kernels"):
        assert ops.selection("cpu").kernels.NAME == "ref"
    assert "the C++ extension cannot be loaded (no extension); build it with" in caplog.text


def test_an_explicit_choice_never_falls_back(unbuilt: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dispatch.CHOICE_VARIABLE, "cpu")
    with pytest.raises(errors.UnavailableError, match=r"QUIRE_KERNELS=cpu: the C\+\+ extension cannot be loaded"):
        ops.selection("cpu")
    with pytest.raises(errors.UnavailableError, match="QUIRE_KERNELS=cpu cannot serve tensors on cuda"):
        ops.selection("cuda")


def test_the_reference_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dispatch.CHOICE_VARIABLE, "ref")
    assert ops.selection("cpu").kernels.NAME == "ref"
    assert ops.selection("cpu").reason == ""


def test_an_unknown_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dispatch.CHOICE_VARIABLE, "gpu")
    with pytest.raises(errors.UnavailableError, match="QUIRE_KERNELS must be ref or cpu, got 'gpu'"):
        ops.selection("cpu")


def test_the_instruction_set_can_be_forced() -> None:
    done = run("from quire_kernels import cpu; print(cpu.isa())", QUIRE_CPU_ISA="portable")
    assert (done.stdout, done.stderr) == ("portable\n", "")


def test_a_forced_instruction_set_that_cannot_be_fails_with_the_reason() -> None:
    done = run("from quire_kernels import ops; ops.selection()", QUIRE_CPU_ISA="mmx")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith(
        "UnavailableError: QUIRE_CPU_ISA must be portable, avx2, avx512, avx512_vnni or avx512_bf16, got 'mmx'"
    )


@pytest.mark.skipif("avx512_bf16" in cpu.available_isas(), reason="this CPU has them all")
def test_an_instruction_set_this_cpu_lacks_fails_with_the_reason() -> None:
    with pytest.raises(errors.UnavailableError, match="QUIRE_CPU_ISA=avx512_bf16: this CPU or build has only portable"):
        cpu.use_isa("avx512_bf16")
