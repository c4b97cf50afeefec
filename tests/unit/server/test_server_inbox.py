"""What waits for a slow reader: in order, complete, and bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.errors import EngineDeadError
from quire.outputs.choice import Choice
from quire.request import FinishReason, SamplingParams, TokenDelta, TokenLogprobs
from quire.server.flight.inbox import MERGE_FROM, Inbox


def choice(index: int) -> Choice:
    text: Any = None
    return Choice(f"r-{index}", index, 0, [1], SamplingParams(), text)


def delta(*token_ids: int, **fields: Any) -> TokenDelta:
    return TokenDelta(request_id="r", token_ids=list(token_ids), **fields)


async def read(box: Inbox) -> list[tuple[int, TokenDelta]]:
    found = [await box.get() for _ in range(len(box))]
    return [(one.index, report) for one, report in found]


async def test_a_reader_that_keeps_up_gets_each_report() -> None:
    box, one = Inbox(), choice(0)
    reports = [delta(n) for n in range(1000)]
    for report in reports:
        box.put(one, report)
        assert (await box.get())[1] is report
    waiting = asyncio.ensure_future(box.get())
    await asyncio.sleep(0)
    box.put(one, reports[0])
    assert await waiting == (one, reports[0])


async def test_behind_reports_join_the_last_one_of_their_choice() -> None:
    box, choices = Inbox(), [choice(0), choice(1)]
    sent: dict[int, list[int]] = {0: [], 1: []}
    first = delta(0, num_cached_tokens=7, queue_s=0.5)
    box.put(choices[0], first)
    sent[0].append(0)
    for n in range(1, 10_000):
        box.put(choices[n % 2], delta(n))
        sent[n % 2].append(n)
    box.put(choices[0], delta(5, finish_reason=FinishReason.STOP, stop_token_id=5))
    box.put(choices[1], delta(finish_reason=FinishReason.LENGTH))
    sent[0].append(5)
    assert len(box) == MERGE_FROM
    got = await read(box)
    for index in (0, 1):
        own = [report for place, report in got if place == index]
        assert [token for report in own for token in report.token_ids] == sent[index]
        assert [report.finish_reason for report in own[:-1]] == [None] * (len(own) - 1)
    assert got[0][1] is first
    last = dict(got)
    assert (last[0].finish_reason, last[0].stop_token_id) == (FinishReason.STOP, 5)
    assert (last[1].finish_reason, last[1].stop_token_id) == (FinishReason.LENGTH, None)
    box.put(choices[0], delta(1))
    assert await read(box) == [(0, delta(1))], "what was read is not extended"


async def test_what_is_being_read_is_not_extended() -> None:
    box, choices = Inbox(), [choice(0), choice(1)]
    box.put(choices[1], delta(1))
    for n in range(MERGE_FROM):
        box.put(choices[0], delta(n))
    _, first = await box.get()
    box.put(choices[1], delta(2))
    assert first.token_ids == [1]
    assert [report.token_ids for index, report in await read(box) if index == 1] == [[2]]


async def test_log_probabilities_stay_with_their_tokens() -> None:
    box, one = Inbox(), choice(0)
    for n in range(MERGE_FROM + 10):
        box.put(one, delta(n, logprobs=[TokenLogprobs([n], [-1.0], 1)]))
    tokens = [token for _, report in await read(box) for token in report.token_ids]
    assert tokens == list(range(MERGE_FROM + 10))


async def test_an_error_comes_after_what_was_before_it() -> None:
    box, one = Inbox(), choice(0)
    for n in range(MERGE_FROM + 10):
        box.put(one, delta(n))
    box.put(one, delta(finish_reason=FinishReason.ERROR, error="boom"))
    box.fail(EngineDeadError("gone"))
    got = [(await box.get())[1] for _ in range(MERGE_FROM + 1)]
    assert got[-1].error == "boom" and got[-2].token_ids[-1] == MERGE_FROM + 9
    with pytest.raises(EngineDeadError, match="gone"):
        await box.get()


async def test_a_vector_is_not_lost_where_reports_are_joined() -> None:
    """Of a prompt that was told of when it began, behind many others."""
    box: Inbox[Choice] = Inbox()
    for index in range(MERGE_FROM):
        box.put(choice(index), delta())
    box.put(choice(0), delta(finish_reason=FinishReason.STOP, vector=b"1234"))
    assert len(box) == MERGE_FROM
    [(index, report), *_] = await read(box)
    assert (index, report.finish_reason, report.vector) == (0, FinishReason.STOP, b"1234")
