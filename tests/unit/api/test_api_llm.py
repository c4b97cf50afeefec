"""`LLM`: every form of prompt, chat options, and what happens when things go wrong."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from quire import LLM, LLMEngine, RequestOutput, RequestOutputKind, SamplingParams, TextPrompt, TokensPrompt
from quire.errors import RequestError
from tiny_api import greedy_ids, tiny_folder

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tiny_folder(tmp_path_factory.mktemp("tiny"))
    return LLM(folder, dtype="float32", cpu_threads=1, num_blocks=128, max_model_len=256, max_num_seqs=16)


@pytest.fixture(autouse=True)
def nothing_left(llm: LLM) -> Iterator[None]:
    yield
    assert not llm.llm_engine.has_unfinished_requests()
    assert not llm.llm_engine.core.has_work
    assert llm.llm_engine.core.scheduler.kv.pool.num_used == 0


def texts(results: list[RequestOutput]) -> list[str]:
    return [result.outputs[0].text for result in results]


def test_every_form_of_prompt(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("hello")
    [plain] = llm.generate("hello", GREEDY)
    assert plain.outputs[0].token_ids == greedy_ids(ids, 8)
    forms: list[Any] = [
        {"prompt": "hello"},
        TextPrompt(prompt="hello"),
        {"prompt_token_ids": ids},
        TokensPrompt(prompt_token_ids=ids),
        {"prompt": "shown", "prompt_token_ids": tuple(ids)},
        ids,
    ]
    results = llm.generate(forms, GREEDY)
    assert texts(results) == texts([plain]) * len(forms)
    assert [result.prompt for result in results] == ["hello", "hello", None, None, "shown", None]
    assert texts(llm.generate(ids, GREEDY)) == texts([plain])  # one list of ids is one prompt
    assert texts(llm.generate(("hello", "hello"), GREEDY)) == texts([plain, plain])
    for result in results:
        assert (result.prompt_logprobs, result.finished) == (None, True)
        [output] = result.outputs
        assert (output.logprobs, output.cumulative_logprob, output.finished()) == (None, None, True)


def test_the_deprecated_keyword(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("hello")
    expected = texts(llm.generate("hello", GREEDY))
    with pytest.warns(DeprecationWarning, match="prompt_token_ids= is deprecated"):
        assert texts(llm.generate(prompt_token_ids=ids, sampling_params=GREEDY)) == expected
    with pytest.warns(DeprecationWarning):
        results = llm.generate(["a", "b"], GREEDY, prompt_token_ids=[ids, ids])
    assert (texts(results), [result.prompt for result in results]) == (expected * 2, ["a", "b"])
    with pytest.warns(DeprecationWarning), pytest.raises(RequestError, match="equally many, got 1 and 2"):
        llm.generate(["a"], GREEDY, prompt_token_ids=[ids, ids])


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"prompt_token_ids": []}, "the prompt is empty"),
        ({"prompt_token_ids": [5] * 300}, "the prompt has 300 tokens, the model's length is 256"),
        ({"prompt_token_ids": [5, 300]}, "prompt token id 300 is outside the model's vocabulary of 300"),
        ({"prompt_token_ids": ["5"]}, r"token ids must be a list of integers, got \['5'\]"),
        ({"prompt_token_ids": "hello"}, "token ids must be a list of integers, got 'hello'"),
        ({"prompt": "a", "multi_modal_data": {"image": 1}}, "a prompt with multi_modal_data is not supported"),
        ({"text": None}, "the prompt must be a text, a list of token ids"),
        (1.7, "token ids must be a list of integers, got 1.7"),
    ],
)
def test_a_bad_prompt_is_named_before_anything_runs(llm: LLM, prompt: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate([prompt], GREEDY)
    with pytest.raises(RequestError, match=f"prompt 2: {message}"):
        llm.generate(["a", "b", prompt, "c"], GREEDY)


def test_a_priority_that_nobody_reads_is_refused_at_every_door(llm: LLM) -> None:
    with pytest.raises(RequestError, match="priority 1 has no effect under the scheduler policy fcfs"):
        llm.llm_engine.add_request("a", "hello", GREEDY, priority=1)
    with pytest.raises(RequestError, match=r"priority must be a 32-bit integer \(lower is more urgent\), got 0.5"):
        llm.llm_engine.add_request("a", "hello", GREEDY, priority=0.5)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="priority must be a 32-bit integer"):
        llm.generate("hello", GREEDY, priority=[2**70])


def test_words_without_tokens_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="bad_words_token_ids must be at most 2048 lists of 1 to 256 token ids"):
        llm.generate("hello", SamplingParams(bad_words_token_ids=[[]]))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="bad_words must be words of 1 to 256 tokens, got 'ab"):
        llm.generate("hello", SamplingParams(bad_words=["ab" * 200]))  # type: ignore[arg-type]


def test_bad_arguments(llm: LLM) -> None:
    with pytest.raises(RequestError, match="prompts must be given"):
        llm.generate()
    with pytest.raises(RequestError, match=r"prompts must be a text.*got 17"):
        llm.generate(17)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="priority must have one number for each of the 2 prompts, got 1"):
        llm.generate(["a", "b"], GREEDY, priority=[1])
    with pytest.raises(RequestError, match="lora_request is not supported"):
        llm.generate("a", GREEDY, lora_request=object())  # type: ignore[arg-type]
    params = GREEDY.clone()
    params.top_p = 2.0
    with pytest.raises(RequestError, match="top_p must be"):
        llm.generate("a", params)


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
def test_token_ids_that_the_model_does_not_have_never_reach_it(llm: LLM, field: str) -> None:
    params = GREEDY.clone()
    setattr(params, field, {300: 1.0} if field == "logit_bias" else (300,))
    with pytest.raises(RequestError, match=f"{field} must be token ids between 0 and 299, got 300"):
        llm.generate(["a", "b"], params)


def test_a_prompt_is_cut_where_that_is_asked_for(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, truncate_prompt_tokens=3, ignore_eos=True)
    [result] = llm.generate([[9] * 300 + [5, 6, 7]], params)
    assert result.prompt_token_ids == [5, 6, 7]
    assert result.outputs[0].token_ids == greedy_ids([5, 6, 7], 4)


def test_no_prompts_no_answers(llm: LLM) -> None:
    assert llm.generate([]) == []
    assert llm.generate([], []) == []
    assert llm.generate([], priority=[]) == []


def test_an_answer_ends_at_the_models_length(llm: LLM) -> None:
    [result] = llm.generate([[5] * 250], SamplingParams(temperature=0.0, max_tokens=1000, ignore_eos=True))
    assert (len(result.outputs[0].token_ids), result.outputs[0].finish_reason) == (6, "length")


def test_min_tokens_beyond_the_models_length_end_there_too(llm: LLM) -> None:
    for fields in ({"max_tokens": 5000}, {"max_tokens": None}):
        params = SamplingParams(temperature=0.0, min_tokens=3000, ignore_eos=True, **fields)
        [result] = llm.generate([[5] * 250], params)
        assert (len(result.outputs[0].token_ids), result.outputs[0].finish_reason) == (6, "length")


def test_what_parameters_do_to_a_prompt_is_named_with_its_place(llm: LLM) -> None:
    with pytest.raises(RequestError, match="prompt 1: bad_words must be words of 1 to 256 tokens"):
        llm.generate(["a", "b"], [GREEDY, SamplingParams(bad_words=["ab" * 200])])  # type: ignore[arg-type]


def test_stop_reason_is_what_the_caller_asked_for(llm: LLM) -> None:
    [result] = llm.generate("hello", GREEDY)
    third = result.outputs[0].token_ids[2]
    first = result.outputs[0].token_ids.index(third)
    params = SamplingParams(temperature=0.0, max_tokens=8, stop_token_ids=(third,), ignore_eos=True)
    [stopped] = llm.generate("hello", params)
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", third)
    assert stopped.outputs[0].token_ids == result.outputs[0].token_ids[: first + 1]


def test_the_end_of_sequence_token_has_no_stop_reason(llm: LLM) -> None:
    seen = set()
    params = SamplingParams(temperature=2.0, max_tokens=200, n=8, seed=1)
    for output in llm.generate("hello", params)[0].outputs:
        seen.add((output.finish_reason, output.stop_reason))
    assert ("stop", None) in seen


# --- chat ---------------------------------------------------------------------------------------------------------


def test_chat_forms_of_the_prompt(llm: LLM) -> None:
    [plain] = llm.chat(HELLO, GREEDY)
    assert plain.prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    [bare] = llm.chat(HELLO, GREEDY, add_generation_prompt=False)
    assert bare.prompt == "<|im_start|>user\nhello<|im_end|>\n"
    open_end = [*HELLO, {"role": "assistant", "content": "well, "}]
    [going_on] = llm.chat(open_end, GREEDY, add_generation_prompt=False, continue_final_message=True)
    assert going_on.prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nwell, "
    assert llm.chat([HELLO, HELLO], GREEDY)[1].outputs == plain.outputs
    assert llm.chat([], GREEDY)[0].prompt == "<|im_start|>assistant\n"


def test_chat_joins_text_parts(llm: LLM) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    [result] = llm.chat([{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}], GREEDY)
    assert result.prompt == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhel\nlo<|im_end|>\n<|im_start|>assistant\n"
    )


def test_chat_with_another_template_tools_and_variables(llm: LLM) -> None:
    template = "{{ style }}{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}{{ messages[0].content }}"
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    [result] = llm.chat(HELLO, GREEDY, chat_template=template, tools=tools, chat_template_kwargs={"style": "short: "})
    assert result.prompt == "short: [weather]hello"
    assert result.prompt_token_ids == llm.get_tokenizer().encode("short: [weather]hello")


def test_chat_refuses_with_a_sentence(llm: LLM) -> None:
    with pytest.raises(RequestError, match="continue_final_message and add_generation_prompt exclude each other"):
        llm.chat(HELLO, GREEDY, continue_final_message=True)
    with pytest.raises(RequestError, match="continue_final_message needs a last message with text"):
        llm.chat([{"role": "user", "content": ""}], GREEDY, add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(RequestError, match=r"prompt 1: messages.0.content must be a text or text parts"):
        llm.chat([HELLO, [{"role": "user"}]], GREEDY)
    with pytest.raises(RequestError, match=r"messages.0 must be a mapping with role and content"):
        llm.chat(["hello"], GREEDY)  # type: ignore[list-item]
    image = {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {}}]}
    with pytest.raises(
        RequestError, match=r"messages.0.content.1 has type 'image_url'; this model takes text parts only"
    ):
        llm.chat([image], GREEDY)
    with pytest.raises(RequestError, match="failed on these messages"):
        llm.chat(HELLO, GREEDY, chat_template="{{ raise_exception('no') }}")
    with pytest.raises(RequestError, match="is no valid jinja"):
        llm.chat(HELLO, GREEDY, chat_template="{% if %}")
    with pytest.raises(RequestError, match="chat_template_content_format must be 'auto' or 'string', got 'openai'"):
        llm.chat(HELLO, GREEDY, chat_template_content_format="openai")


def test_the_tokenizers_own_template_door(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    text = tokenizer.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(HELLO, add_generation_prompt=True) == tokenizer.encode_chat(HELLO)
    assert isinstance(text, str)
    assert llm.generate(text, GREEDY)[0].outputs == llm.chat(HELLO, GREEDY)[0].outputs


# --- faults -------------------------------------------------------------------------------------------------------


def interrupting(llm: LLM, monkeypatch: pytest.MonkeyPatch, at: int, act: Any) -> None:
    """`act` in the middle of the step number `at`: before the model has run."""
    run, calls = llm.llm_engine.core.runner.run, iter(range(10_000))

    def during(plan: Any) -> Any:
        if next(calls) == at:
            act()
        return run(plan)

    monkeypatch.setattr(llm.llm_engine.core.runner, "run", during)


@pytest.fixture
def listens_to_ctrl_c() -> Iterator[None]:
    """As a program at a terminal does; a test run in the background ignores it."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("listens_to_ctrl_c")
