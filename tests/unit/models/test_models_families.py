"""Every architecture computes what transformers computes: logits at every position, and greedy answers in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quire.models.loader import inspect
from quire.models.source import resolve
from quire.request import SamplingParams
from quire_testing.cores import generate, make_core
from quire_testing.fidelity import BLOCK_SIZE, our_logits, prompts_for
from quire_testing.tiny_models import FAMILIES, SIZES, greedy_tokens, make, reference_logits, save

NUM_TOKENS = 64
NUM_POSITIONS = 256
EOS = SIZES["eos_token_id"]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """transformers' model, and the folder it was saved to."""
    model = make(request.param)
    return model, save(model, tmp_path_factory.mktemp(request.param))


def test_logits_at_every_position(family: tuple[Any, Path]) -> None:
    model, folder = family
    sequences = prompts_for(3)
    expected = [reference_logits(model, sequence) for sequence in sequences]
    assert expected[0].std() > 0.3
    for chunk in (1000, 13):
        for ours, theirs in zip(our_logits(folder, sequences, chunk, NUM_POSITIONS), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_greedy_in_a_mixed_batch_with_chunks_hits_and_preemption(family: tuple[Any, Path]) -> None:
    model, folder = family
    prompts = prompts_for(8)
    core = make_core(
        folder,
        max_model_len=NUM_POSITIONS,
        num_blocks=50,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=24,
        max_num_seqs=6,
    )
    answers = generate(core, prompts, SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS), every=3)
    assert answers == [greedy_tokens(model, *pair) for pair in zip(prompts, answers, strict=True)]
    assert all(len(answer) == NUM_TOKENS or answer[-1] == EOS for answer in answers)
    assert len({tuple(answer) for answer in answers}) > 4
    assert core.scheduler.counters.preemptions > 0
    assert core.scheduler.counters.prefix_hits > 0


def test_the_description_counts_the_parameters(family: tuple[Any, Path]) -> None:
    model, folder = family
    assert inspect(resolve(str(folder))).description.num_parameters() == model.num_parameters()
