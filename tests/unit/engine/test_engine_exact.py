"""Greedy answers equal those of transformers, token for token, whatever happens to the batch meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quire.engine.core import EngineCore
from quire.request import AddRequest, SamplingParams, Sibling
from quire_testing.cores import generate, make_core
from quire_testing.tiny_gguf import save_gguf
from quire_testing.tiny_llama import VOCAB, greedy, make_model, save_folder

GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def prompts_for(count: int, seed: int = 3) -> list[list[int]]:
    """Prompts of many lengths, half of them with a common beginning."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, VOCAB) for _ in range(45)]
    return [
        (shared if index % 2 else []) + [rng.randrange(3, VOCAB) for _ in range(rng.randrange(1, 60))]
        for index in range(count)
    ]


@pytest.fixture(scope="module")
def reference() -> Iterator[Any]:
    yield make_model()


@pytest.fixture(scope="module")
def folder(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(reference, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected(reference: Any) -> list[list[int]]:
    return [greedy(reference, prompt, 40) for prompt in prompts_for(12)]


def test_the_reference_answers_differ(expected: list[list[int]]) -> None:
    assert len({tuple(answer[:5]) for answer in expected}) > 6
    assert any(len(set(answer)) > 5 for answer in expected)


def test_alone(folder: Path, expected: list[list[int]]) -> None:
    core = make_core(folder, enable_prefix_caching=False)
    for prompt, answer in zip(prompts_for(12), expected, strict=True):
        assert generate(core, [prompt], GREEDY) == [answer]


def test_alone_with_prefix_hits_and_a_full_prompt_hit(folder: Path, expected: list[list[int]]) -> None:
    core = make_core(folder)
    for _ in range(2):
        for prompt, answer in zip(prompts_for(12), expected, strict=True):
            assert generate(core, [prompt], GREEDY) == [answer]
    assert core.scheduler.counters.prefix_hits > 300


def test_in_a_mixed_batch_with_chunks_hits_and_preemption(folder: Path, expected: list[list[int]]) -> None:
    core = make_core(folder, num_blocks=45, block_size=8, max_num_batched_tokens=24, max_num_seqs=7)
    assert generate(core, prompts_for(12), GREEDY, every=3) == expected
    assert core.scheduler.counters.preemptions > 0
    assert core.scheduler.counters.prefix_hits > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": LLAMA3},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
        {"tie_word_embeddings": True, "num_key_value_heads": 6},
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 32, "num_key_value_heads": 1},
    ],
    ids=["rope-llama3", "rope-linear", "tied-mha", "biases", "head-size-mqa"],
)
def test_variants(changes: dict[str, Any], tmp_path: Path) -> None:
    model = make_model(**changes)
    core = make_core(save_folder(model, tmp_path), max_num_batched_tokens=32)
    prompts = prompts_for(4)
    assert generate(core, prompts, GREEDY) == [greedy(model, prompt, 40) for prompt in prompts]


def test_sharded(reference: Any, expected: list[list[int]], tmp_path: Path) -> None:
    core = make_core(save_folder(reference, tmp_path, sharded=True))
    assert generate(core, prompts_for(12), GREEDY) == expected


@pytest.mark.parametrize("tied", [False, True])
def test_gguf(tied: bool, tmp_path: Path) -> None:
    model = make_model(tie_word_embeddings=tied)
    core = make_core(save_gguf(model, save_folder(model, tmp_path), tmp_path / "tiny.gguf"))
    prompts = prompts_for(4)
    assert generate(core, prompts, GREEDY) == [greedy(model, prompt, 40) for prompt in prompts]


def test_one_block_slot_and_one_token_steps(folder: Path, expected: list[list[int]]) -> None:
    core = make_core(folder, num_blocks=200, block_size=1, max_num_batched_tokens=1, max_num_seqs=2)
    assert generate(core, prompts_for(12)[:2], GREEDY) == expected[:2]


