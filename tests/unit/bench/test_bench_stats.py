"""Percentiles, medians, paired ratios."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.bench.stats import gaps, medians, paired_ratio, percentile

numbers = st.floats(min_value=-1e6, max_value=1e6)


@given(st.lists(numbers, min_size=1, max_size=40), st.floats(min_value=0, max_value=1))
def test_percentile_is_numpys(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(float(np.percentile(values, share * 100)), abs=1e-6)


def test_percentile_at_its_edges() -> None:
    assert math.isnan(percentile([], 0.5))
    assert percentile([3.0], 0.95) == 3.0
    assert (percentile([2.0, 1.0], 0.0), percentile([2.0, 1.0], 1.0)) == (1.0, 2.0)
    with pytest.raises(ValueError, match="between 0 and 1, got 95"):
        percentile([1.0], 95)


def test_gaps_and_medians() -> None:
    assert gaps([1.0, 1.5, 3.5]) == [0.5, 2.0]
    assert gaps([1.0]) == []
    assert medians([{"a": 1.0, "b": 5.0}, {"a": 3.0, "b": 5.0}, {"a": 2.0, "b": 9.0}]) == {"a": 2.0, "b": 5.0}
    assert medians([]) == {}


def test_noise_that_hits_both_of_a_pair_leaves_the_ratio_alone() -> None:
    quiet = [1.0, 1.0, 1.0, 1.0, 1.0]
    noise = [1.0, 4.0, 1.0, 9.0, 2.0]
    ours = [1.5 * base * factor for base, factor in zip(quiet, noise, strict=True)]
    theirs = [base * factor for base, factor in zip(quiet, noise, strict=True)]
    assert paired_ratio(ours, theirs) == pytest.approx(1.5)
    with pytest.raises(ValueError, match="equally many"):
        paired_ratio([1.0], [1.0, 2.0])
