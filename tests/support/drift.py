"""Does a quantity grow while it should stay as it is? Decided from samples that were taken at rest, with a bound. No clocks, no I/O."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

MIN_SAMPLES = 6


@dataclass(frozen=True)
class Bound:
    """What a quantity may grow by from the first third of a run to the last: the larger one of both. most: what it may be at any time."""

    share: float = 0.0
    amount: float = 0.0
    most: float | None = None


@dataclass(frozen=True)
class Drift:
    """begin, end: medians of the first and the last third. slope: of a line through all samples, per hour. allowed: growth."""

    name: str
    unit: str
    begin: float
    end: float
    slope: float
    allowed: float
    peak: float
    most: float | None

    @property
    def grown(self) -> float:
        return self.end - self.begin

    @property
    def flat(self) -> bool:
        return self.grown <= self.allowed and (self.most is None or self.peak <= self.most)


def drift(name: str, unit: str, samples: Sequence[tuple[float, float]], bound: Bound) -> Drift:
    """samples: (seconds, value), without those of the warm-up. Raises ValueError for too few."""
    if len(samples) < MIN_SAMPLES:
        raise ValueError(f"{name}: {len(samples)} samples say nothing; {MIN_SAMPLES} are needed: let it run longer")
    third = len(samples) // 3
    values = [value for _, value in samples]
    begin, end = statistics.median(values[:third]), statistics.median(values[-third:])
    # The median of all slopes between two samples (Theil, 1950; Sen, 1968): one odd sample does not turn the line.
    slopes = [(v - u) / (t - s) for (s, u), (t, v) in combinations(samples, 2) if t > s]
    allowed = max(bound.share * begin, bound.amount)
    return Drift(name, unit, begin, end, statistics.median(slopes) * 3600, allowed, max(values), bound.most)


def table(drifts: Sequence[Drift]) -> str:
    """For people."""
    rows = [("what", "begin", "end", "grown", "allowed", "per hour", "")]
    for one in drifts:
        numbers = (one.begin, one.end, one.grown, one.allowed, one.slope)
        rows.append(
            (f"{one.name} [{one.unit}]", *(f"{number:.1f}" for number in numbers), "flat" if one.flat else "GROWS")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )
