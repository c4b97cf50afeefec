"""What counts as flat."""

import random

import pytest

from drift import Bound, Drift, drift, table


def of(values: list[float], bound: Bound) -> Drift:
    return drift("memory", "MiB", [(20.0 * place, value) for place, value in enumerate(values)], bound)


def test_noise_is_flat_and_a_leak_is_not() -> None:
    chance = random.Random(3)
    noise = [300 + chance.uniform(-3, 3) for _ in range(60)]
    assert of(noise, Bound(share=0.02)).flat
    leak = [value + 0.2 * place for place, value in enumerate(noise)]
    found = of(leak, Bound(share=0.02))
    assert not found.flat
    assert found.slope == pytest.approx(0.2 * 180, rel=0.2), "0.2 MiB each 20 s"
    assert found.grown == pytest.approx(8, rel=0.3)


def test_one_odd_sample_changes_nothing() -> None:
    values = [100.0] * 30
    values[25] = 10_000
    found = of(values, Bound())
    assert (found.slope, found.grown, found.flat) == (0, 0, True)


def test_what_shrinks_is_flat_and_what_may_never_be_more_is_not() -> None:
    assert of([float(100 - place) for place in range(20)], Bound()).flat
    assert not of([0.0] * 10 + [1.0] + [0.0] * 10, Bound(most=0)).flat
    assert of([5.0] * 10 + [7.0] * 10, Bound(amount=2)).flat


def test_too_few_samples_say_so() -> None:
    with pytest.raises(ValueError, match="let it run longer"):
        of([1.0] * 5, Bound())


def test_the_table_names_what_grows() -> None:
    text = table([of([1.0] * 9, Bound()), of([float(place) for place in range(9)], Bound())])
    first, second = text.splitlines()[1:]
    assert first.endswith("flat") and second.endswith("GROWS") and "memory [MiB]" in first
