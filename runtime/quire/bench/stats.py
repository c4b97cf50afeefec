"""Sums over measured times. Pure; nothing here knows what was measured."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie, interpolated between the two nearest; NaN of no values."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a share is between 0 and 1, got {share}")
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def gaps(stamps: Sequence[float]) -> list[float]:
    """Times between neighbours."""
    return [later - earlier for earlier, later in itertools.pairwise(stamps)]


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure over runs."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]} if runs else {}


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of ours / theirs over runs that were made in turn, so that what slows the machine slows both of a pair."""
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"pairs need equally many runs, at least one; got {len(ours)} and {len(theirs)}")
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
