"""Buckets: what is let in, when the next is, what headers say; in simulated time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.auth.rates import Lease, Limits, Rates, Refusal, headers_of


def let_in(rates: Rates, limits: Limits, now_s: float, name: str = "a") -> Lease:
    lease = rates.begin(name, limits, now_s)
    assert isinstance(lease, Lease), lease
    return lease


def refused(rates: Rates, limits: Limits, now_s: float, name: str = "a") -> Refusal:
    refusal = rates.begin(name, limits, now_s)
    assert isinstance(refusal, Refusal)
    return refusal


def test_a_minutes_worth_at_once_then_one_at_a_time() -> None:
    rates, limits = Rates(), Limits(requests_per_minute=6)
    for _ in range(6):
        rates.end(let_in(rates, limits, 0), 0)
    refusal = refused(rates, limits, 0)
    assert refusal.retry_after_s == 10
    assert "6 requests a minute" in refusal.message and "in 10 s" in refusal.message
    assert refused(rates, limits, 9.5).retry_after_s == 1, "a refusal takes nothing"
    let_in(rates, limits, 10)
    refused(rates, limits, 10)
    let_in(rates, limits, 10, "somebody else")


def test_tokens_are_taken_at_the_end_and_while_running() -> None:
    rates, limits = Rates(), Limits(tokens_per_minute=60)
    first = let_in(rates, limits, 0)
    first.spent = lambda: 50
    second = let_in(rates, limits, 0)
    assert [meter.remaining for meter in second.meters] == [10]
    second.spent = lambda: 30
    assert refused(rates, limits, 0).retry_after_s == 21, "20 below zero and one more"
    rates.end(first, 0)
    rates.end(second, 0)
    rates.end(second, 0)
    assert refused(rates, limits, 20).retry_after_s == 1
    let_in(rates, limits, 21)


def test_requests_at_once() -> None:
    rates, limits = Rates(), Limits(max_concurrent=2)
    first, _ = let_in(rates, limits, 0), let_in(rates, limits, 0)
    refusal = refused(rates, limits, 0)
    assert (refusal.retry_after_s, "2 may at once" in refusal.message) == (1, True)
    rates.end(first, 0)
    let_in(rates, limits, 0)


def test_headers() -> None:
    rates, limits = Rates(), Limits(requests_per_minute=3, tokens_per_minute=600)
    lease = let_in(rates, limits, 0)
    assert headers_of(lease.meters) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "20s",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "600",
        "x-ratelimit-reset-tokens": "0ms",
    }
    lease.spent = lambda: 705
    rates.end(lease, 0)
    assert headers_of(rates.meters("a", limits, 0))["x-ratelimit-reset-tokens"] == "1m11s"
    assert headers_of(rates.meters("a", limits, 70.25))["x-ratelimit-reset-tokens"] == "250ms"
    assert headers_of(rates.meters("nobody", Limits(), 0)) == {}


def test_a_new_limit_keeps_what_was_taken() -> None:
    rates = Rates()
    for _ in range(4):
        rates.end(let_in(rates, Limits(requests_per_minute=10), 0), 0)
    assert let_in(rates, Limits(requests_per_minute=6), 0).meters[0].remaining == 1
    let_in(rates, Limits(), 0)


def test_whoever_has_no_limit_leaves_nothing_behind() -> None:
    rates = Rates()
    for number in range(100):
        rates.end(let_in(rates, Limits(), 0, str(number)), 0)
    assert len(rates) == 0


def test_memory_is_bounded_and_the_running_are_not_forgotten() -> None:
    rates, limits = Rates(max_principals=10), Limits(requests_per_minute=60, max_concurrent=1)
    running = let_in(rates, limits, 0, "running")
    for number in range(1000):
        rates.end(let_in(rates, limits, 0, str(number)), 0)
        assert len(rates) <= 10
    refused(rates, limits, 0, "running")
    rates.end(running, 0)
    for number in range(10):
        let_in(rates, limits, 3600, f"later {number}")
    assert len(rates) == 10, "who is idle and has everything back is forgotten first"


@pytest.mark.parametrize("capacity", [1, 7, 60])
@given(gaps=st.lists(st.floats(0, 30), min_size=1, max_size=60))
def test_never_more_than_the_bucket_and_what_was_refilled(capacity: int, gaps: list[float]) -> None:
    rates, limits, now_s, num_let_in = Rates(), Limits(requests_per_minute=capacity), 0.0, 0
    for gap in gaps:
        now_s += gap
        admitted = rates.begin("a", limits, now_s)
        if isinstance(admitted, Lease):
            num_let_in += 1
            rates.end(admitted, now_s)
        else:
            assert isinstance(rates.begin("a", limits, now_s + admitted.retry_after_s), Lease), "the hint is true"
            num_let_in += 1
            now_s += admitted.retry_after_s
        assert num_let_in <= capacity + now_s * capacity / 60 + 1e-6