def test_seeded_answers_are_the_same_alone_and_under_preemption(folder: Path) -> None:
    params = [
        SamplingParams(temperature=1.0, max_tokens=30, seed=5, ignore_eos=True),
        SamplingParams(temperature=0.8, top_k=20, max_tokens=30, seed=6, ignore_eos=True),
        SamplingParams(temperature=1.2, top_p=0.8, max_tokens=30, seed=7, ignore_eos=True),
        SamplingParams(temperature=0.7, top_p=0.9, top_k=50, max_tokens=30, seed=-8, ignore_eos=True),
        SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True),
    ] * 2
    prompts = prompts_for(10)
    alone = []
    for prompt, one in zip(prompts, params, strict=True):
        alone += generate(make_core(folder), [prompt], one)
    crowded = make_core(folder, num_blocks=40, block_size=8, max_num_batched_tokens=20, max_num_seqs=8)
    assert generate(crowded, prompts, params, every=2) == alone
    assert crowded.scheduler.counters.preemptions > 0


def test_unseeded_answers_differ_but_repeat_after_a_restart(folder: Path) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True)
    runs = [generate(make_core(folder), [[5, 6, 7]] * 10, params) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len({tuple(answer) for answer in runs[0]}) > 5


def test_each_token_of_a_seeded_answer_is_drawn_anew(folder: Path) -> None:
    params = SamplingParams(temperature=100.0, max_tokens=30, seed=1, ignore_eos=True)
    (answer,) = generate(make_core(folder), [[5]], params)
    assert len(set(answer)) > 20


def test_swapped_sequences_go_on_exactly(folder: Path, expected: list[list[int]]) -> None:
    core = make_core(folder, num_blocks=45, block_size=8, max_num_batched_tokens=24, max_num_seqs=7, swap_space="8Mi")
    core.scheduler.costs.compute_s_per_token = 1e9  # recomputing is never cheaper
    assert generate(core, prompts_for(12), GREEDY, every=3) == expected
    assert core.scheduler.counters.preemptions_swap > 0
    assert core.scheduler.swap is not None
    assert core.scheduler.swap.pool.num_used == 0


@pytest.mark.parametrize("changes", [{}, {"enable_prefix_caching": False}, {"swap_space": "8Mi"}], ids=str)
def test_siblings_answer_as_separate_requests_do(folder: Path, changes: dict[str, Any]) -> None:
    """n = 4: seeded answers of one request are those of four, in a crowded pool with preemption too."""
    params = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=30, seed=5, ignore_eos=True)
    prompts = prompts_for(5)
    alone = [
        [generate(make_core(folder), [prompt], msgspec.structs.replace(params, seed=seed))[0] for seed in (5, 6, 7, 8)]
        for prompt in prompts
    ]
    assert len({tuple(answer) for answers in alone for answer in answers}) == 20
    core = make_core(folder, num_blocks=40, block_size=8, max_num_batched_tokens=32, max_num_seqs=8, **changes)
    assert families(core, prompts, params) == alone
    assert 10 <= core.scheduler.counters.forks <= 15  # siblings that find no place compute the prompt again
    assert core.scheduler.counters.preemptions > 0
    assert (core.scheduler.counters.preemptions_swap > 0) == ("swap_space" in changes)


def families(core: EngineCore, prompts: list[list[int]], params: SamplingParams) -> list[list[list[int]]]:
    """Answers of one request for each prompt, with three siblings each."""
    for index, prompt in enumerate(prompts):
        others = tuple(
            Sibling(request_id=f"{index}-{number}", seed=(params.seed or 0) + number) for number in (1, 2, 3)
        )
        core.add(
            AddRequest(request_id=f"{index}-0", prompt_token_ids=prompt, params=params, arrival_s=0.0, siblings=others)
        )
    answers: list[list[list[int]]] = [[[] for _ in range(4)] for _ in prompts]
    while core.has_work:
        for delta in core.step().deltas:
            assert delta.error is None, delta.error
            index, number = map(int, delta.request_id.split("-"))
            answers[index][number] += delta.token_ids
    assert core.scheduler.kv.pool.num_used == 0
    return answers
