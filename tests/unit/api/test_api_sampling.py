"""Sampling through the Python API: seeds, log probabilities, best_of, penalties, words, stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire import LLM, SamplingParams
from quire.errors import RequestError
from quire_testing.tiny_llama import make_model, save_folder
from tiny_text import VOCAB_SIZE, write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(save_folder(make_model(vocab_size=VOCAB_SIZE), tmp_path_factory.mktemp("tiny")))


def load(folder: Path) -> LLM:
    return LLM(folder, dtype="float32", cpu_threads=1, num_blocks=64, max_seq_len=256)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return load(folder)


def answers(llm: LLM, prompts: list[str], params: SamplingParams | list[SamplingParams]) -> list[list[list[int]]]:
    return [[one.token_ids for one in result.outputs] for result in llm.generate(prompts, params, use_tqdm=False)]


def test_b016_seeds(llm: LLM, folder: Path) -> None:
    seeded = SamplingParams(temperature=1.0, seed=123, max_tokens=12, ignore_eos=True)
    ((alone,),) = answers(llm, ["hello"], seeded)
    load_of_others = [SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)] * 20
    assert answers(llm, ["hello"] * 21, [*load_of_others[:10], seeded, *load_of_others[10:]])[10] == [alone]
    assert answers(load(folder), ["hello"], seeded) == [[alone]]
    unseeded = answers(llm, ["hello"] * 10, load_of_others[0])
    assert len({tuple(answer) for (answer,) in unseeded}) > 1
    four = SamplingParams(temperature=1.0, seed=123, n=4, max_tokens=12, ignore_eos=True)
    (samples,) = answers(llm, ["hello"], four)
    assert len({tuple(sample) for sample in samples}) == 4
    assert answers(llm, ["world", "hello"], four)[1] == samples
    assert samples[0] == alone


def test_logprobs_have_the_shape_that_users_know(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=5, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    (result,) = llm.generate("hello world", params)
    (output,) = result.outputs
    assert output.logprobs is not None and len(output.logprobs) == len(output.token_ids) == 5
    total = 0.0
    for token, entry in zip(output.token_ids, output.logprobs, strict=True):
        assert next(iter(entry)) == token
        assert 2 <= len(entry) <= 3
        assert {1, 2} <= {one.rank for one in entry.values()}
        assert entry[token].decoded_token == llm.get_tokenizer().pieces.text_of(token)
        total += entry[token].logprob
    assert output.cumulative_logprob == pytest.approx(total)
    assert result.prompt_logprobs is not None and result.prompt_logprobs[0] is None
    assert len(result.prompt_logprobs) == len(result.prompt_token_ids)
    plain = llm.generate("hello", SamplingParams(max_tokens=2))[0]
    assert (plain.prompt_logprobs, plain.outputs[0].logprobs, plain.outputs[0].cumulative_logprob) == (None, None, None)


def test_best_of_keeps_the_likeliest(llm: LLM) -> None:
    fields = {"temperature": 1.5, "seed": 3, "max_tokens": 6, "ignore_eos": True}
    (every,) = llm.generate("hello", SamplingParams(n=5, logprobs=0, **fields))
    means = {tuple(one.token_ids): (one.cumulative_logprob or 0.0) / 6 for one in every.outputs}
    (best,) = llm.generate("hello", SamplingParams(n=2, best_of=5, **fields))
    assert [one.index for one in best.outputs] == [0, 1]
    assert [tuple(one.token_ids) for one in best.outputs] == sorted(means, key=lambda one: -means[one])[:2]
    assert best.outputs[0].logprobs is None


def test_penalties_end_a_repetition(llm: LLM) -> None:
    greedy = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
    ((plain,), (punished,)) = answers(
        llm,
        ["hello", "hello"],
        [SamplingParams(**greedy), SamplingParams(presence_penalty=2.0, repetition_penalty=3.0, **greedy)],
    )
    assert len(set(punished)) > len(set(plain))


def test_bad_words_do_not_occur_in_either_spelling(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    word, spaced = tokenizer.encode("wor"), tokenizer.encode(" wor")
    assert word != spaced
    params = SamplingParams(
        temperature=0.0, max_tokens=8, bad_words=["wor"], logit_bias=dict.fromkeys(word + spaced, 100.0)
    )
    resolved = tokenizer.resolve(params, room=8)
    assert set(resolved.bad_words_token_ids) == {tuple(word), tuple(spaced)}
    (result,) = llm.generate("hello", params)
    assert "wor" not in result.outputs[0].text


def test_stops_minimum_and_truncation(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    (a,) = tokenizer.encode("a")
    always = {"temperature": 0.0, "max_tokens": 9, "logit_bias": {a: 100.0}}
    (result,) = llm.generate("hello", SamplingParams(stop="aaa", include_stop_str_in_output=True, **always))
    assert (result.outputs[0].text, result.outputs[0].stop_reason) == ("aaa", "aaa")
    (result,) = llm.generate("hello", SamplingParams(stop="aaa", min_tokens=4, **always))
    assert (result.outputs[0].text, len(result.outputs[0].token_ids)) == ("aa", 5)  # complete with the fifth token
    (result,) = llm.generate("hello", SamplingParams(stop_token_ids=[a], min_tokens=4, **always))
    assert a not in result.outputs[0].token_ids[:4]
    assert result.outputs[0].token_ids[4:] == [a]
    (result,) = llm.generate(
        {"prompt_token_ids": list(range(3, 103))}, SamplingParams(truncate_prompt_tokens=7, **always)
    )
    assert result.prompt_token_ids == list(range(96, 103))
    (result,) = llm.generate("hello", SamplingParams(detokenize=False, **always))
    assert (result.outputs[0].text, len(result.outputs[0].token_ids)) == ("", 9)


def test_ids_that_the_model_does_not_have_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="logit_bias must be token ids between 0 and 299, got 300"):
        llm.generate("hello", SamplingParams(logit_bias={300: 1.0}))