def test_ctrl_c_waits_for_the_step_and_leaves_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [[7] * 100, [9] * 100]
    before = texts(llm.generate(prompts, GREEDY))
    llm.reset_prefix_cache()
    interrupting(llm, monkeypatch, 0, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts, GREEDY)
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not llm.llm_engine.has_unfinished_requests()
    again = llm.generate(prompts, GREEDY)
    assert texts(again) == before
    assert again[0].num_cached_tokens > 0  # the step that was under way counts


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), RuntimeError("the device is on fire")])
def test_a_step_that_breaks_leaves_no_half_computed_blocks(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, cause: BaseException
) -> None:
    prompts = [[11] * 100, [13] * 100]
    before = texts(llm.generate(prompts, GREEDY))
    llm.reset_prefix_cache()

    def broken() -> None:
        raise cause

    interrupting(llm, monkeypatch, 0, broken)
    with pytest.raises(type(cause)):
        llm.generate(prompts, GREEDY)
    monkeypatch.undo()
    again = llm.generate(prompts, GREEDY)
    assert again[0].num_cached_tokens == 0
    assert texts(again) == before


def test_it_runs_outside_the_main_thread(llm: LLM) -> None:
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.extend(texts(llm.generate("hello", GREEDY))))
    thread.start()
    thread.join(60)
    assert results == texts(llm.generate("hello", GREEDY))


