"""BERT-like encoders: transformers' numbers, whatever else is in the step; what is refused, by name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire.config import EngineConfig
from quire.engine import host
from quire.engine.core import EngineCore
from quire.engine.pooling.whole import WholePromptScheduler
from quire.engine.startup import build
from quire.errors import ConfigError, ModelError
from quire.models import encoder_description
from quire.models.encoder import Encoder, EncoderBatch, footprint
from quire.models.source import resolve
from quire.request import AddRequest, PoolRequest, SamplingParams
from quire.text import load_tokenizer
from quire_testing.peak_memory import PeakMemory
from quire_testing.pooling import vectors
from quire_testing.tiny_bert import SIZES, VOCAB, make_bert, reference_vector, save_bert, tokenizer

TOLERANCE = 3e-6
"""Of vectors of length 1, beside transformers' and in other company."""


def core_of(folder: Path, **config: Any) -> EngineCore:
    return build(EngineConfig(model=str(folder), device="cpu", cpu_threads=1, **config))[0]


def prompts(count: int, longest: int = 64, seed: int = 3) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(5, len(VOCAB)) for _ in range(rng.randint(1, longest))] for _ in range(count)]


@pytest.fixture(scope="module")
def model() -> Any:
    return make_bert()


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(model, tmp_path_factory.mktemp("bert"))


@pytest.mark.parametrize("kind", ["mean", "cls", "last"])
def test_vectors_are_those_of_transformers(folder: Path, model: Any, kind: str) -> None:
    core = core_of(folder, pooling=kind)
    some = prompts(12)
    for prompt, found in zip(some, vectors(core, some), strict=True):
        np.testing.assert_allclose(found.values, reference_vector(model, prompt, kind), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("policy", ["fcfs", "sjf"])
def test_company_does_not_change_a_vector(folder: Path, policy: str) -> None:
    some = [*prompts(40), *([prompts(1)[0]] * 3), [5 + i % 40 for i in range(64)], [7]]
    core = core_of(folder, max_num_batched_tokens=130, max_num_seqs=7, scheduler_policy=policy)
    alone = [vectors(core, [prompt])[0].values for prompt in some]
    for every in (0, 1):
        for found, right in zip(vectors(core, some, every=every), alone, strict=True):
            np.testing.assert_allclose(found.values, right, atol=TOLERANCE, rtol=0)


def test_a_step_has_whole_prompts_within_its_budget(folder: Path) -> None:
    core = core_of(folder, max_num_batched_tokens=100, max_num_seqs=4)
    for index, length in enumerate([60, 40, 1, 30, 30, 30, 30, 5]):
        core.pool(PoolRequest(request_id=str(index), prompt_token_ids=[9] * length, arrival_s=0.0))
    steps = []
    while core.has_work:
        out = core.step()
        assert out.stats.num_blocks_used == 0 and out.stats.num_prompt_tokens <= 100
        steps.append([delta.request_id for delta in out.deltas])
    assert steps == [["0", "1"], ["2", "3", "4", "5"], ["6", "7"]]


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu_new"},
        {"hidden_act": "relu"},
        {"hidden_act": "silu"},
        {"layer_norm_eps": 0.3},
        {"num_attention_heads": 1, "type_vocab_size": 1},
        {"intermediate_size": 16, "num_hidden_layers": 1},
    ],
)
def test_variants(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = make_bert(**changes)
    core = core_of(save_bert(model, tmp_path, pooling=None))
    for prompt, found in zip(some := prompts(5), vectors(core, some), strict=True):
        np.testing.assert_allclose(found.values, reference_vector(model, prompt, "cls"), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForPreTraining"])
def test_heads_that_are_not_used_are_left_out(tmp_path: Path, kind: str) -> None:
    import transformers

    torch.manual_seed(5)
    model = getattr(transformers, kind)(transformers.BertConfig(**SIZES)).eval()
    core = core_of(save_bert(model, tmp_path))
    [found] = vectors(core, [[5, 6, 7]])
    np.testing.assert_allclose(found.values, reference_vector(model.bert, [5, 6, 7], "mean"), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("told", "activation"),
    [
        ({}, torch.sigmoid),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, lambda x: x),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, torch.sigmoid),
    ],
)
def test_a_head_scores_pairs(
    tmp_path: Path, told: dict[str, Any], activation: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    model = make_bert(head=True)
    save_bert(model, tmp_path, pooling=None)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **told}))
    core, ready = build(EngineConfig(model=str(tmp_path), device="cpu", cpu_threads=1))
    assert ready.pooling is not None and (ready.pooling.task, ready.pooling.size) == ("score", 1)
    reader = load_tokenizer(tmp_path)
    pairs = [("the cat sat", "on the mat"), ("king", "queen runs in the park"), ("rain ?", "")]
    encoded = [reader.pair(*map(reader.part, pair)) for pair in pairs]
    for index, (ids, types) in enumerate(encoded):
        core.pool(PoolRequest(request_id=str(index), prompt_token_ids=ids, token_type_ids=types, arrival_s=0.0))
    told_scores = {delta.request_id: np.frombuffer(delta.vector or b"", "<f4") for delta in core.step().deltas}
    for index, (ids, types) in enumerate(encoded):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits[0]
        np.testing.assert_allclose(told_scores[str(index)], activation(logits), atol=1e-5, rtol=0)


