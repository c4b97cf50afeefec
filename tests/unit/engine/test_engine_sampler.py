"""Sampling: the right distribution, the right restriction, and the same token whatever else is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.engine.results import NO_TOKEN
from quire.engine.sampling import Sampler
from quire.engine.sampling import draw as draw_module
from quire.engine.sampling import restrict as restrict_module
from quire.engine.sampling.draw import draw, likeliest
from quire.engine.sampling.logprobs import token_logprobs
from quire.engine.sampling.restrict import NUM_CANDIDATES, restrict
from quire.engine.seeds import SeedStream, mix, nth_seed
from quire.engine.sequence import Sequence
from quire.request import SamplingParams
from quire_testing.rows import make_row


def sample(logits: torch.Tensor, rows: list[Sequence]) -> list[int]:
    return Sampler()(logits, rows).tokens


def draw_many(logits: torch.Tensor, params: SamplingParams, count: int, seed: int = 1) -> list[int]:
    """`count` draws from one row of logits."""
    draws = [make_row(params, seed, position) for position in range(count)]
    return sample(logits.expand(count, -1).clone(), draws)


def test_greedy_takes_the_first_of_the_likeliest() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 3.0, 3.0, 1.0]])
    greedy = make_row(SamplingParams(temperature=0.0), 0, 0)
    assert sample(logits, [greedy, greedy]) == [1, 0]


def test_the_likeliest_is_what_torch_finds() -> None:
    inf, nan = float("inf"), float("nan")
    edges = [[0.0, -0.0, -1.0], [1.0, nan, inf], [nan, nan, 0.0], [-inf, -inf, -inf], [2.0, inf, inf]]
    for logits in (torch.tensor(edges), torch.randn(5, 4099).mul(4).round()):
        for one in (logits, logits.bfloat16(), logits.t().contiguous().t()):
            best, places = one.max(dim=-1)
            assert likeliest(one).tolist() == torch.where(best.isfinite(), places, NO_TOKEN).tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_probabilities(temperature: float) -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, -3.0])
    count = 20_000
    tokens = draw_many(logits, SamplingParams(temperature=temperature), count)
    expected = (logits / temperature).softmax(0) * count
    observed = torch.bincount(torch.tensor(tokens), minlength=6)
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert chi_square < 25.7  # 5 degrees of freedom, one in 10 000


def test_frequencies_over_a_large_vocabulary() -> None:
    vocab, count = 2_000, 2_000
    tokens = torch.tensor(draw_many(torch.zeros(vocab), SamplingParams(), count))
    per_fifth = torch.bincount(tokens // 400, minlength=5)
    assert float(((per_fifth - count / 5) ** 2 / (count / 5)).sum()) < 23.5
    assert len(set(tokens.tolist())) > 0.95 * vocab * (1 - math.exp(-count / vocab))


def test_neighbouring_seeds_and_positions_are_unrelated() -> None:
    logits = torch.zeros(2)
    bits = [draw_many(logits, SamplingParams(), 2_000, seed)[:] for seed in (1, 2)]
    agreement = sum(a == b for a, b in zip(*bits, strict=True))
    assert abs(agreement - 1_000) < 5 * math.sqrt(500)
    repeats = sum(a == b for a, b in zip(bits[0], bits[0][1:], strict=False))
    assert abs(repeats - 1_000) < 5 * math.sqrt(500)


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        (SamplingParams(top_k=1), {3}),
        (SamplingParams(top_k=2), {3, 0}),
        (SamplingParams(top_k=-1), {0, 1, 2, 3, 4}),
        (SamplingParams(top_p=0.05), {3}),
        (SamplingParams(top_p=0.6), {3, 0}),
        (SamplingParams(top_p=0.99), {0, 1, 2, 3}),
        (SamplingParams(top_k=2, top_p=0.9), {3, 0}),
        (SamplingParams(top_k=3, top_p=0.5), {3}),
        (SamplingParams(top_k=1000), {0, 1, 2, 3, 4}),
    ],
)
def test_top_k_and_top_p_restrict(params: SamplingParams, allowed: set[int]) -> None:
    probabilities = torch.tensor([0.3, 0.1, 0.06, 0.5, 0.004])
    assert set(draw_many((probabilities / probabilities.sum()).log(), params, 3_000)) == allowed


def test_top_p_beyond_the_candidates_sorts_everything() -> None:
    vocab = NUM_CANDIDATES * 4
    tokens = draw_many(torch.linspace(0, 1e-3, vocab), SamplingParams(top_p=0.5), 400)
    assert min(tokens) >= vocab // 2 - 2
    assert min(tokens) < vocab // 2 + 100
    tokens = draw_many(torch.linspace(0, 1e-3, vocab), SamplingParams(top_k=NUM_CANDIDATES * 2), 400)
    assert min(tokens) >= vocab // 2


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 100_000),
    temperature=st.floats(0.05, 5.0),
    top_k=st.integers(-1, 60),
    top_p=st.floats(0.01, 1.0),
    others=st.lists(st.sampled_from([0.0, 1.0, 3.0]), max_size=5),
    place=st.integers(0, 5),
)
def test_a_row_is_drawn_the_same_alone_and_among_others(
    seed: int, position: int, temperature: float, top_k: int, top_p: float, others: list[float], place: int
) -> None:
    generator = torch.Generator().manual_seed(abs(seed) % 1000)
    row = torch.randn(50, generator=generator) * 3
    draw = make_row(SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p), seed, position)
    (alone,) = sample(row.unsqueeze(0).clone(), [draw])
    draws = [make_row(SamplingParams(temperature=t, top_p=0.5), 9, 9) for t in others]
    rows = [torch.randn(50, generator=generator) for _ in others]
    place = min(place, len(draws))
    draws.insert(place, draw)
    rows.insert(place, row)
    assert sample(torch.stack(rows), draws)[place] == alone
    assert row[alone] >= row.topk(min(top_k, 50) if top_k > 0 else 50).values[-1]


WIDE = 40_001
"""More than torch sums up on one thread, and no multiple of a vector's width."""


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def wide_row(seed: int) -> torch.Tensor:
    row = torch.randn(WIDE, generator=torch.Generator().manual_seed(seed)) * 3
    return row - row.max()


