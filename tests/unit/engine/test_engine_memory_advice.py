"""What a plan is refused with leads to a start, which is of use; and more memory is never less of anything."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.config import EngineConfig, parse_bytes
from quire.engine.advice import for_full_length, plan_or_advise
from quire.engine.budget import HostBudget
from quire.engine.host import HostMemory
from quire.engine.memory import MemoryPlan, plan
from quire.engine.need import USEFUL_LEN, Need
from quire.errors import ModelError
from quire.models import decoder
from quire.models.description import DecoderDescription
from quire_testing.memory_plans import MIB, SMOL, number, planned, refused, tried

SIZED = ("kv_cache_memory", "swap_space", "grammar_memory")
OWN_FLAG = ("--num-blocks", "--kv-cache-memory", "--swap-space", "--grammar-memory")


def pieces(message: str) -> list[dict[str, Any]]:
    """What the sentence advises, as changes of a start."""
    found: list[dict[str, Any]] = []
    for flag, value in re.findall(r"(--[a-z-]+) ([a-z0-9]\S*?)(?= fits|,? and so|, or|$)", message.partition("; ")[2]):
        name = flag.removeprefix("--").replace("-", "_")
        found.append({name: int(value) if value.isdigit() and name not in SIZED else value})
    if "leave it out" in message:
        found.append({message.split()[0].removeprefix("--").replace("-", "_"): None})
    for amount in re.findall(r"\bto ([\d,]+) MiB", message.partition("; ")[2]):
        found.append({"mib": int(amount.replace(",", ""))})
    return found


SIZES = st.integers(1, 3000).flatmap(lambda n: st.sampled_from([f"{n}Mi", f"{n}Ki", f"{n * 977}"]))
GRAMMARS = st.sampled_from(["16Mi", "40Mi", "64Mi", "256Mi", "1Gi"])


@settings(max_examples=300, deadline=None)
@given(
    mib=st.integers(300, 2500),
    limited=st.booleans(),
    loading_mib=st.sampled_from([0, 100, 500]),
    asked=st.fixed_dictionaries(
        {},
        optional={
            "max_model_len": st.integers(1, 8192),
            "num_blocks": st.integers(1, 1500),
            "kv_cache_memory": SIZES,
            "swap_space": SIZES,
            "grammar_memory": GRAMMARS,
            "max_num_batched_tokens": st.sampled_from([64, 512, 8192]),
            "max_num_seqs": st.sampled_from([1, 64, 512]),
            "dtype": st.just("bfloat16"),
        },
    ),
)
def test_whatever_is_advised_leads_to_a_start(mib: int, limited: bool, loading_mib: int, asked: dict[str, Any]) -> None:
    start: dict[str, Any] = {"mib": mib, "limited": limited, "loading_mib": loading_mib, **asked}
    message = tried(**start)
    said_pool = "num_blocks" in asked or "kv_cache_memory" in asked
    for piece in pieces(message) if message else []:
        if limited and "mib" in piece:
            piece["mib"] -= 300  # the limit is that much more than what is available
        again, changes = message, piece
        for _ in range(4):
            start_now = {**start, **changes}
            again = tried(**start_now)
            if not again:
                break
            two_faults = said_pool and again.startswith("--max-model-len ")  # a pool that is too small for a length
            assert message.startswith(OWN_FLAG) or two_faults, f"{message} -> {changes} -> {again}"
            more = pieces(again)
            assert more, f"{message} -> {changes} -> {again}"
            changes = {**changes, **more[0]}
        assert not again, f"{message} -> {changes} -> {again}"
        if not said_pool and not message.startswith(OWN_FLAG):
            useful = min(USEFUL_LEN, asked.get("max_model_len", USEFUL_LEN))
            assert planned(**{**start, **changes}).max_model_len >= useful, f"{message} -> {changes}"


@pytest.mark.parametrize("memory", ["64Mi", "256Mi", "1Gi"])
@pytest.mark.parametrize("wanted", [1024, 4096, 8192])
def test_what_is_advised_has_room_for_the_grammars_that_were_asked_for(memory: str, wanted: int) -> None:
    start: dict[str, Any] = {"max_model_len": wanted, "grammar_memory": memory}
    advised = 0
    for mib in range(300, 1500, 30):
        message = tried(mib, **start)
        if not message.startswith("--max-model-len"):
            continue
        for piece in pieces(message):
            if "mib" in piece:
                piece["mib"] -= 300
            found = planned(**{"mib": mib, **start, **piece})
            assert found.grammars >= 3 * parse_bytes(memory, flag=""), f"{mib}: {message} -> {piece}"
            advised += 1
    assert advised


@pytest.mark.parametrize("model", [SMOL, replace(SMOL, num_layers=8), replace(SMOL, num_kv_heads=1, num_layers=6)])
def test_all_of_the_length_is_not_advised_at_the_price_of_structured_outputs(model: DecoderDescription) -> None:
    settings, kinds = EngineConfig(model="smol"), set()
    need = Need(model, settings, decoder.footprint(model, torch.float32), 4)
    for mib in range(300, 2000, 7):
        budget = HostBudget(HostMemory(available=mib * MIB, limited=True, limit=mib * MIB))
        try:
            now = plan_or_advise(need, [], budget)
        except ModelError:
            continue
        if now.max_model_len == 8192:
            continue
        remedy = for_full_length(need, budget)
        if remedy == "--max-model-len 8192":
            found = planned(mib, model=model, max_model_len=8192)
            assert found.grammars > 0 or now.grammars == 0
        else:
            found = planned(number(r"^raise the limit to ([\d,]+) MiB$", remedy), model=model)
            assert found.grammars > 0
        assert found.max_model_len == 8192
        kinds.add(remedy.split()[0])
    assert "raise" in kinds


@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(1, 40),
    heads=st.sampled_from([1, 3, 9]),
    length=st.sampled_from([256, 2048, 8192, 1 << 17]),
    limited=st.booleans(),
    asked=st.fixed_dictionaries(
        {},
        optional={
            "swap_space": st.just("20Mi"),
            "max_num_seqs": st.sampled_from([1, 64]),
            "grammar_memory": st.just("16Mi"),
        },
    ),
    step=st.integers(3, 9),
)
def test_no_pool_and_no_length_is_smaller_in_more_memory(
    layers: int, heads: int, length: int, limited: bool, asked: dict[str, Any], step: int
) -> None:
    model = replace(SMOL, num_layers=layers, num_kv_heads=heads, max_model_len=length)
    need = Need(model, EngineConfig(model="smol", **asked), decoder.footprint(model, torch.float32), 4)
    before: MemoryPlan | None = None
    for mib in range(250, 1500, step):
        try:
            now = plan(need, HostBudget(HostMemory(available=mib * MIB, limited=limited, limit=mib * MIB)))
        except ModelError:
            assert before is None, f"{mib}: it starts with less"
            continue
        if before is not None:
            assert now.num_blocks >= before.num_blocks, mib
            assert now.max_model_len >= before.max_model_len, mib
            assert (now.grammars > 0) >= (before.grammars > 0), mib
        before = now


def test_no_length_is_advised_that_is_of_no_use() -> None:
    lengths = set()
    for mib in range(790, 1000, 5):
        message = tried(mib, max_model_len=4096, others=False)
        if (found := re.search(r"--max-model-len (\d+) fits", message)) is not None:
            assert planned(mib, max_model_len=int(found[1])).max_model_len >= USEFUL_LEN
            lengths.add(int(found[1]))
    assert min(lengths) < USEFUL_LEN + 120, "as soon as one is of use"
    assert "--max-model-len 80 fits" in refused(4000, max_model_len=100, num_blocks=5), "no more was asked for"