def test_a_model_with_a_head_embeds_where_that_is_asked_for(tmp_path: Path) -> None:
    model = make_bert(head=True)
    [found] = vectors(core_of(save_bert(model, tmp_path, pooling=None), pooling="mean"), [[5, 6, 7]])
    np.testing.assert_allclose(found.values, reference_vector(model.bert, [5, 6, 7], "mean"), atol=TOLERANCE, rtol=0)


def test_segments(folder: Path, model: Any) -> None:
    core = core_of(folder)
    ids, types = [2, 5, 3, 6, 7, 3], [0, 0, 0, 1, 1, 1]
    [found] = vectors(core, [ids], token_type_ids=types)
    np.testing.assert_allclose(found.values, reference_vector(model, ids, "mean", types=types), atol=TOLERANCE, rtol=0)
    for bad in ([0, 0], [0, 0, 0, 1, 1, 2], [0, 0, 0, 1, 1, -1]):
        core.pool(PoolRequest(request_id="bad", prompt_token_ids=ids, token_type_ids=bad, arrival_s=0.0))
        [delta] = core.step().deltas
        assert delta.error == "each token must be in a segment below 2, the number that the model knows"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_types(folder: Path, model: Any, dtype: str) -> None:
    for prompt, found in zip(some := prompts(4), vectors(core_of(folder, dtype=dtype), some), strict=True):
        assert float(reference_vector(model, prompt, "mean").numpy() @ found.values) > 0.999


def test_how_long_a_prompt_may_be(tmp_path: Path, folder: Path, model: Any) -> None:
    save_bert(model, tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 32, "do_lower_case": false}')
    lengths = {
        build(EngineConfig(model=str(path), device="cpu", cpu_threads=1, max_model_len=given))[1].max_model_len
        for path, given in ((folder, None), (tmp_path, None), (tmp_path, 64), (folder, 16))
    }
    assert lengths == {64, 32, 16}
    core = core_of(tmp_path)
    core.pool(PoolRequest(request_id="long", prompt_token_ids=[5] * 33, arrival_s=0.0))
    assert core.step().deltas[0].error == "the prompt has 33 tokens, the model's length is 32"
    with pytest.raises(ConfigError, match="--max-model-len 65 is more than the 64 tokens"):
        core_of(tmp_path, max_model_len=65)
    with pytest.raises(
        ConfigError, match=r"--max-num-batched-tokens 40 is less than the model's length of 64.*raise it to 64"
    ):
        core_of(folder, max_num_batched_tokens=40)
    assert core_of(folder, max_num_batched_tokens=40, max_model_len=40).scheduler.max_model_len == 40


def test_an_encoder_has_no_blocks_and_takes_no_generation(folder: Path) -> None:
    core, ready = build(EngineConfig(model=str(folder), device="cpu", cpu_threads=1))
    assert isinstance(core.scheduler, WholePromptScheduler)
    assert (ready.num_blocks, ready.max_model_len, ready.info["executor"]) == (0, 64, "encoder")
    core.add(AddRequest(request_id="a", prompt_token_ids=[1], params=SamplingParams(), arrival_s=0.0))
    assert "generates no text" in (core.step().deltas[0].error or "")
    core.check()
    assert core.stats().kv_faults == 0