def nucleus_edges(row: torch.Tensor) -> list[float]:
    """Values of top_p that the likeliest tokens reach exactly, so that the last bit of any sum decides on one more."""
    mass = row.double().exp().sort(descending=True).values.cumsum(0)
    return [float(mass[i] / mass[-1]) for i in range(5, 900, 25)] + [float(mass[i] / mass[-1]) for i in (5000, 15_000)]


def typical_edges(row: torch.Tensor) -> list[float]:
    """Values of typical_p that end between two tokens on either side of the entropy and just as far from it: its last bit decides
    which of them stays."""
    information = -row.double().log_softmax(0)
    weight = (-information).exp()
    off = information - (information * weight).sum()
    order = off.abs().argsort()
    gap = off[order].abs().diff()
    gap[off[order][1:].sign() == off[order][:-1].sign()] = math.inf
    sorted_weight = weight[order]
    mass = sorted_weight.cumsum(0) - sorted_weight / 2
    return [float(mass[i]) for i in gap.argsort()[:40]]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["top_p", "typical_p"])
def test_what_a_row_keeps_is_the_same_alone_and_among_others(name: str, seed: int) -> None:
    row = wide_row(seed)
    edges = nucleus_edges(row) if name == "top_p" else typical_edges(row)
    params = [SamplingParams(**{name: edge}) for edge in edges]
    together = row.expand(len(params), -1).clone()
    restrict(together, params)
    for one, kept in zip(params, together, strict=True):
        alone = row[None].clone()
        restrict(alone, [one])
        assert torch.equal(alone[0], kept), f"{name}={getattr(one, name)}"


