"""`LLM`: prompts in, answers out, as users of other engines know it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, RequestOutput, SamplingParams
from quire.errors import ConfigError, ModelError, RequestError
from quire_testing.tiny_llama import greedy, make_model, save_folder
from tiny_text import VOCAB_SIZE, write_tokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_folder(make_model(vocab_size=VOCAB_SIZE), tmp_path_factory.mktemp("tiny"))
    return write_tokenizer(folder)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, dtype="float32", cpu_threads=1, num_blocks=64, max_seq_len=256)


def test_importing_quire_loads_nothing_heavy() -> None:
    code = "import sys, quire; sys.exit([m for m in ('torch', 'numpy', 'fastapi', 'zmq') if m in sys.modules] or 0)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
    with pytest.raises(ImportError, match="cannot import name 'LMM' from 'quire'"):
        from quire import LMM  # type: ignore[attr-defined]  # noqa: F401


def test_one_prompt_or_many_as_text_or_tokens(llm: LLM) -> None:
    (one,) = llm.generate("hello", GREEDY)
    assert isinstance(one, RequestOutput)
    assert (one.prompt, one.finished) == ("hello", True)
    assert one.prompt_token_ids == llm.get_tokenizer().encode("hello")
    reference = make_model(vocab_size=VOCAB_SIZE)
    reference.generation_config.eos_token_id = None
    (answer,) = one.outputs
    assert answer.token_ids == greedy(reference, one.prompt_token_ids, 12)
    assert answer.text == llm.get_tokenizer().decode(answer.token_ids)
    assert (answer.finish_reason, answer.stop_reason, answer.error) == ("length", None, None)
    (tokens,) = llm.generate({"prompt_token_ids": one.prompt_token_ids}, GREEDY)
    assert tokens.prompt is None
    assert tokens.outputs == one.outputs
    many = llm.generate(["hello", {"prompt_token_ids": [3, 4, 5]}, "world"], GREEDY)
    assert [result.prompt for result in many] == ["hello", None, "world"]
    assert many[0].outputs == one.outputs
    assert len({result.request_id for result in [one, tokens, *many]}) == 5
    assert llm.generate([], GREEDY) == []


def test_own_parameters_for_each_prompt(llm: LLM) -> None:
    short, long = llm.generate(
        ["a", "b"], [GREEDY, SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)], use_tqdm=False
    )
    assert (len(short.outputs[0].token_ids), len(long.outputs[0].token_ids)) == (12, 3)
    with pytest.raises(RequestError, match="one for each of the 2 prompts; got 1"):
        llm.generate(["a", "b"], [GREEDY])


def test_several_answers_repeat_as_a_set(llm: LLM) -> None:
    params = SamplingParams(n=4, seed=11, max_tokens=6, ignore_eos=True)
    (first,), (again,) = llm.generate("a", params), llm.generate("a", params)
    assert [output.index for output in first.outputs] == [0, 1, 2, 3]
    assert len({tuple(output.token_ids) for output in first.outputs}) == 4
    assert again.outputs == first.outputs
    (alone,) = llm.generate("a", SamplingParams(seed=11, max_tokens=6, ignore_eos=True))
    assert alone.outputs[0].token_ids == first.outputs[0].token_ids


def test_a_stop_string_ends_the_text_before_it(llm: LLM) -> None:
    (whole,) = llm.generate("hello", GREEDY)
    text = whole.outputs[0].text
    stop = text[4:6]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, stop=(stop,))
    (result,) = llm.generate("hello", params)
    assert result.outputs[0].text == text[: text.index(stop)]
    assert (result.outputs[0].finish_reason, result.outputs[0].stop_reason) == ("stop", stop)
    assert not llm.llm_engine.core.has_work


def test_chat_renders_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    (one,) = llm.chat(messages, GREEDY)
    assert one.prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert one.prompt_token_ids[0] == 1
    two = llm.chat([messages, messages], GREEDY)
    assert [result.outputs for result in two] == [one.outputs] * 2


def test_cached_tokens_are_told_until_the_cache_is_reset(llm: LLM) -> None:
    prompt = {"prompt_token_ids": list(range(3, 60))}
    llm.reset_prefix_cache()
    assert [llm.generate(prompt, GREEDY)[0].num_cached_tokens for _ in range(2)] == [0, 48]
    llm.reset_prefix_cache()
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0


def test_what_cannot_be_served_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(RequestError, match="prompt 1: the prompt has 300 tokens, the model's length is 256"):
        llm.generate(["a", {"prompt_token_ids": [5] * 300}], SamplingParams(temperature=0.0))
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.generate({"prompt_token_ids": []})
    assert not llm.llm_engine.core.has_work


def test_an_interrupt_leaves_nothing_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = llm.llm_engine.core.runner.run, iter(range(100))

    def interrupted(plan: object) -> list[int]:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return run(plan)  # type: ignore[arg-type]

    monkeypatch.setattr(llm.llm_engine.core.runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], GREEDY)
    monkeypatch.undo()
    assert not llm.llm_engine.core.has_work
    assert llm.llm_engine.core.scheduler.kv.pool.num_used == 0
    assert llm.generate("a", GREEDY)[0].finished


def test_bad_configuration(folder: Path) -> None:
    with pytest.raises(ConfigError, match="there is no engine argument max_num_seq; did you mean max_num_seqs"):
        LLM(folder, max_num_seq=3)
    with pytest.raises(ConfigError, match="--max-num-seqs must be an integer between 1 and 4096, got 0"):
        LLM(folder, max_num_seqs=0)
    with pytest.raises(ModelError, match="/nowhere does not exist"):
        LLM("/nowhere")


@pytest.mark.parametrize("stop", ["END", ("END",), ["END"]])
def test_one_stop_string_may_be_given_bare(stop: Any) -> None:
    assert tuple(SamplingParams(stop=stop).stop) == ("END",)


def test_cache_salts_keep_prompts_apart(folder: Path) -> None:
    llm = LLM(folder, dtype="float32", cpu_threads=1, num_blocks=64)
    ids = list(range(3, 43))
    cached = [
        llm.generate({"prompt_token_ids": ids, **({"cache_salt": salt} if salt else {})}, GREEDY)[0].num_cached_tokens
        for salt in ("a", "b", None, "a", None)
    ]
    assert cached == [0, 0, 0, 32, 32]
    with pytest.raises(RequestError, match="cache_salt must be a text of 1 to 1024 characters, got 0"):
        llm.generate({"prompt_token_ids": ids, "cache_salt": ""}, GREEDY)


def test_priorities_need_their_policy(llm: LLM, folder: Path) -> None:
    with pytest.raises(RequestError, match="no effect under the scheduler policy fcfs") as caught:
        llm.generate("a", GREEDY, priority=[3])
    assert caught.value.param == "priority"
    urgent = LLM(folder, dtype="float32", cpu_threads=1, num_blocks=64, scheduler_policy="priority", max_num_seqs=1)
    for answers, plain in zip(
        urgent.generate(["a", "b"], GREEDY, priority=[1, -1]), llm.generate(["a", "b"], GREEDY), strict=True
    ):
        assert answers.outputs == plain.outputs
