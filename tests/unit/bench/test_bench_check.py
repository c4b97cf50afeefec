"""`make bench-check`: bounds by kind of CPU; a slow subject fails, a slow machine does not."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

CHECK: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "check.py"))


@pytest.mark.parametrize(
    ("ratio", "bound", "passed"),
    [(1.0, 1.0, True), (1.14, 1.0, True), (1.16, 1.0, False), (0.2, 1.0, True), (9.0, None, True)],
)
def test_the_verdict(ratio: float, bound: float | None, passed: bool) -> None:
    found, words = CHECK["verdict"](ratio, bound)
    assert found is passed
    assert words.endswith("run with --record" if bound is None else "pass" if passed else "FAIL")


def test_the_kind_is_the_best_instruction_set() -> None:
    assert CHECK["kind"](["avx2", "avx512f", "avx512_vnni"]) == "avx512_vnni"
    assert CHECK["kind"](["fma", "avx2"]) == "avx2"
    assert CHECK["kind"]([]) == "other"


def test_the_ratio_is_that_of_subject_and_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both get slower by the same factor half-way: the ratio stays."""
    clock = iter([1.0, 1.0, 1.0, 7.0, 7.0, 7.0])
    last = [0.0]

    def subject() -> float:
        last[0] = next(clock)
        return 2.0 * last[0]

    case = (lambda: subject, lambda: lambda: last[0], 5)
    monkeypatch.setitem(CHECK["CASES"], "made up", case)
    assert list(CHECK["measured"](["made up"])) == [("made up", pytest.approx(2.0))]


def test_yardsticks_take_time() -> None:
    for name in ("plain_python", "scheduler"):
        timed = CHECK[name]()
        assert timed() > 0
