"""Batch invariance: log probabilities of greedy requests are the same bits alone and in any batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from quire.config import EngineConfig
from quire.engine.core import EngineCore
from quire.engine.startup import build
from quire.errors import ConfigError
from quire.models.cpu_decoder import CPUDecoder
from quire.models.executor import Batch, KVPool
from quire.request import AddRequest, SamplingParams, TokenLogprobs
from quire_testing.cores import make_core
from quire_testing.tiny_gguf import save_gguf
from quire_testing.tiny_models import VOCAB, make, save

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=20)
NATIVE = [
    "llama",
    "mistral-window",
    "qwen3-biases",
    "gemma2",
    "gemma3",
    "phi3-longrope",
    "glm4",
    "olmo2",
    "smollm3-window",
    "mixtral",
    "qwen3-moe-shares",
]
"""Windows, biases, softcaps, norms of every placement, partial rotation, layers without positions, experts: what the plan knows."""


NUMBERS: dict[str, dict[str, str]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "auto", "quantization": "int8"},
    "int4": {"dtype": "auto", "quantization": "int4"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save(make(name), tmp_path_factory.mktemp(name)) for name in NATIVE}


@pytest.fixture(scope="module")
def folder(folders: dict[str, Path]) -> Path:
    return folders["llama"]


@pytest.fixture(scope="module")
def quantised_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, model = tmp_path_factory.mktemp("gguf"), make("llama")
    return save_gguf(model, save(model, place / "folder"), place / "tiny.gguf", types=["Q4_1", "Q8_0", "Q4_0", "Q5_1"])


def told(core: EngineCore, prompts: list[list[int]], every: int) -> list[list[TokenLogprobs]]:
    """Log probabilities of greedy answers; every second prompt has a drawn one beside it, as company."""
    found: dict[str, list[TokenLogprobs]] = {str(i): [] for i in range(len(prompts))}
    waiting = []
    for i, prompt in enumerate(prompts):
        waiting.append(AddRequest(request_id=str(i), prompt_token_ids=prompt, params=GREEDY, arrival_s=0.0))
        if every and i % 2:
            drawn = SamplingParams(seed=i, max_tokens=9, top_p=0.9, ignore_eos=True)
            waiting.append(AddRequest(request_id=f"x{i}", prompt_token_ids=prompt[::-1], params=drawn, arrival_s=0.0))
    steps = 0
    while waiting or core.has_work:
        if waiting and (not core.has_work or (every and steps % every == 0)):
            core.add(waiting.pop(0))
        for delta in core.step().deltas:
            assert delta.error is None
            if delta.request_id in found:
                found[delta.request_id] += delta.logprobs or []
        steps += 1
    return list(found.values())


def prompts_for(seed: int) -> list[list[int]]:
    """Eight prompts, half of them with a common beginning."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, VOCAB) for _ in range(30)]
    return [
        (shared if i % 2 else []) + [rng.randrange(3, VOCAB) for _ in range(rng.randrange(1, 40))] for i in range(8)
    ]


def check_same_bits(folder: Path, **config: Any) -> None:
    prompts = prompts_for(1)
    config["max_model_len"] = 160  # longrope's factors depend on it
    alone = told(make_core(folder, enable_prefix_caching=False, **config), prompts, every=0)
    tight = {"num_blocks": 24, "block_size": 8, "max_num_batched_tokens": 20, "max_num_seqs": 7}
    core = make_core(folder, **tight, **config)
    assert told(core, prompts, every=1) == alone
    assert core.scheduler.counters.preemptions > 0
    assert core.scheduler.counters.prefix_hits > 0


@pytest.mark.parametrize("numbers", ["float32", "bfloat16", "int4"])
@pytest.mark.parametrize("name", NATIVE)
def test_the_same_bits_alone_and_in_a_crowd(folders: dict[str, Path], name: str, numbers: str) -> None:
    check_same_bits(folders[name], **NUMBERS[numbers])


def test_the_same_bits_of_a_file_of_several_formats(quantised_file: Path) -> None:
    check_same_bits(quantised_file, cpu_threads=2, dtype="auto")


@pytest.mark.parametrize("numbers", NUMBERS)
def test_the_same_bits_on_two_threads(folder: Path, numbers: str) -> None:
    check_same_bits(folder, cpu_threads=2, **NUMBERS[numbers])


def test_the_same_bits_in_half_precision(folder: Path) -> None:
    check_same_bits(folder, cpu_threads=2, dtype="float16", kv_cache_dtype="bfloat16")


def info_of(folder: Path, **config: Any) -> dict[str, str]:
    """What /metrics says of an engine."""
    settings = {"dtype": "float32", "device": "cpu", "cpu_threads": 1, "num_blocks": 64, **config}
    return build(EngineConfig(model=str(folder), **settings))[1].info


def test_it_is_the_default_where_the_plan_computes_and_is_told(folder: Path) -> None:
    for deterministic, expected in ((None, "true"), (True, "true"), (False, "false")):
        info = info_of(folder, deterministic=deterministic)
        assert (info["executor"], info["deterministic"]) == ("plan", expected)
    info = info_of(folder, model_impl="transformers")
    assert (info["executor"], info["deterministic"]) == ("transformers", "false")


def test_the_flag_starts_where_it_holds(folder: Path) -> None:
    core = make_core(folder, deterministic=True)
    assert not core.has_work
    assert core.scheduler.kv.pool.num_used == 0


def test_the_flag_refuses_where_it_does_not_hold(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = CPUDecoder.forward

    def wavers(self: CPUDecoder, batch: Batch, kv: KVPool) -> Tensor:
        """Hidden states whose last bits depend on the number of tokens in the step."""
        return exact(self, batch, kv) * (1.0 + 2.0**-20 * (len(batch.token_ids) % 2))

    monkeypatch.setattr(CPUDecoder, "forward", wavers)
    with pytest.raises(ConfigError, match=r"--deterministic: answers depend on the batch here \(token \d of a probe"):
        make_core(folder, deterministic=True)