def test_aborted_prompts_are_forgotten(folder: Path) -> None:
    core = core_of(folder, max_num_seqs=1)
    for name in "abc":
        core.pool(PoolRequest(request_id=name, prompt_token_ids=[5, 6], arrival_s=0.0))
    core.step()
    core.abort(["b"])
    assert [delta.request_id for delta in core.step().deltas] == ["c"] and not core.has_work


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type must be absolute, got 'relative_key'"),
        ({"is_decoder": True}, "is_decoder must be false"),
        ({"hidden_act": "mish"}, "hidden_act must be one of gelu, .*, got 'mish'"),
        ({"num_attention_heads": 5}, r"num_attention_heads must be a divisor of hidden_size \(32\), got 5"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 64, "num_attention_heads": 4}, "weights and configuration do not belong together"),
        ({"num_hidden_layers": 4}, "lacks tensor encoder.layer.3"),
        ({"num_hidden_layers": 2}, "holds tensor encoder.layer.2"),
    ],
)
def test_bad_configurations(tmp_path: Path, model: Any, changes: dict[str, Any], message: str) -> None:
    save_bert(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ModelError, match=message):
        core_of(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": {"0": "a", "1": "b"}}, "num_labels must be 1: only heads that give one score are served, got 2"),
        ({"id2label": None}, "num_labels must be 1"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}, "activation_fn must be Sigmoid or Identity"),
    ],
)
def test_heads_that_are_not_served(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save_bert(make_bert(head=True), tmp_path, pooling=None)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ModelError, match=message):
        core_of(tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"pooling": "none"}, "an encoder generates no text, so --pooling none is not possible"),
        ({"quantization": "int8"}, "--quantization int8: encoders are computed unquantised"),
        ({"model_impl": "transformers"}, "--model-impl transformers: encoders are native only"),
    ],
)
def test_flags_that_mean_nothing_here(folder: Path, flags: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, ModelError), match=message):
        core_of(folder, **flags)


def test_what_does_not_fit_the_memory_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "memory", lambda: host.HostMemory(available=100_000, limited=True, limit=200_000))
    with pytest.raises(
        ModelError, match=r"does not fit the memory: weights .* \+ activations .*; raise the limit to \d MiB"
    ):
        core_of(folder)


def test_a_step_takes_no_more_than_its_plan(tmp_path: Path) -> None:
    folder = save_bert(make_bert(max_position_embeddings=256), tmp_path)
    model = encoder_description.inspect(resolve(str(folder)), "auto")
    assert model is not None
    encoder = Encoder(model, torch.float32, torch.device("cpu"))
    for lengths in ([256], [1] * 256, [64] * 4):
        ids = torch.full((256,), 7)
        positions = torch.cat([torch.arange(length) for length in lengths])
        with PeakMemory() as peak:
            encoder.forward(EncoderBatch(ids, positions, torch.zeros_like(ids), lengths))
        planned = 256 * footprint(model.description, torch.float32, max(lengths)).activations_per_token
        assert 0 < peak.most <= planned


def test_pairs_are_encoded_as_transformers_does(folder: Path) -> None:
    reader, reference = load_tokenizer(folder), tokenizer()
    first, second = "the cat sat on the mat", "a dog ran in the park in rain"
    whole = reference.encode(first, second)
    one, other = reader.part(first), reader.part(second)
    assert reader.pair(one, other) == (whole.ids, whole.type_ids)
    for keep in range(4, len(whole.ids) + 3):
        reference.enable_truncation(keep, strategy="longest_first")
        cut = reference.encode(first, second)
        assert reader.pair(one, other, keep=keep) == (cut.ids, cut.type_ids), keep
    assert (one.ids, other.ids) == (reader.part(first).ids, reader.part(second).ids), "parts stay as they are"


def test_word_pieces_decode(folder: Path) -> None:
    reader = load_tokenizer(folder)
    ids = reader.encode("The cats, raining?", add_special_tokens=True)
    assert ids[0] == VOCAB["[CLS]"] and ids[-1] == VOCAB["[SEP]"]
    assert reader.decode(ids) == "the cats [UNK] raining ?".replace(" [UNK]", "")
