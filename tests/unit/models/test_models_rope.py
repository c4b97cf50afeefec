"""Rotations of every kind are those of transformers, also beyond the length of the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from quire.errors import ModelError
from quire.models.metadata import Fields
from quire.models.rope import make_tables
from quire.models.rope_scaling import rope_from_config, stretched_len

HEAD_SIZE = 32
TRAINED = 64
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.05 * i for i in range(16)],
    "long_factor": [1.5 + 0.4 * i for i in range(16)],
    "original_max_position_embeddings": TRAINED,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}

CASES: dict[str, tuple[dict[str, Any], int, int]] = {
    # the section, max_position_embeddings, positions served
    "default": ({"rope_type": "default"}, 512, 300),
    "linear-partial": ({"rope_type": "linear", "factor": 3.0, "partial_rotary_factor": 0.5}, 512, 300),
    "linear": ({"rope_type": "linear", "factor": 3.0}, 512, 300),
    "dynamic-short": ({"rope_type": "dynamic", "factor": 4.0}, TRAINED, TRAINED),
    "dynamic-long": ({"rope_type": "dynamic", "factor": 4.0}, TRAINED, 200),
    "yarn": (YARN, 256, 256),
    "yarn-own-attention": (YARN | {"attention_factor": 1.3, "beta_fast": 16.0, "beta_slow": 2.0}, 256, 256),
    "yarn-mscale": (YARN | {"mscale": 0.8, "mscale_all_dim": 0.5}, 256, 256),
    "yarn-not-truncated": (YARN | {"truncate": False}, 256, 256),
    "longrope-short": (LONGROPE, 512, TRAINED),
    "longrope-long": (LONGROPE, 512, TRAINED + 1),
    "longrope-factor": (LONGROPE | {"factor": 3.0}, 512, 200),
    "longrope-own-attention": (LONGROPE | {"attention_factor": 1.1}, 512, 200),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": TRAINED,
        },
        512,
        300,
    ),
}


def rope_fields(section: dict[str, Any], max_len: int, *, old: bool) -> Fields:
    """The parts of a config.json that matter, as transformers 5 writes them or as 4 did."""
    values: dict[str, Any] = {"max_position_embeddings": max_len}
    if old:
        inner = {key: value for key, value in section.items() if key not in ("rope_type", "partial_rotary_factor")}
        values |= {"rope_theta": 5000.0, "rope_scaling": inner | {"type": section["rope_type"]}}
        values |= {key: section[key] for key in ("partial_rotary_factor",) if key in section}
    else:
        values["rope_parameters"] = section | {"rope_theta": 5000.0}
    return Fields(values, Path("config.json"))


@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("case", CASES)
def test_tables_are_those_of_transformers(case: str, old: bool) -> None:
    section, max_len, served = CASES[case]
    config = transformers.LlamaConfig(
        hidden_size=4 * HEAD_SIZE,
        num_attention_heads=4,
        max_position_embeddings=max_len,
        rope_parameters=section | {"rope_theta": 5000.0},
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(served)[None])
    ours = make_tables(rope_from_config(rope_fields(section, max_len, old=old), HEAD_SIZE), served, torch.device("cpu"))
    half = cos.shape[-1] // 2
    torch.testing.assert_close(ours[0], cos[0, :, :half], rtol=0, atol=1e-4)
    torch.testing.assert_close(ours[1], sin[0, :, :half], rtol=0, atol=1e-4)


def test_a_scaling_changes_what_it_should() -> None:
    """Guards the comparison: no two kinds have the same tables."""
    tables = [
        make_tables(rope_from_config(rope_fields(section, max_len, old=False), HEAD_SIZE), served, torch.device("cpu"))
        for case, (section, max_len, served) in CASES.items()
        if case not in ("dynamic-short",)
    ]
    corners = {tuple(cos[60].tolist()) for cos, _ in tables}
    assert len(corners) == len(tables)


@pytest.mark.parametrize(
    ("section", "max_len", "expected"),
    [
        ({"rope_type": "dynamic", "factor": 4.0}, 64, 256),
        (YARN, 64, 256),
        (YARN, 1000, 1000),
        (LONGROPE, 512, 512),
        ({"rope_type": "linear", "factor": 4.0}, 64, 64),
    ],
)
def test_declared_length(section: dict[str, Any], max_len: int, expected: int) -> None:
    assert stretched_len(rope_fields(section, max_len, old=False)) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"short_factor": None}, r"short_factor must be a list of 16 positive numbers, got None"),
        ({"long_factor": [1.0] * 15 + [0]}, r"long_factor must be a list of 16 positive numbers"),
        ({"long_factor": [1.0] * 3}, r"long_factor must be a list of 16 items"),
        ({"partial_rotary_factor": 1.5}, r"partial_rotary_factor must be above 0 and at most 1, got 1.5"),
        ({"rope_type": "linear"}, r"factor is missing"),
    ],
)
def test_bad_sections_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        rope_from_config(rope_fields(LONGROPE | changes, 512, old=False), HEAD_SIZE)
