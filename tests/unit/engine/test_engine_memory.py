"""The memory plan: what it adds up, and what it says where that is too much."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from quire.config import EngineConfig, parse_bytes
from quire.engine.budget import GPUBudget, at_least, at_most
from quire.engine.grammar.limits import nursery_memory
from quire.engine.memory import MemoryPlan
from quire.engine.need import USEFUL_LEN, Need, sampling_bytes
from quire.engine.prompt_logprobs import PromptSpan, prompt_logprobs
from quire.engine.sampling import Sampler
from quire.engine.sampling.processors import default_processors
from quire.models import decoder
from quire.models.description import Rope
from quire.models.rope import make_tables
from quire.request import SamplingParams
from quire_testing.memory_plans import MIB, SMOL, number, planned, refused, tried
from quire_testing.peak_memory import PeakMemory
from quire_testing.rows import make_row


def test_the_sum() -> None:
    result = planned(4000)
    assert result.weights == 4 * (SMOL.num_parameters() + 49152 * 576)
    assert result.kv_pool == result.num_blocks * 16 * SMOL.kv_elements_per_token() * 4
    assert result.total <= 0.9 * 4000 * MIB
    assert result.total > 0.9 * 4000 * MIB - 2 * MIB
    assert result.max_model_len == 8192
    assert str(result).startswith("memory plan: weights 621 MiB + activations ")
    assert f"({result.num_blocks} blocks of 16 tokens)" in str(result)
    assert "of 4,000 MiB available" in str(result)


def test_without_a_limit_the_pool_is_modest_and_never_larger_than_of_use() -> None:
    assert planned(8000, limited=False).kv_pool <= 0.25 * 8000 * MIB
    assert planned(4_000_000, limited=False, max_num_seqs=2, max_model_len=1024).num_blocks == 128
    assert planned(4_000_000, max_num_seqs=1).num_blocks == 512


def test_a_smaller_pool_shortens_the_model_only_where_no_length_was_asked_for() -> None:
    result = planned(1000)
    assert result.max_model_len == result.num_blocks * 16 < 8192
    message = refused(1000, max_model_len=8192)
    fits = number(r"--max-model-len (\d+) fits, and so does --dtype bfloat16, or ", message)
    assert message.startswith("--max-model-len 8192 needs a KV pool of 360 MiB (512 blocks)")
    assert planned(1000, max_model_len=fits).max_model_len == fits
    needed = number(r", or raise the limit to ([\d,]+) MiB$", message)
    assert planned(needed - 300, max_model_len=8192).max_model_len == 8192
    assert needed - 300 < 1300


def test_without_a_limit_a_pool_holds_a_sequence_of_the_length_that_was_asked_for() -> None:
    """A quarter of what is free is no reason to refuse a length for which there is room."""
    assert planned(1250, limited=False).max_model_len < 8192
    asked = planned(1250, limited=False, max_model_len=8192)
    assert (asked.num_blocks, asked.max_model_len) == (512, 8192)
    assert asked.total <= 0.9 * 1250 * MIB
    message = refused(1000, limited=False, max_model_len=8192)
    needed = number(r", or free memory to ([\d,]+) MiB$", message)
    assert planned(needed, limited=False, max_model_len=8192).num_blocks == 512
    assert planned(8000, limited=False, max_model_len=1024).kv_pool <= 0.25 * 8000 * MIB


def test_a_length_that_an_explicit_pool_does_not_hold_names_the_flag_that_helps() -> None:
    message = refused(4000, max_model_len=8192, kv_cache_memory="100Mi")
    pool = re.search(r"so does --kv-cache-memory (\d+Mi)$", message).group(1)  # type: ignore[union-attr]
    assert planned(4000, max_model_len=8192, kv_cache_memory=pool).max_model_len == 8192
    message = refused(1000, max_model_len=8192, num_blocks=10)
    assert message.endswith("; --max-model-len 160 fits"), (
        "more blocks do not fit, and more memory alone changes nothing"
    )


def gpu(utilization: float = 0.9, *, total_mib: int = 2000, used_mib: int = 100) -> GPUBudget:
    return GPUBudget(free=(total_mib - used_mib) * MIB, total=total_mib * MIB, utilization=utilization)


@pytest.mark.parametrize("utilization", [0.6, 0.9, 1.0])
def test_a_gpu_is_used_up_to_its_share_and_no_further(utilization: float) -> None:
    """The flag is the whole of the margin: nothing is taken off a second time."""
    result = planned(0, gpu=gpu(utilization), max_model_len=1024)
    share = int(2000 * MIB * utilization) - 100 * MIB
    assert result.available == share
    assert share - 2 * MIB < result.total <= share


def test_what_does_not_fit_a_gpu_names_its_flag_and_no_container() -> None:
    message = refused(0, gpu=gpu(0.3), others=False)
    assert (
        "are more than the 500 MiB that --gpu-memory-utilization 0.3 leaves of the GPU's 2,000 MiB, 100 MiB of which are in use; "
        "raise --gpu-memory-utilization to " in message
    )
    assert "container" not in message
    assert "limit" not in message
    shares = re.search(
        r"utilization to ([\d.]+) \(to ([\d.]+) for all of its 8,192 tokens\), or take a smaller", message
    )
    assert shares
    assert USEFUL_LEN <= planned(0, gpu=gpu(float(shares[1]))).max_model_len < 8192
    assert planned(0, gpu=gpu(float(shares[2]))).max_model_len == 8192
    message = refused(0, gpu=gpu(0.45), max_model_len=8192)
    found = re.search(
        r" fits, or raise --gpu-memory-utilization to ([\d.]+)$", message.replace(", and so does --dtype bfloat16", "")
    )
    assert found
    assert planned(0, gpu=gpu(float(found[1])), max_model_len=8192).max_model_len == 8192


def test_a_gpu_that_others_use_or_that_is_too_small() -> None:
    message = refused(0, gpu=gpu(0.9, used_mib=1600))
    assert "leaves of the GPU's 2,000 MiB, 1,600 MiB of which are in use; free memory of the GPU, and raise" in message
    message = refused(0, gpu=gpu(0.9, total_mib=600))
    assert message.endswith("; --dtype bfloat16 fits")
    assert refused(0, gpu=gpu(0.9, total_mib=300)).endswith("; take a smaller model")
    assert refused(0, gpu=gpu(0.1, total_mib=200, used_mib=190)).endswith("; take a smaller model")


def test_what_is_read_must_fit_while_it_is_read() -> None:
    """Before there are pools and activations, the largest matrix exists twice or three times."""
    small, large = (planned(1250, loading_mib=size, num_blocks=100) for size in (100, 480))
    assert small.peak == small.total == large.total, "pools are made after it"
    assert large.peak == large.weights + large.tables + 480 * MIB > large.total
    assert "while weights are read" not in str(small)
    assert f"({large.peak / MIB:,.0f} MiB while weights are read)" in str(large)
    message = refused(1250, loading_mib=520, num_blocks=100)
    assert message.startswith("smol does not fit the memory while it is read: weights 621 MiB + position tables ")
    assert " + 520 MiB to read the largest of them = 1,142 MiB are more than 90% of the 1,250 MiB" in message
    needed = number(r"; --dtype bfloat16 fits, or raise the limit to ([\d,]+) MiB$", message)
    assert planned(needed - 300, loading_mib=520, num_blocks=100).peak <= 0.9 * (needed - 300) * MIB


def test_weights_that_do_not_fit() -> None:
    message = refused(500)
    assert message.startswith("smol does not fit the memory: weights 621 MiB + activations ")
    assert (
        "are more than 90% of the 500 MiB that the container's limit leaves; --dtype bfloat16 fits, or raise "
        in message
    )
    assert planned(500, dtype="bfloat16").max_model_len >= USEFUL_LEN
    needed = number(r"raise the limit to ([\d,]+) MiB", message)
    assert USEFUL_LEN <= planned(needed - 300).max_model_len < 600, "not more than it takes"
    whole = number(r" \(to ([\d,]+) MiB for all of its 8,192 tokens\)$", message)
    assert planned(whole - 300).max_model_len == 8192 > planned(whole - 310).max_model_len
    assert "for all of its" not in refused(500, max_model_len=8192), "that was asked for"
    message = refused(500, limited=False, others=False)
    assert "are free; free memory to" in message
    whole = number(r" \(to ([\d,]+) MiB for all of its 8,192 tokens\), or take a smaller model$", message)
    assert planned(whole, limited=False).max_model_len == 8192, "a pool of default size is a quarter then"
    assert planned(whole - 10, limited=False).max_model_len < 8192


def test_a_type_is_advised_only_where_it_fits() -> None:
    """The same type again is none, and one that cannot be read here neither."""
    assert "--dtype" not in refused(350)
    assert refused(350).endswith(", or take a smaller model")
    assert "--dtype" not in refused(350, dtype="bfloat16")
    least = next(mib for mib in range(300, 500) if not tried(mib, dtype="bfloat16"))
    assert planned(least, dtype="bfloat16").max_model_len < USEFUL_LEN
    assert "--dtype" not in refused(least), "it starts, and is of no use"
    reading = {"loading_mib": 2000, "num_blocks": 100}
    assert "--dtype" not in refused(1250, **reading), "too much to read in that type too"
    assert "--dtype" not in refused(1250, dtype="bfloat16", **reading)


def test_a_step_that_does_not_fit_names_one_that_does() -> None:
    message = refused(900, max_num_batched_tokens=8192)
    budget = number(r"--max-num-batched-tokens (\d+) fits", message)
    assert planned(900, max_num_batched_tokens=budget).max_model_len >= USEFUL_LEN
    wide = replace(SMOL, vocab_size=200_000)
    message = refused(2000, model=wide, max_num_seqs=512, max_num_batched_tokens=64)
    rows = number(r"--max-num-seqs (\d+) fits", message)
    assert planned(2000, model=wide, max_num_seqs=rows, max_num_batched_tokens=64).max_model_len >= USEFUL_LEN


def test_explicit_pools() -> None:
    assert planned(4000, num_blocks=40).num_blocks == 40
    assert planned(4000, kv_cache_memory="512Mi").kv_pool <= 512 * MIB
    assert planned(4000, kv_cache_memory="512Mi").kv_pool > 511 * MIB
    message = refused(2000, kv_cache_memory="4Gi")
    fits = re.search(r"--kv-cache-memory (\d+Mi) fits", message).group(1)  # type: ignore[union-attr]
    assert planned(2000, kv_cache_memory=fits).kv_pool <= parse_bytes(fits, flag="")
    message = refused(2000, num_blocks=100_000)
    blocks = int(re.search(r"--num-blocks (\d+) fits", message).group(1))  # type: ignore[union-attr]
    assert planned(2000, num_blocks=blocks).num_blocks == blocks
    assert "is less than one KV block (720.0 KiB); raise it" in refused(4000, kv_cache_memory="1Ki")
    assert "is less than one KV block (720.0 KiB); raise it" in refused(300, kv_cache_memory="1Ki"), "whatever there is"
    message = refused(4000, num_blocks=10, max_model_len=1000)
    assert message.endswith("--max-model-len 160 fits, and so does --num-blocks 63")


def test_sizes_of_flags_round_to_where_they_fit() -> None:
    assert (at_most(5 * MIB + 7, least=1), at_least(5 * MIB - 7, most=6 * MIB)) == ("5Mi", "5Mi")
    assert (at_most(900 * 1024 + 7, least=720 * 1024), at_most(1500, least=1100)) == ("900Ki", "1500")
    assert (at_least(720 * 1024, most=MIB - 1), at_least(1500, most=1600)) == ("720Ki", "1500")


@pytest.mark.parametrize("wanted_len", [5, 200, 8192])
def test_a_room_holds_as_many_blocks_as_fit_with_their_tables(wanted_len: int) -> None:
    config = EngineConfig(model="smol", max_model_len=wanted_len)
    need = Need(SMOL, config, decoder.footprint(SMOL, torch.float32), 4)
    assert need.blocks_in(-5, MIB) == 0
    for room in range(0, 40 * MIB, 99_991):
        count = need.blocks_in(room, 2 * MIB)
        assert need.pool_bytes(count) <= room < need.pool_bytes(count + 1)
        few = need.blocks_in(room, room // 1000)
        assert need.table_bytes(few) <= room // 1000
        assert few == count or need.table_bytes(few + 1) > room // 1000


def test_a_pool_or_swap_of_few_blocks_is_advised_in_a_size_that_holds_one() -> None:
    """A block is 720 KiB: what has room for one has not always room for a MiB."""
    bare = replace(SMOL, layer_ropes=(None,) * 30)
    least = next(mib for mib in range(650, 900) if not tried(mib, model=bare, num_blocks=1))
    for extra in range(4):
        for flag in ("kv_cache_memory", "swap_space"):
            message = refused(least + extra, model=bare, **{flag: "2Gi"})
            if (found := re.search(r"--[a-z-]+ (\d\S*) fits", message)) is not None:
                assert planned(least + extra, model=bare, **{flag: found[1]}).num_blocks >= 1


def test_swap_space_shares_the_memory_of_a_cpu() -> None:
    without, result = planned(4000), planned(4000, swap_space="512Mi")
    assert without.swap == without.num_swap_blocks == 0
    block = result.kv_pool // result.num_blocks
    assert result.num_swap_blocks == 512 * MIB // block
    assert result.swap == result.num_swap_blocks * block
    assert result.total == result.weights + result.activations + result.tables + result.kv_pool + result.swap
    assert result.total <= 0.9 * 4000 * MIB
    assert without.num_blocks - result.num_blocks == pytest.approx(result.num_swap_blocks, abs=1)
    assert f" + swap 512 MiB ({result.num_swap_blocks} blocks) = " in str(result)
    assert "swap" not in str(without)


def test_structured_outputs_have_half_of_what_is_left() -> None:
    result = planned(8000)
    assert result.nursery == nursery_memory(SMOL.vocab_size)
    assert result.grammars == (8000 * MIB - result.total - result.nursery) // 2
    both = (result.grammars + result.nursery) / MIB
    assert str(result).endswith(f" available, at most {both:,.0f} MiB beside it for structured outputs")
    assert planned(4000).grammars == 192 * MIB, "the usual, and more than half"
    on_gpu = planned(0, gpu=gpu(), apart_mib=2000, swap_space="512Mi", max_model_len=1024)
    assert on_gpu.grammars == (2000 * MIB - on_gpu.swap - on_gpu.nursery) // 2, "of main memory"


def beside(result: MemoryPlan) -> int:
    """What the plan leaves."""
    return result.available - result.total


@pytest.mark.parametrize("mib", [1000, 1100, 1200, 1300])
def test_a_pool_of_default_size_leaves_what_grammars_need_at_least(mib: int) -> None:
    result = planned(mib)
    assert 0.1 * mib < 132, "the rest is not enough"
    assert 48 * MIB <= result.grammars <= beside(result) - result.nursery < 50 * MIB


def test_but_not_where_it_would_be_of_no_use_then_nor_of_what_was_asked_for() -> None:
    tight = planned(820)
    assert (tight.grammars, tight.total > 0.9 * 819 * MIB) == (0, True)
    assert tight.max_model_len > 512
    assert str(tight).endswith(" available, too little beside it for structured outputs")
    half = planned(880)
    assert (half.grammars, half.num_blocks) == (0, 118), "more than half of it would go"
    short = planned(1076, model=replace(SMOL, num_layers=45))
    assert (short.grammars, short.num_blocks) == (0, 54), "less than half, but 512 tokens would not be left"
    asked = planned(1200, max_model_len=8192)
    assert asked.max_model_len == 8192
    pool = planned(1000, kv_cache_memory="150Mi")
    assert pool.grammars <= beside(pool) - pool.nursery


def test_memory_of_one_grammar_that_is_said_is_left_by_the_pool_or_refused_by_name() -> None:
    result = planned(4000, grammar_memory="1Gi")
    assert result.grammars == 3072 * MIB <= beside(result) - result.nursery
    message = refused(1500, grammar_memory="1Gi")
    assert message.startswith("--grammar-memory 1Gi does not fit: ")
    fits = re.search(r"--grammar-memory (\d+Mi) fits$", message).group(1)  # type: ignore[union-attr]
    found = planned(1500, grammar_memory=fits)
    assert found.grammars == 3 * parse_bytes(fits, flag="") <= beside(found) - found.nursery
    message = refused(1000, grammar_memory="64Mi", kv_cache_memory="180Mi")
    assert message.endswith("; leave it out, or take a smaller KV pool")
    assert planned(1500, grammar_memory="64Mi").grammars >= 192 * MIB
    message = refused(0, gpu=gpu(), apart_mib=2000, grammar_memory="1Gi")
    assert "but the memory plan leaves 2,000 MiB; --grammar-memory 638Mi fits" in message
    too_long = refused(0, gpu=gpu(0.45), apart_mib=2000, grammar_memory="1Gi", max_model_len=8192)
    assert too_long.startswith("--grammar-memory 1Gi does not fit: "), (
        "no other length, and no more of the GPU, changes that"
    )
    message = refused(1100, grammar_memory="40Mi", num_blocks=1000)
    assert "after weights and activations and --grammar-memory 40Mi " in message
    blocks = number(r"--num-blocks (\d+) fits$", message)
    assert planned(1100, grammar_memory="40Mi", num_blocks=blocks).grammars >= 120 * MIB


def test_swap_space_of_a_gpu_lies_in_the_hosts_memory() -> None:
    result = planned(4000, apart_mib=2000, swap_space="512Mi")
    assert result.num_blocks == planned(4000).num_blocks
    assert result.total == result.weights + result.activations + result.tables + result.kv_pool
    assert f"of 4,000 MiB available, swap 512 MiB ({result.num_swap_blocks} blocks) of the host's memory" in str(result)
    message = refused(4000, apart_mib=500, swap_space="512Mi")
    assert message == "--swap-space 512Mi does not fit: of the host's memory 450 MiB are left; --swap-space 450Mi fits"


def test_swap_space_that_does_not_fit() -> None:
    message = refused(2000, swap_space="4Gi")
    fits = re.search(r"--swap-space (\d+Mi) fits", message).group(1)  # type: ignore[union-attr]
    assert planned(2000, swap_space=fits).num_blocks >= 1
    assert "after weights, activations and one KV block" in message
    message = refused(2000, swap_space="1Ki")
    assert message == "--swap-space 1Ki is less than one KV block (720.0 KiB); raise it, or leave it out"
    message = refused(2000, swap_space="1000Mi", num_blocks=500)
    assert message.startswith("--swap-space 1000Mi does not fit: after weights, activations and 500 KV blocks ")
    fits = re.search(r"--swap-space (\d+Mi) fits", message).group(1)  # type: ignore[union-attr]
    assert planned(2000, swap_space=fits, num_blocks=500).num_blocks == 500
    message = refused(2000, swap_space="512Mi", num_blocks=100_000)
    assert "after weights and activations and --swap-space 512Mi" in message
    blocks = int(re.search(r"--num-blocks (\d+) fits", message).group(1))  # type: ignore[union-attr]
    assert planned(2000, swap_space="512Mi", num_blocks=blocks).num_blocks == blocks
    assert refused(500, swap_space="512Mi").startswith("smol does not fit the memory: weights 621 MiB")
    assert planned(4000, swap_space="0").num_swap_blocks == 0


def test_position_tables_are_counted_as_far_as_the_model_is_served() -> None:
    def size(result: MemoryPlan, *ropes: Rope) -> int:
        tables = [table for rope in ropes for table in make_tables(rope, result.max_model_len, torch.device("cpu"))]
        return sum(table.nbytes for table in tables)

    near, far = Rope(theta=1e4, dim=32), Rope(theta=1e6, dim=64)
    assert planned(4000).tables == size(planned(4000), SMOL.rope)
    assert planned(1000).tables == size(planned(1000), SMOL.rope) < planned(4000).tables
    two = replace(SMOL, layer_ropes=(near, far, None) * 10)
    assert planned(4000, model=two).tables == size(planned(4000, model=two), near, far)
    assert planned(4000, model=replace(SMOL, layer_ropes=(None,) * 30)).tables == 0
    assert "position tables" not in str(planned(4000, model=replace(SMOL, layer_ropes=(None,) * 30)))
    assert " + position tables 2 MiB + KV pool " in str(planned(4000))


@pytest.mark.parametrize("mib", [800, 1000, 4000, 40_000, 60_000])
def test_long_tables_and_the_pool_share_what_there_is(mib: int) -> None:
    long = replace(SMOL, max_model_len=1 << 20)
    result = planned(mib, model=long)
    spared = max(132 - 0.1 * mib, 0) if mib == 1000 else 0  # for grammars, where the pool is worth having then
    assert (0.9 * mib - spared - 2) * MIB < result.total <= (0.9 * mib - spared) * MIB
    assert result.tables == result.max_model_len * 64 * 4
    explicit = planned(mib, model=long, max_model_len=result.max_model_len)
    assert (explicit.total, explicit.max_model_len) == (result.total, result.max_model_len)


VOCAB = 4000
FLAT = torch.zeros(VOCAB).uniform_(-0.1, 0.1, generator=torch.Generator().manual_seed(0))
MIXES: dict[str, list[SamplingParams]] = {
    "greedy": [SamplingParams(temperature=0.0)],
    "plain": [SamplingParams()],
    "log probabilities": [SamplingParams(logprobs=20), SamplingParams(temperature=0.0)],
    "a wide top_p": [SamplingParams(top_p=0.99, min_p=0.01)],
    "typical_p": [SamplingParams(typical_p=0.9)],
    "penalties beside plain": [SamplingParams(presence_penalty=1.0), SamplingParams(top_k=50, logprobs=3)],
    "penalties, some greedy": [SamplingParams(temperature=t, repetition_penalty=1.2) for t in (0.0, 1.0, 1.0, 1.0)],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mix", MIXES)
def test_sampling_takes_no_more_than_planned(mix: str, dtype: torch.dtype) -> None:
    rows = [make_row(MIXES[mix][i % len(MIXES[mix])], seed=i, prompt=range(40)) for i in range(64)]
    settings = EngineConfig(model="smol", max_num_seqs=64, max_num_batched_tokens=4)
    budget = sampling_bytes(replace(SMOL, vocab_size=VOCAB), settings, dtype.itemsize)
    sampler = Sampler(default_processors())
    with PeakMemory() as peak:
        sampler(FLAT.expand(64, VOCAB).to(dtype, copy=True), rows)
    assert 64 * VOCAB * dtype.itemsize <= peak.most <= budget  # the logits at least, and no more for greedy ones


def test_the_log_probabilities_of_a_prompt_take_no_more_than_planned() -> None:
    class Executor:
        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(hidden), VOCAB)

    one = EngineConfig(model="smol", max_num_seqs=1)
    budget = sampling_bytes(replace(SMOL, vocab_size=VOCAB), one, 4)
    tokens = random.Random(0).choices(range(VOCAB), k=200)
    executor: Any = Executor()
    with PeakMemory() as peak:
        prompt_logprobs(executor, torch.zeros(200, 8), [PromptSpan(0, 0, tokens, 5)])
    assert peak.most <= budget
