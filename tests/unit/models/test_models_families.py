"""Every architecture computes what transformers computes: logits at every position, and greedy answers in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quire.models.loader import inspect
from quire.models.source import resolve
from quire_testing.fidelity import (
    NUM_POSITIONS,
    check_bfloat16,
    check_exact,
    crowded,
    our_logits,
    prompts_for,
    step_bytes,
)
from quire_testing.tiny_models import FAMILIES, make, reference_logits, save


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """transformers' model, and the folder it was saved to."""
    model = make(request.param)
    return model, save(model, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("executor", ["chosen", "modules"])
def test_logits_at_every_position(family: tuple[Any, Path], executor: str) -> None:
    model, folder = family
    sequences = prompts_for(3)
    expected = [reference_logits(model, sequence) for sequence in sequences]
    assert expected[0].std() > 0.3
    for chunk in (1000, 13):
        computed = our_logits(folder, sequences, chunk, NUM_POSITIONS, modules=executor == "modules")
        for ours, theirs in zip(computed, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_logits_and_answers_under_chunks_hits_preemption_and_swaps(family: tuple[Any, Path]) -> None:
    model, folder = family
    check_exact(crowded(folder), model)


def test_bfloat16_is_as_close_as_that_of_transformers(family: tuple[Any, Path]) -> None:
    model, folder = family
    check_bfloat16(crowded(folder, dtype="bfloat16"), model)


def test_a_step_takes_no_more_than_planned(family: tuple[Any, Path]) -> None:
    taken, planned = step_bytes(family[1])
    assert planned / 4 < taken <= planned


def test_the_description_counts_the_parameters(family: tuple[Any, Path]) -> None:
    model, folder = family
    assert inspect(resolve(str(folder))).description.num_parameters() == model.num_parameters()
