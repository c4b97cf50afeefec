"""Batch invariance: log probabilities of greedy requests are the same bits alone and in any batch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import Tensor

from quire.engine.core import EngineCore
from quire.errors import ConfigError
from quire.models.cpu_decoder import CPUDecoder
from quire.models.executor import Batch, KVPool
from quire.request import AddRequest, SamplingParams, TokenLogprobs
from quire_testing.cores import make_core
from quire_testing.tiny_llama import VOCAB, make_model, save_folder

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=20)


NUMBERS: dict[str, dict[str, str]] = {
    "float32": {},
    "int8": {"dtype": "auto", "quantization": "int8"},
    "int4": {"dtype": "auto", "quantization": "int4"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield save_folder(make_model(), tmp_path_factory.mktemp("tiny"))


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


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits_alone_and_in_a_crowd(folder: Path, threads: int, numbers: str) -> None:
    model, flags = folder, {"cpu_threads": threads, **NUMBERS[numbers]}
    rng = random.Random(1)
    shared = [rng.randrange(3, VOCAB) for _ in range(30)]
    prompts = [
        (shared if i % 2 else []) + [rng.randrange(3, VOCAB) for _ in range(rng.randrange(1, 40))] for i in range(8)
    ]
    alone = told(make_core(model, enable_prefix_caching=False, **flags), prompts, every=0)
    core = make_core(model, num_blocks=24, block_size=8, max_num_batched_tokens=20, max_num_seqs=7, **flags)
    assert told(core, prompts, every=1) == alone
    assert core.scheduler.counters.preemptions > 0
    assert core.scheduler.counters.prefix_hits > 0


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
