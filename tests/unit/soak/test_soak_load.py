"""What the soak takes for a right answer, and that it tells of a wrong one at once."""

import pytest

from soak import shown
from soak_load import DONE, KINDS, Tally, ended, table


@pytest.mark.parametrize(
    ("content", "right"),
    [
        (b'data: {"x": 1}\n\ndata: [DONE]\n\n', True),
        (b"data: [DONE]\n\n", True),
        (b'data: {"x": 1}\n\n', False),
        (b"data: [DONE]\n\ndata: {}\n\n", False),
        (b"data: {}\n\ndata: [DONE]\n", False),
        (b"data: {}\n\ndata: [DO", False),
        (b"", False),
    ],
)
def test_a_stream_has_ended_with_its_last_event(content: bytes, right: bool) -> None:
    assert ended(content, DONE) is right


def test_the_last_event_may_be_long_and_must_be_one_that_ends() -> None:
    ends = KINDS["responses, streamed"].ends
    begun = b'event: response.created\ndata: {"type": "response.created"}\n\n'
    whole = b'event: response.incomplete\ndata: {"type": "response.incomplete", "response": {%s}}\n\n' % (b" " * 5000)
    assert ended(begun + whole, ends) and not ended(begun, ends) and not ended(begun + whole[:-300], ends)


def test_a_fault_is_told_when_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    tally.outcomes["chat", "good"] += 2
    for number in range(60):
        tally.fault("chat", f"500 number {number}")
    assert capsys.readouterr().err.splitlines()[0] == "fault: chat: 500 number 0"
    assert tally.num_faults == 60 and len(tally.faults) == 50
    assert table(tally).splitlines()[-1].split() == ["all", "2", "0", "0", "0", "60"]


def test_a_server_that_refuses_or_loses_everybody_has_not_passed() -> None:
    tally = Tally()
    for name in (*KINDS, "GET"):
        tally.outcomes[name, "busy"] += 9
        tally.outcomes[name, "left"] += 9
    assert not tally.num_faults and tally.unanswered() == [*KINDS, "GET"]
    for name, kind in KINDS.items():
        tally.outcomes[name, "good" if kind.good == 200 else "refused"] += 1
    assert tally.unanswered() == ["GET"]
    tally.outcomes["GET", "good"] += 1
    assert not tally.unanswered()


def test_a_metric_that_is_not_there_is_no_zero() -> None:
    page = '# TYPE quire_gpu_cache_usage gauge\nquire_gpu_cache_usage{model_name="m"} 0.25\nquire_gpu_cache_usage_of_old{model_name="m"} 9\n'
    assert shown(page, "quire_gpu_cache_usage") == 0.25
    with pytest.raises(LookupError, match="/metrics has no quire_kv_cache_faults_total"):
        shown(page, "quire_kv_cache_faults_total")
