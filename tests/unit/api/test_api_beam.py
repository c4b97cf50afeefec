"""Beam search: the same beams as transformers, in the engine's batches, without computing the past again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from quire import LLM, BeamSearchOutput, BeamSearchParams
from quire.errors import RequestError
from quire.models import bundled
from quire_testing.tiny_llama import make_model
from tiny_api import greedy_ids, tiny_folder
from tiny_text import VOCAB_SIZE

END_IDS = [2, 0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, dtype="float32", cpu_threads=1, num_blocks=256, max_model_len=256, max_num_seqs=16)


def reference(
    model: Any, prompt: list[int], params: BeamSearchParams, end_ids: list[int]
) -> list[tuple[list[int], float]]:
    """transformers' beams: generated tokens without the end token, and score."""
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        num_beams=params.beam_width,
        num_return_sequences=params.beam_width,
        max_new_tokens=params.max_tokens,
        length_penalty=params.length_penalty,
        early_stopping="never",
        eos_token_id=None if params.ignore_eos else end_ids,
        pad_token_id=VOCAB_SIZE - 1,
        return_dict_in_generate=True,
        output_scores=True,
    )
    beams = []
    for sequence, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True):
        answer = sequence[len(prompt) :]
        if not params.ignore_eos and (ends := [i for i, token in enumerate(answer) if token in end_ids]):
            answer = answer[: ends[0]]
        beams.append((answer, score))
    return beams


def check(
    found: BeamSearchOutput, prompt: list[int], expected: list[tuple[list[int], float]], params: BeamSearchParams
) -> None:
    assert [beam.tokens[len(prompt) :] for beam in found.sequences] == [tokens for tokens, _ in expected]
    for beam, (tokens, score) in zip(found.sequences, expected, strict=True):
        ended = beam.finish_reason == "stop"
        length = len(tokens) + ended
        assert ended == (beam.stop_reason in END_IDS)
        assert ended or length == params.max_tokens
        assert beam.cum_logprob / length**params.length_penalty == pytest.approx(score, abs=1e-4)
        assert beam.tokens[: len(prompt)] == prompt
        assert len(beam.logprobs) == length


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -1.0])
@pytest.mark.parametrize("beam_width", [2, 5])
def test_the_beams_are_those_of_transformers(llm: LLM, beam_width: int, length_penalty: float) -> None:
    model = make_model(vocab_size=VOCAB_SIZE)
    for ignore_eos in (True, False):
        params = BeamSearchParams(beam_width, 10, ignore_eos=ignore_eos, length_penalty=length_penalty)
        for prompt in ([5, 6, 7], [250, 3, 17, 99, 41]):
            [found] = llm.beam_search([{"prompt_token_ids": prompt}], params)
            check(found, prompt, reference(model, prompt, params, END_IDS), params)


def test_a_width_beyond_twenty_likeliest_tokens_and_beyond_the_batch(llm: LLM) -> None:
    model, params, prompt = make_model(vocab_size=VOCAB_SIZE), BeamSearchParams(40, 6, ignore_eos=True), [5, 6, 7]
    [found] = llm.beam_search([prompt], params)
    assert params.beam_width > llm.config.max_num_seqs
    check(found, prompt, reference(model, prompt, params, END_IDS), params)


def test_a_width_of_one_is_greedy(llm: LLM) -> None:
    [found] = llm.beam_search([[5, 6, 7]], BeamSearchParams(1, 10, ignore_eos=True))
    [beam] = found.sequences
    assert beam.tokens == [5, 6, 7, *greedy_ids([5, 6, 7], 10)]


def test_beams_that_end_are_among_them(llm: LLM) -> None:
    """The comparison above is worth something only if end tokens come up: no penalty for short answers sees to it."""
    model = make_model(vocab_size=VOCAB_SIZE)
    params = BeamSearchParams(5, 24, length_penalty=0.0)
    ended = 0
    for first in range(20, 60, 10):
        [found] = llm.beam_search([[first, 6, 7]], params)
        check(found, [first, 6, 7], reference(model, [first, 6, 7], params, END_IDS), params)
        ended += sum(beam.finish_reason == "stop" for beam in found.sequences)
    assert ended > 0


def test_prompts_together_are_as_alone(llm: LLM) -> None:
    params = BeamSearchParams(3, 8, ignore_eos=True)
    prompts = [[first, 9, 4] for first in range(3, 40, 3)]
    together = llm.beam_search(prompts, params)
    assert together == [llm.beam_search(prompt, params)[0] for prompt in prompts]
    assert llm.beam_search(prompts, params, concurrency_limit=1) == together