@pytest.mark.usefixtures("two_threads")
def test_the_entropy_of_a_row_is_the_same_bits_alone_and_among_others() -> None:
    """Of what typical_p keeps it decides in its last bit, which few rows show."""
    rows = torch.stack([wide_row(seed) for seed in range(7)])
    information = rows.log_softmax(dim=-1).neg_()
    weight = information.neg().exp_()
    together = restrict_module._entropy(information, weight)
    alone = [
        restrict_module._entropy(one[None].clone(), w[None].clone()) for one, w in zip(information, weight, strict=True)
    ]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.usefixtures("two_threads")
def test_noise_and_log_probabilities_are_the_same_bits_alone_and_among_others() -> None:
    keys = [mix(i) for i in range(7)]
    together = draw_module._exponential(keys, WIDE, torch.device("cpu")).log_()
    alone = [draw_module._exponential([key], WIDE, torch.device("cpu")).log_() for key in keys]
    assert torch.equal(together, torch.cat(alone))
    rows = torch.stack([wide_row(seed) for seed in range(7)])
    found = token_logprobs(rows, [3] * 7, [5] * 7)
    assert found == [token_logprobs(row[None], [3], [5])[0] for row in rows]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_not_finite_give_no_token(poison: float, temperature: float) -> None:
    logits = torch.zeros(2, 8)
    logits[0, 3] = poison
    draw = make_row(SamplingParams(temperature=temperature), 1, 1)
    tokens = sample(logits, [draw, draw])
    assert tokens[0] == NO_TOKEN
    assert 0 <= tokens[1] < 8
    assert sample(torch.full((1, 8), -math.inf), [draw]) == [NO_TOKEN]


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.full((1, 64), -math.inf)
    logits[0, 17] = -50.0
    assert set(draw_many(logits[0], SamplingParams(temperature=2.0), 200)) == {17}


@pytest.mark.parametrize("temperature", [1e-4, 100.0])
def test_extreme_temperatures(temperature: float) -> None:
    logits = torch.tensor([0.0, 200.0, -200.0, 199.0])
    tokens = set(draw_many(logits, SamplingParams(temperature=temperature), 500))
    assert tokens == ({1} if temperature < 1 else {0, 1, 2, 3})


def test_bfloat16_logits_are_sampled_in_float32() -> None:
    logits = torch.randn(3, 100)
    draws = [make_row(SamplingParams(temperature=0.9, top_p=0.9), 5, i) for i in range(3)]
    half = logits.bfloat16()
    assert sample(half, draws) == sample(half.float(), draws)


def test_seeds() -> None:
    assert mix(0) == 0xE220A8397B1DCDAF  # first output of splitmix64 seeded with 0
    assert nth_seed(5, 0) == 5
    assert len({nth_seed(5, index) for index in range(100)} | {nth_seed(6, index) for index in range(100)}) == 200
    one, two, other = SeedStream(1), SeedStream(1), SeedStream(2)
    seeds = [one.draw() for _ in range(50)]
    assert seeds == [two.draw() for _ in range(50)]
    assert len({*seeds, *(other.draw() for _ in range(50))}) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_noise_is_finite_at_its_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest 64 of 2**31 hashes round up to 2**31 in float32; as noise they were infinite, and an only token lost."""
    edges = [0, 1, (1 << 31) - 129, *((1 << 31) - i for i in range(65, 0, -1))]
    monkeypatch.setattr(draw_module, "_finalise", lambda bits: torch.tensor([edges], dtype=torch.int32))
    noise = draw_module._exponential([0], len(edges), torch.device("cpu"))
    assert bool(torch.isfinite(noise).all()) and bool((noise > 0).all())
    assert bool((noise.diff() >= 0).all())
    monkeypatch.setattr(draw_module, "_finalise", lambda bits: torch.full_like(bits, (1 << 31) - 1))
    logits = torch.full((1, 5), float("-inf"))
    logits[0, 3] = 1.0
    assert draw(logits, [make_row(SamplingParams(temperature=1.0))]).tolist() == [3]
