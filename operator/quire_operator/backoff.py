"""How long to wait before what failed is tried again. Pure."""

from __future__ import annotations


def backoff_s(failures: int, first_s: float, most_s: float) -> float:
    """`first_s` after the first failure in a row, and twice as long after each further one, up to `most_s`."""
    return min(first_s * 2.0 ** min(max(failures - 1, 0), 32), most_s)
