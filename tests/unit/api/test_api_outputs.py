"""What comes of an engine's reports, without an engine: which answers are kept, and what a failure does to the others."""

from __future__ import annotations

import pytest

from quire.api.engine_thread import Subscriber
from quire.errors import RequestError
from quire.outputs.choice import Choice, choices_of
from quire.outputs.state import RequestState
from quire.request import FinishReason, RequestOutputKind, SamplingParams, TokenDelta, TokenLogprobs
from quire.text import Tokenizer, load_tokenizer
from tiny_text import write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_tokenizer(tmp_path_factory.mktemp("tiny")))


def token(choice: Choice, logprob: float) -> TokenDelta:
    """The only token of an answer."""
    return TokenDelta(
        request_id=choice.request_id,
        token_ids=[40],
        finish_reason=FinishReason.LENGTH,
        logprobs=[TokenLogprobs([40], [logprob], 1)],
    )


def test_an_answer_that_failed_is_never_the_best(tokenizer: Tokenizer) -> None:
    choices = choices_of("a", [1], SamplingParams(best_of=4, n=2, max_tokens=1), tokenizer)
    state = RequestState("a", "text", choices, RequestOutputKind.CUMULATIVE)
    failed = TokenDelta(
        request_id=choices[1].request_id, token_ids=[], finish_reason=FinishReason.ERROR, error="no finite logits"
    )
    for choice, delta in zip(choices, [token(choices[0], -3.0), failed, token(choices[2], -1.0), failed], strict=True):
        state.take(choice, delta)
    output = state.output()
    assert output is not None and output.finished
    assert [(one.index, one.token_ids, one.finish_reason) for one in output.outputs] == [
        (0, [40], "length"),
        (1, [40], "length"),
    ]
    state.choices[2].finish_reason = FinishReason.ABORT
    assert choices[2].mean_logprob < choices[0].mean_logprob


def failure(choice: Choice, prompt_logprobs: list[TokenLogprobs] | None = None) -> TokenDelta:
    return TokenDelta(
        request_id=choice.request_id,
        token_ids=[],
        finish_reason=FinishReason.ERROR,
        error="no finite logits",
        prompt_logprobs=prompt_logprobs,
    )


def test_what_a_lost_answer_told_of_the_prompt_is_kept(tokenizer: Tokenizer) -> None:
    params = SamplingParams(best_of=2, n=1, max_tokens=1, prompt_logprobs=0)
    first, second = choices_of("a", [40, 41], params, tokenizer)
    state = RequestState("a", "text", [first, second], RequestOutputKind.CUMULATIVE)
    state.take(first, failure(first, [TokenLogprobs([41], [-0.5], 1)]))
    state.take(second, token(second, -1.0))
    output = state.output()
    assert output is not None and output.prompt_logprobs is not None
    nothing, told = output.prompt_logprobs
    assert nothing is None and told is not None and told[41].logprob == -0.5


async def test_a_stream_of_best_of_fails_only_where_too_few_are_left(tokenizer: Tokenizer) -> None:
    params = SamplingParams(best_of=3, n=2, max_tokens=1)

    def open_stream() -> tuple[RequestState, Subscriber]:
        state = RequestState("a", "text", choices_of("a", [1], params, tokenizer), RequestOutputKind.CUMULATIVE)
        return state, Subscriber(state, priority=0, cache_salt=None)

    state, subscriber = open_stream()
    first, second, third = state.choices
    for choice, delta in ((first, failure(first)), (second, token(second, -3.0)), (third, token(third, -1.0))):
        subscriber.take(choice, delta)
    output = await subscriber.next()
    assert output.finished
    assert [(one.index, one.finish_reason) for one in output.outputs] == [(0, "length"), (1, "length")]
    state, subscriber = open_stream()
    subscriber.take(state.choices[0], failure(state.choices[0]))
    assert state.error is None
    subscriber.take(state.choices[2], failure(state.choices[2]))
    with pytest.raises(RequestError, match="no finite logits"):
        await subscriber.next()


async def test_without_best_of_one_that_fails_is_enough(tokenizer: Tokenizer) -> None:
    choices = choices_of("a", [1], SamplingParams(n=2, max_tokens=1), tokenizer)
    subscriber = Subscriber(
        RequestState("a", "text", choices, RequestOutputKind.CUMULATIVE), priority=0, cache_salt=None
    )
    subscriber.take(choices[1], failure(choices[1]))
    with pytest.raises(RequestError, match="no finite logits"):
        await subscriber.next()


@pytest.mark.parametrize("keep", [False, True])
def test_a_stop_string_that_spells_a_special_token_ends_the_answer_either_way(tokenizer: Tokenizer, keep: bool) -> None:
    given = SamplingParams(stop=("<|im_end|>",), include_stop_str_in_output=keep, max_tokens=50)  # type: ignore[arg-type]
    text = "hello" + ("<|im_end|>" if keep else "")
    for ids in ([*tokenizer.encode_text("hello"), 2], tokenizer.encode_text("hello<|im_end|>!")):
        [choice] = choices_of(
            "a", [1], tokenizer.resolve(given, room=50), tokenizer, stops=tokenizer.names_of_stops(given)
        )
        ended = FinishReason.STOP if ids[-1] == 2 else None
        piece, _ = choice.take(
            TokenDelta(request_id="a", token_ids=ids, finish_reason=ended, stop_token_id=2 if ended else None)
        )
        assert (piece.text, piece.finish_reason, choice.stop_reason) == (text, FinishReason.STOP, "<|im_end|>")
