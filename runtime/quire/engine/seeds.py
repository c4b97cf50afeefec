"""Seeds of requests and the numbers drawn from them, as functions of (seed, position): no state, no order, no batch."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """splitmix64: a bijection of 64-bit integers that scatters neighbours (Steele, Lea and Flood, OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def nth_seed(seed: int, index: int) -> int:
    """The seed of sample `index` of a request with n > 1; sample 0 has the request's own."""
    if index == 0:
        return seed
    return mix((seed & _MASK) ^ mix(index)) >> 1


class SeedStream:
    """Seeds for requests that bring none: different for each, the same stream after a restart with the same --seed."""

    def __init__(self, seed: int) -> None:
        self._seed = mix(seed)
        self._drawn = 0

    def draw(self) -> int:
        self._drawn += 1
        return mix(self._seed ^ mix(mix(self._drawn))) >> 1