def test_in_a_pool_too_small_for_all_beams(folder: Path, llm: LLM) -> None:
    tight = LLM(folder, dtype="float32", cpu_threads=1, num_blocks=10, block_size=4, max_model_len=32, max_num_seqs=16)
    params = BeamSearchParams(4, 12, ignore_eos=True)
    prompts = [[first] * 9 for first in range(3, 9)]
    answers = tight.beam_search(prompts, params)
    assert [[beam.tokens for beam in one.sequences] for one in answers] == [
        [beam.tokens for beam in one.sequences] for one in llm.beam_search(prompts, params)
    ]
    assert tight.llm_engine.core.scheduler.kv.pool.num_used == 0


def test_the_past_is_not_computed_again(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    core, computed = llm.llm_engine.core, 0
    step = core.step

    def counted() -> Any:
        nonlocal computed
        report = step()
        computed += report.stats.num_prompt_tokens
        return report

    monkeypatch.setattr(core, "step", counted)
    llm.reset_prefix_cache()
    prompt, params = [3 + i for i in range(96)], BeamSearchParams(4, 40, ignore_eos=True)
    llm.beam_search(prompt, params)
    again = sum(4 * (96 + i) for i in range(1, 40))
    boundaries = 3 * 3 * 15  # three times a block fills, and three beams of four may compute it again
    assert 96 + 39 * 4 <= computed <= 96 + 39 * 4 + boundaries < again / 40


def test_an_answer_ends_at_the_models_length(llm: LLM) -> None:
    [found] = llm.beam_search([[5] * 250], BeamSearchParams(2, 100, ignore_eos=True))
    assert [(len(beam.tokens), beam.finish_reason) for beam in found.sequences] == [(256, "length")] * 2


def test_text_and_end_tokens(llm: LLM) -> None:
    params = BeamSearchParams(5, 24, length_penalty=0.0)
    with_end = BeamSearchParams(5, 24, length_penalty=0.0, include_stop_str_in_output=True)
    [bare], [whole] = llm.beam_search(["hello"], params), llm.beam_search([{"prompt": "hello"}], with_end)
    tokenizer = llm.get_tokenizer()
    for short, long in zip(bare.sequences, whole.sequences, strict=True):
        assert long.tokens == [*short.tokens, *([short.stop_reason] if short.finish_reason == "stop" else [])]
        assert short.text == tokenizer.decode(short.tokens)
        assert short.text.startswith("hello")
        assert long.text == tokenizer.decode(long.tokens, skip_special_tokens=False)
    assert llm.beam_search([], params) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"beam_width": 0}, r"beam_width must be an integer between 1 and 512, got 0"),
        ({"beam_width": 513}, r"beam_width must be an integer between 1 and 512, got 513"),
        ({"max_tokens": 0}, r"max_tokens must be an integer of at least 1, got 0"),
        ({"temperature": 0.5}, r"temperature must be 0 or 1.*, got 0\.5"),
        ({"length_penalty": float("nan")}, r"length_penalty must be a finite number, got nan"),
    ],
)
def test_bad_parameters(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 5, **fields})


def test_what_this_model_cannot_do(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.api.beam_search.MAX_LOGPROBS", 20)
    with pytest.raises(
        RequestError, match="beam_width 7 needs the 21 likeliest tokens of a step with the 2 end tokens"
    ):
        llm.beam_search("a", BeamSearchParams(7, 5))
    with pytest.raises(RequestError, match="prompt 1: the prompt is empty"):
        llm.beam_search(["a", []], BeamSearchParams(2, 5))
    assert not llm.llm_engine.has_unfinished_requests()


@pytest.mark.model
def test_the_embedded_model_too() -> None:
    path = bundled.pull("smollm2")
    llm = LLM("smollm2", dtype="float32", max_model_len=256)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    prompt = llm.get_tokenizer().encode("The capital of France is")
    params = BeamSearchParams(3, 8)
    [found] = llm.beam_search([prompt], params)
    end_ids = list(llm.get_tokenizer().eos_ids)
    assert [(beam.tokens[len(prompt) :]) for beam in found.sequences] == [
        tokens for tokens, _ in reference(model, prompt, params, end_ids)
    ]
    assert "Paris" in str(found.sequences[0].text)
