"""An instruction set whose products are wrong is found at the start, and passed over aloud or refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from quire_kernels import _cpu, cpu, dispatch, errors, start_check

Damage = Callable[[Tensor, Tensor, Any, Tensor], None]
SETS = ["portable", "avx2", "avx512", "avx512_vnni", "avx512_bf16"]


class Processor:
    """A CPU with all instruction sets, some of which compute wrongly; products themselves are those of the best real one."""

    def __init__(self, damage: Damage, *wrong: str) -> None:
        self.used, self.damage, self.wrong = SETS[-1], damage, wrong

    def __getattr__(self, name: str) -> Any:
        return getattr(_cpu, name)

    def isa(self) -> str:
        return self.used

    def use_isa(self, name: str) -> None:
        self.used = name

    def available_isas(self) -> list[str]:
        return SETS

    def packed_linear(self, x: Tensor, packed: Any, bias: Tensor | None, out: Tensor) -> None:
        _cpu.packed_linear(x, packed, bias, out)
        if self.used in self.wrong:
            weight = out.new_empty(packed.shape)
            _cpu.unpack_weight(packed, weight)
            self.damage(x, weight, packed, out)


def lose_a_column(x: Tensor, weight: Tensor, packed: Any, out: Tensor) -> None:
    out -= x[:, 77:78] * weight[:, 77]


def swap_outputs(x: Tensor, weight: Tensor, packed: Any, out: Tensor) -> None:
    out[:, [3, 4]] = out[:, [4, 3]]


def forget_a_row(x: Tensor, weight: Tensor, packed: Any, out: Tensor) -> None:
    if len(out) > 1:
        out[-1] = 0


def break_a_number(x: Tensor, weight: Tensor, packed: Any, out: Tensor) -> None:
    out[0, 20] = float("nan")


def spoil_bytes(x: Tensor, weight: Tensor, packed: Any, out: Tensor) -> None:
    """As a dot product of four bytes that saturates."""
    if packed.format == "q8":
        out.clamp_(max=float(out.max()) * 0.9)


DAMAGES: list[Damage] = [lose_a_column, swap_outputs, forget_a_row, break_a_number, spoil_bytes]


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Processor]:
    monkeypatch.delenv("QUIRE_CPU_ISA", raising=False)

    def make(damage: Damage, *wrong: str) -> Processor:
        made = Processor(damage, *wrong)
        monkeypatch.setattr(start_check, "_cpu", made)
        return made

    return make


def test_all_that_this_cpu_has_is_right() -> None:
    before = cpu.isa()
    assert {isa: start_check.differing(isa) for isa in cpu.available_isas()} == dict.fromkeys(cpu.available_isas(), "")
    assert cpu.isa() == before
    assert cpu.FALLBACK == ""


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_the_next_best_is_taken_aloud(
    processor: Callable[..., Processor], damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    made = processor(damage, "avx512_bf16", "avx512_vnni")
    with caplog.at_level(logging.WARNING, logger="quire_kernels"):
        reason = start_check.settle()
    kind = "Q5_0" if damage is spoil_bytes else "f32"
    assert made.used == "avx512"
    assert reason == (
        f"this CPU computes wrongly with avx512_bf16 (products with {kind} weights), "
        f"avx512_vnni (products with {kind} weights); using avx512"
    )
    assert [record.getMessage() for record in caplog.records] == [f"kernels: {reason}"]


def test_the_last_resort_is_the_portable_set(processor: Callable[..., Processor]) -> None:
    made = processor(swap_outputs, *SETS[1:])
    assert start_check.settle().endswith("; using portable")
    assert made.used == "portable"


def test_what_was_not_chosen_is_not_looked_at(processor: Callable[..., Processor]) -> None:
    made = processor(swap_outputs, "avx512_bf16")
    made.used = "avx2"
    assert start_check.settle() == ""
    assert made.used == "avx2"


def test_an_explicit_choice_is_refused(processor: Callable[..., Processor], monkeypatch: pytest.MonkeyPatch) -> None:
    processor(break_a_number, "avx512_bf16")
    monkeypatch.setenv("QUIRE_CPU_ISA", "avx512_bf16")
    with pytest.raises(
        errors.UnavailableError,
        match=r"QUIRE_CPU_ISA=avx512_bf16: this CPU computes wrongly with avx512_bf16 \(products with f32 weights\); "
        "unset it to use avx512_vnni",
    ):
        start_check.settle()


def test_what_was_passed_over_is_the_reason_of_the_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.CHOICE_VARIABLE, raising=False)
    monkeypatch.setattr(cpu, "FALLBACK", "avx2 it is not")
    dispatch.select.cache_clear()
    try:
        assert dispatch.select("cpu") == dispatch.Selection(dispatch.select("cpu").kernels, "avx2 it is not")
        assert dispatch.select("cpu").kernels.NAME == "cpu"
    finally:
        dispatch.select.cache_clear()