def test_ten_thousand_prompts_stay_few_in_the_engine(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, most = llm.llm_engine.core.scheduler, 0
    step = llm.llm_engine.core.step

    def watched() -> Any:
        nonlocal most
        most = max(most, len(scheduler.running) + len(scheduler.waiting))
        return step()

    monkeypatch.setattr(llm.llm_engine.core, "step", watched)
    prompts = [[3 + i % 250, 4 + i // 250] for i in range(10_000)]
    results = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True))
    assert [result.prompt_token_ids for result in results] == prompts
    assert all(len(result.outputs[0].token_ids) == 1 for result in results)
    assert len({result.request_id for result in results}) == 10_000
    assert 16 <= most <= 32
    assert results[7].outputs[0].token_ids == greedy_ids(prompts[7], 1)


def test_a_bar_of_the_callers_choice(llm: LLM) -> None:
    class Bar:
        def __init__(self, total: int, desc: str) -> None:
            bars.append(self)
            self.total, self.done, self.closed = total, 0, False

        def update(self, count: int) -> None:
            self.done += count

        def close(self) -> None:
            self.closed = True

    bars: list[Bar] = []
    llm.generate(["a", "b", "c"], GREEDY, use_tqdm=Bar)
    assert [(bar.total, bar.done, bar.closed) for bar in bars] == [(3, 3, True)]


def test_a_request_that_could_not_be_added_leaves_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, add = llm.llm_engine, llm.llm_engine.core.scheduler.add

    def broken(*args: Any, **options: Any) -> None:
        add(*args, **options)
        raise OSError("no more processes")

    with monkeypatch.context() as patch:
        patch.setattr(engine.core.scheduler, "add", broken)
        with pytest.raises(OSError, match="no more processes"):
            engine.add_request("a", "hello", GREEDY)
    assert not engine.has_unfinished_requests() and not engine.core.has_work


def test_a_leak_is_healed_when_the_last_request_has_ended(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    pool = llm.llm_engine.core.scheduler.kv.pool
    pool.take()
    assert pool.num_used == 1
    llm.generate("hello", GREEDY)
    assert pool.num_used == 0
    assert "books do not balance (1 faults, healed)" in caplog.text


def test_what_the_engine_still_says_of_forgotten_requests_is_dropped(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = llm.llm_engine
    engine.core.refuse(["gone"], "too late")
    assert engine.step() == []
    engine.add_request("a", "hello", GREEDY)
    ids = [choice.request_id for choice in engine._requests["a"].choices]
    engine.core.refuse(ids, "said with the next step")
    engine.abort_request("a")
    assert not engine.core.has_work, "no delta follows for what is aborted"


# --- step by step -------------------------------------------------------------------------------------------------


def test_an_engine_driven_by_hand(llm: LLM) -> None:
    engine: LLMEngine = llm.llm_engine
    delta = GREEDY.clone()
    delta.output_kind = RequestOutputKind.DELTA
    engine.add_request("cumulative", "hello", GREEDY)
    engine.add_request("delta", "hello", delta)
    engine.add_request("gone", "hello", GREEDY)
    with pytest.raises(RequestError, match="the request id 'delta' is already in use"):
        engine.add_request("delta", "x", GREEDY)
    with pytest.raises(RequestError, match="the prompt is empty"):
        engine.add_request("empty", [], GREEDY)
    engine.abort_request(["gone", "unknown"])
    assert engine.get_num_unfinished_requests() == 2
    cumulative: list[RequestOutput] = []
    pieces: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            {"cumulative": cumulative, "delta": pieces}[output.request_id].append(output)
    assert engine.stats.num_running == 0
    whole = llm.generate("hello", GREEDY)[0].outputs[0]
    assert [len(output.outputs[0].token_ids) for output in cumulative] == list(range(1, 9))
    assert cumulative[-1].outputs == [whole]
    assert all(whole.text.startswith(output.outputs[0].text) for output in cumulative)
    assert [i for output in pieces for i in output.outputs[0].token_ids] == whole.token_ids
    assert "".join(output.outputs[0].text for output in pieces) == whole.text
    assert [output.finished for output in pieces] == [False] * 7 + [True]
