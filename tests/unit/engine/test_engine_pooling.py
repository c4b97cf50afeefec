"""Vectors of prompts from decoders: transformers' hidden states, whatever the steps they are computed in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM

from quire.config import EngineConfig
from quire.engine import audit
from quire.engine.core import EngineCore
from quire.engine.pooling.sequence import PooledSequence
from quire.engine.startup import build
from quire.errors import ConfigError, ModelError
from quire.models import loader, pooling
from quire.models.executor import Batch, KVPool
from quire.models.metadata import Fields
from quire.models.source import resolve
from quire.request import AddRequest, PoolRequest, SamplingParams
from quire_testing.cores import make_core
from quire_testing.fidelity import prompts_for
from quire_testing.pooling import vectors
from quire_testing.tiny_bert import reference_vector, write_modules
from quire_testing.tiny_gguf import save_gguf
from quire_testing.tiny_models import make, save

KINDS = ("last", "mean", "cls")
TOLERANCE = 2e-6
CROWDED: dict[str, Any] = {
    "num_blocks": 20,
    "block_size": 4,
    "max_model_len": 80,
    "max_num_batched_tokens": 24,
    "max_num_seqs": 6,
}
PROMPTS = [prompt for prompt in prompts_for(14) if len(prompt) <= 78]


@pytest.fixture(scope="module")
def model() -> Any:
    return make("qwen3")


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(model, tmp_path_factory.mktemp("qwen3"))


def assert_near(core: EngineCore, model: Any, kind: str, prompts: list[list[int]] = PROMPTS, **reference: Any) -> None:
    for prompt, found in zip(prompts, vectors(core, prompts), strict=True):
        expected = reference_vector(model, prompt, kind, **reference).numpy()
        np.testing.assert_allclose(found.values, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_transformers(folder: Path, model: Any, kind: str) -> None:
    assert_near(make_core(folder, pooling=kind), model.model, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_chunks_and_company_do_not_change_a_vector(folder: Path, kind: str) -> None:
    """Alone in one step, and in a pool that is too small, in chunks, with the prefix cache, preempted and swapped."""
    alone = make_core(folder, pooling=kind, enable_prefix_caching=False)
    expected = [vectors(alone, [prompt])[0].values for prompt in PROMPTS]
    for options in ({"enable_prefix_caching": False}, {}, {"scheduler_policy": "sjf"}, {"swap_space": "1Mi"}):
        core = make_core(folder, pooling=kind, **CROWDED, **options)
        core.scheduler.costs.swap_s_per_block = 0.0
        for found, right in zip(vectors(core, PROMPTS, every=1), expected, strict=True):
            if kind == "mean":  # of sums in another order
                np.testing.assert_allclose(found.values, right, atol=1e-7, rtol=0)
            else:
                np.testing.assert_array_equal(found.values, right)


@pytest.mark.parametrize("swap_space", [None, "1Mi"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_preempted_prompt_counts_each_of_its_tokens_once(folder: Path, kind: str, swap_space: str | None) -> None:
    """An urgent prompt takes the blocks of one that is half computed."""
    core = make_core(
        folder,
        pooling=kind,
        **{**CROWDED, "max_num_batched_tokens": 16},
        swap_space=swap_space,
        scheduler_policy="priority",
    )
    core.scheduler.costs.swap_s_per_block = 0.0
    long, urgent = [7, 9, 11, 5] * 15, [8, 6, 4] * 20
    [expected] = vectors(core, [long])
    core.reset_prefix_cache()
    core.pool(PoolRequest(request_id="long", prompt_token_ids=long, arrival_s=0.0, priority=5))
    for _ in range(2):
        core.step()
    core.pool(PoolRequest(request_id="urgent", prompt_token_ids=urgent, arrival_s=0.0))
    told = {}
    while core.has_work:
        told |= {delta.request_id: delta.vector for delta in core.step().deltas if delta.vector is not None}
    assert core.scheduler.counters.preemptions == 1 and list(told) == ["urgent", "long"]
    np.testing.assert_allclose(np.frombuffer(told["long"], "<f4"), expected.values, atol=1e-7, rtol=0)


def test_only_the_last_state_is_taken_behind_a_cached_prefix(folder: Path, model: Any) -> None:
    beginning = list(range(10, 58))
    prompts = [[*beginning, 3], [*beginning, 4], beginning]
    for kind in KINDS:
        core = make_core(folder, pooling=kind)
        first = vectors(core, [prompts[0]])[0]
        others = vectors(core, prompts[1:])
        assert first.num_cached == 0
        assert [other.num_cached for other in others] == ([48, 32] if kind == "last" else [0, 0])
        for prompt, found in zip(prompts[1:], others, strict=True):
            np.testing.assert_allclose(
                found.values, reference_vector(model.model, prompt, kind).numpy(), atol=TOLERANCE, rtol=0
            )


def test_salts_share_no_blocks(folder: Path) -> None:
    core = make_core(folder, pooling="last")
    prompt = list(range(10, 58))
    counts = [vectors(core, [prompt], cache_salt=salt)[0].num_cached for salt in (None, "a", "a", "b", None)]
    assert counts == [0, 0, 32, 0, 32]


def test_torch_modules_and_transformers_pool_too(folder: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_near(make_core(folder, pooling="mean", model_impl="transformers"), model.model, "mean", PROMPTS[:4])
    monkeypatch.setattr("quire.models.cpu_decoder.unsupported", lambda _: "the test says so")
    core = make_core(folder, pooling="mean")
    assert type(core.runner._runner.executor).__name__ == "Decoder"  # type: ignore[attr-defined]
    assert_near(core, model.model, "mean", PROMPTS[:4])


@pytest.mark.parametrize(("value", "kind"), [(None, None), (0, None), (1, "mean"), (2, "cls"), (3, "last")])
def test_a_gguf_file_may_say_how_it_is_pooled(value: int | None, kind: str | None) -> None:
    metadata = {"general.architecture": "qwen3", "qwen3.pooling_type": value}
    found = pooling.from_gguf(Fields(metadata, Path("a.gguf")))
    assert (None if found is None else found.kind) == kind


def test_a_gguf_file_with_another_pooling() -> None:
    with pytest.raises(
        ModelError, match=r"a\.gguf: qwen3\.pooling_type must be 1 \(mean\), 2 \(cls\) or 3 \(last\), got 4"
    ):
        pooling.from_gguf(Fields({"general.architecture": "qwen3", "qwen3.pooling_type": 4}, Path("a.gguf")))


def test_a_gguf_file_is_pooled_by_the_flag(tmp_path: Path, model: Any, folder: Path) -> None:
    path = save_gguf(model, folder, tmp_path / "model.gguf", "qwen3")
    assert loader.inspect(resolve(str(path))).pooling is None
    assert_near(make_core(path, pooling="last"), model.model, "last", PROMPTS[:3])


@pytest.mark.parametrize(
    ("mode", "modules", "kind", "normalise"),
    [
        ("mean", ("Transformer", "Pooling", "Normalize"), "mean", True),
        ("cls", ("Transformer", "Pooling"), "cls", False),
        ("lasttoken", ("Transformer", "Pooling", "Normalize"), "last", True),
    ],
)
def test_files_of_sentence_transformers_decide(
    tmp_path: Path, model: Any, mode: str, modules: tuple[str, ...], kind: str, normalise: bool
) -> None:
    save(model, tmp_path)
    write_modules(tmp_path, mode, modules)
    core, ready = build(EngineConfig(model=str(tmp_path), dtype="float32", cpu_threads=1, num_blocks=64))
    assert ready.pooling is not None
    assert (ready.pooling.task, ready.pooling.size, ready.pooling.normalised) == ("embed", 64, normalise)
    assert ready.info["pooling"] == kind
    assert_near(core, model.model, kind, PROMPTS[:3], normalise=normalise)
    other = "last" if kind == "mean" else "mean"
    assert_near(make_core(tmp_path, pooling=other), model.model, other, PROMPTS[:3], normalise=normalise)
    assert make_core(tmp_path, pooling="none").scheduler.__class__.__name__ == "Scheduler"


def test_the_newer_way_to_write_the_same(tmp_path: Path, model: Any) -> None:
    save(model, tmp_path)
    write_modules(tmp_path, "mean")
    (tmp_path / "1_Pooling/config.json").write_text('{"embedding_dimension": 64, "pooling_mode": "lasttoken"}')
    found = loader.inspect(resolve(str(tmp_path))).pooling
    assert found is not None and (found.kind, found.normalise) == ("last", True)


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("modules", "config", "message"),
    [
        (("Transformer", "Pooling", "Dense"), None, r"modules\.json: the module Dense is not known here"),
        (("Pooling", "Transformer"), None, r"the module Transformer is not known here.*in this order"),
        (
            ("Transformer", "Pooling"),
            '{"pooling_mode_max_tokens": true}',
            "pools by pooling_mode_max_tokens; only one of",
        ),
        (
            ("Transformer", "Pooling"),
            '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}',
            "pools by pooling_mode_cls_token and pooling_mode_mean_tokens",
        ),
        (("Transformer", "Pooling"), "{}", "pools by nothing"),
        (
            ("Transformer", "Pooling"),
            '{"pooling_mode": "max"}',
            "pooling_mode must be mean, cls or lasttoken, got 'max'",
        ),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    tmp_path: Path, model: Any, modules: tuple[str, ...], config: str | None, message: str
) -> None:
    save(model, tmp_path)
    write_modules(tmp_path, "mean", modules)
    if config is not None:
        write(tmp_path, "1_Pooling/config.json", config)
    with pytest.raises(ModelError, match=message):
        loader.inspect(resolve(str(tmp_path)))
    assert loader.inspect(resolve(str(tmp_path)), pooling="none").pooling is None


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"idx": 0, "type": "a.Transformer", "path": "../x"}]'])
def test_damaged_modules_are_named(tmp_path: Path, model: Any, text: str) -> None:
    save(model, tmp_path)
    write(tmp_path, "modules.json", text)
    with pytest.raises(ModelError, match=r"modules\.json .*download it again"):
        loader.inspect(resolve(str(tmp_path)))


def test_a_model_that_was_saved_without_its_head(tmp_path: Path, model: Any, folder: Path) -> None:
    """Names of its class and of its tensors are shorter then, as in many models for embeddings."""
    AutoModel.from_pretrained(folder).save_pretrained(tmp_path / "headless")
    assert_near(make_core(tmp_path / "headless"), model.model, "last", PROMPTS[:3])
    with pytest.raises(ModelError, match=r"no head that makes text, so --pooling none is not possible"):
        loader.inspect(resolve(str(tmp_path / "headless")), pooling="none")
    AutoModelForCausalLM.from_pretrained(folder).model.save_pretrained(tmp_path / "named")
    config = (tmp_path / "named/config.json").read_text()
    write(tmp_path / "named", "config.json", config.replace("Qwen3Model", "Qwen3ForCausalLM"))
    assert_near(make_core(tmp_path / "named", pooling="last"), model.model, "last", PROMPTS[:3])
    write(tmp_path / "named", "config.json", config.replace("{", '{"is_causal": false,', 1))
    with pytest.raises(ModelError, match="is_causal must be true or absent"):
        loader.inspect(resolve(str(tmp_path / "named")))


@pytest.fixture
def core(folder: Path) -> Iterator[EngineCore]:
    yield make_core(folder, pooling="mean", **CROWDED)


def pool(core: EngineCore, name: str, tokens: list[int]) -> None:
    core.pool(PoolRequest(request_id=name, prompt_token_ids=tokens, arrival_s=0.0))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "the prompt is empty"),
        ([1] * 81, "the prompt has 81 tokens, the model's length is 80"),
        ([1, 199], "token id 199 is outside the model's vocabulary of 199"),
        ([-1], "token id -1 is outside"),
    ],
)
def test_prompts_that_cannot_be_computed(core: EngineCore, tokens: list[int], message: str) -> None:
    pool(core, "bad", tokens)
    pool(core, "good", [1] * 80)
    told = []
    while core.has_work:
        told += core.step().deltas
    assert [(delta.request_id, delta.vector is None) for delta in told if delta.finish_reason] == [
        ("bad", True),
        ("good", False),
    ]
    assert message in (told[0].error or "")


def test_the_same_id_twice(core: EngineCore) -> None:
    pool(core, "a", [1, 2])
    pool(core, "a", [1, 2])
    first, second = core.step().deltas
    assert (first.error, second.error) == ("request id 'a' is already in use", None)


def test_a_long_prompt_is_told_of_when_it_begins(core: EngineCore) -> None:
    pool(core, "long", [5] * 60)
    [delta] = core.step().deltas
    assert (delta.finish_reason, delta.vector) == (None, None) and delta.queue_s is not None
    assert [len(core.step().deltas) for _ in range(2)] == [0, 1]


def test_aborted_ones_leave_nothing_behind(core: EngineCore) -> None:
    """Waiting, half computed, and unknown."""
    for name in "abcd":
        pool(core, name, [ord(name) - 90] * 60)
    core.step()
    core.abort(["a", "d", "nobody"])
    told = []
    while core.has_work:
        told += [delta.request_id for delta in core.step().deltas if delta.finish_reason]
    assert told == ["b", "c"]
    assert core.scheduler.kv.pool.num_used == 0 and not audit.faults(core.scheduler)


def test_each_kind_of_engine_refuses_the_others_requests(core: EngineCore, folder: Path) -> None:
    params = SamplingParams(max_tokens=2)
    core.add(AddRequest(request_id="text", prompt_token_ids=[1], params=params, arrival_s=0.0))
    [refused] = core.step().deltas
    assert "makes vectors of prompts and generates no text" in (refused.error or "")
    generating = make_core(folder)
    pool(generating, "vector", [1])
    [refused] = generating.step().deltas
    assert "generates text; start it with --pooling" in (refused.error or "")


def test_numbers_that_are_not_finite_fail_their_prompt_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(folder, pooling="last")
    executor = core.runner._runner.executor  # type: ignore[attr-defined]
    forward = executor.forward

    def broken(batch: Batch, kv: KVPool) -> torch.Tensor:
        hidden = forward(batch, kv)
        hidden[batch.token_ids[batch.logit_rows] == 42] = torch.inf
        return hidden

    monkeypatch.setattr(executor, "forward", broken)
    pool(core, "bad", [1, 42])
    pool(core, "good", [42, 1])
    told = {delta.request_id: delta for delta in core.step().deltas}
    assert "no finite vector" in (told["bad"].error or "")
    assert told["good"].vector is not None
    assert core.scheduler.kv.pool.num_used == 0


def test_determinism_is_asked_of_vectors(folder: Path) -> None:
    make_core(folder, pooling="last", deterministic=True)
    with pytest.raises(
        ConfigError, match=r"--deterministic: answers depend on the batch here \(a probe has another vector"
    ):
        unstable = PooledSequence.vector
        calls = iter(range(100))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                PooledSequence,
                "vector",
                lambda self: bytes([next(calls)]) + unstable(self)[1:],  # type: ignore[index]
            )
            make_core(folder, pooling="last", deterministic=True)
