"""`AsyncLLMEngine`: streams, aborts that free blocks, and an engine that dies without leaving anyone waiting."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from quire import AsyncEngineArgs, AsyncLLM, AsyncLLMEngine, RequestOutput, RequestOutputKind, SamplingParams
from quire.api import engine_thread
from quire.errors import ConfigError, EngineDeadError, ModelError, RequestError
from tiny_api import greedy_ids, tiny_folder

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=500, ignore_eos=True)
IDS = [5, 6, 7]


def args(folder: Path, **changes: Any) -> AsyncEngineArgs:
    return AsyncEngineArgs(**{"model": folder, "dtype": "float32", "cpu_threads": 1, "num_blocks": 64, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[AsyncLLMEngine]:
    with AsyncLLMEngine.from_engine_args(args(folder)) as engine:
        yield engine


@pytest.fixture
def mortal(folder: Path) -> Iterator[AsyncLLMEngine]:
    """An engine that a test may kill."""
    with AsyncLLMEngine.from_engine_args(args(folder)) as engine:
        yield engine


async def outputs(
    engine: AsyncLLMEngine, params: SamplingParams = GREEDY, name: str | None = None
) -> list[RequestOutput]:
    async with asyncio.timeout(60):
        return [output async for output in engine.generate({"prompt_token_ids": IDS}, params, name)]


async def quiet(engine: AsyncLLMEngine) -> None:
    """The engine does what it is told in order: when a request ends, aborts sent before it are done."""
    await outputs(engine, SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True))
    assert engine.stats is not None
    assert (engine.stats.num_running, engine.stats.num_waiting, engine.stats.num_blocks_used) == (0, 0, 0)


def kind(params: SamplingParams, output_kind: RequestOutputKind) -> SamplingParams:
    copy = params.clone()
    copy.output_kind = output_kind
    return copy


async def test_cumulative_delta_and_final(engine: AsyncLLMEngine) -> None:
    expected = greedy_ids(IDS, 8)
    text = (await engine.get_tokenizer()).decode(expected)
    cumulative = await outputs(engine, GREEDY, "mine")
    assert {output.request_id for output in cumulative} == {"mine"}
    assert [output.finished for output in cumulative] == [False] * (len(cumulative) - 1) + [True]
    lengths = [len(output.outputs[0].token_ids) for output in cumulative]
    assert lengths == sorted(set(lengths))
    for output in cumulative:
        assert output.outputs[0].token_ids == expected[: len(output.outputs[0].token_ids)]
    last = cumulative[-1].outputs[0]
    assert (last.text, last.token_ids, last.finish_reason) == (text, expected, "length")
    pieces = await outputs(engine, kind(GREEDY, RequestOutputKind.DELTA))
    assert [i for output in pieces for i in output.outputs[0].token_ids] == expected
    assert "".join(output.outputs[0].text for output in pieces) == text
    [final] = await outputs(engine, kind(GREEDY, RequestOutputKind.FINAL_ONLY))
    assert final.outputs == [last]


async def test_a_slow_reader_gets_everything_at_once(engine: AsyncLLMEngine) -> None:
    stream = engine.generate(IDS, kind(GREEDY, RequestOutputKind.DELTA))
    got = [await anext(stream)]
    await outputs(
        engine, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    )  # the first one has long ended
    got += [output async for output in stream]
    assert len(got) <= 2  # one where all of it came before we looked
    assert [i for output in got for i in output.outputs[0].token_ids] == greedy_ids(IDS, 8)


async def test_several_answers(engine: AsyncLLMEngine) -> None:
    params = SamplingParams(n=3, seed=11, max_tokens=6, ignore_eos=True)
    first, again = (await outputs(engine, params))[-1], (await outputs(engine, params))[-1]
    assert [output.index for output in first.outputs] == [0, 1, 2]
    assert len({tuple(output.token_ids) for output in first.outputs}) == 3
    assert again.outputs == first.outputs
    [alone] = await outputs(
        engine, kind(SamplingParams(seed=11, max_tokens=6, ignore_eos=True), RequestOutputKind.FINAL_ONLY)
    )
    assert alone.outputs[0].token_ids == first.outputs[0].token_ids


async def test_a_stop_string_frees_the_sequence(engine: AsyncLLMEngine) -> None:
    text = (await outputs(engine))[-1].outputs[0].text
    stop = text[3:5]
    params = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True, stop=(stop,))
    result = (await outputs(engine, params))[-1].outputs[0]
    assert (result.text, result.finish_reason, result.stop_reason) == (text[: text.index(stop)], "stop", stop)
    await quiet(engine)


async def test_many_tasks_at_once(engine: AsyncLLMEngine) -> None:
    async def one(number: int) -> list[int]:
        params = SamplingParams(temperature=0.0, max_tokens=5 + number % 7, ignore_eos=True)
        last = None
        async for output in engine.generate([3 + number, 9], params, f"task-{number}"):
            last = output
        assert last is not None and last.finished
        return last.outputs[0].token_ids

    async with asyncio.timeout(120):
        answers = await asyncio.gather(*(one(number) for number in range(60)))
    assert [len(answer) for answer in answers] == [5 + number % 7 for number in range(60)]
    assert answers[17] == greedy_ids([20, 9], 8)
    await quiet(engine)


def test_it_serves_one_event_loop_after_another(engine: AsyncLLMEngine) -> None:
    first, second = (asyncio.run(outputs(engine))[-1].outputs for _ in range(2))
    assert first == second
    assert first[0].token_ids == greedy_ids(IDS, 8)


# --- leaving early ------------------------------------------------------------------------------------------------


async def test_breaking_out_aborts_at_once(engine: AsyncLLMEngine) -> None:
    async for output in engine.generate(IDS, LONG):
        assert not output.finished
        break
    gc.collect()
    await quiet(engine)
    async with aclosing(engine.generate(IDS, LONG)) as stream:
        await anext(stream)
    await quiet(engine)


async def test_cancelling_aborts_at_once(engine: AsyncLLMEngine) -> None:
    started = asyncio.Event()

    async def read() -> None:
        async for _ in engine.generate(IDS, LONG):
            started.set()

    task = asyncio.create_task(read())
    await asyncio.wait_for(started.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await quiet(engine)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
async def test_cancelling_while_handing_over(engine: AsyncLLMEngine, turns: int) -> None:
    tasks = [
        asyncio.create_task(outputs(engine, SamplingParams(n=4, max_tokens=400, ignore_eos=True))) for _ in range(8)
    ]
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))
    await quiet(engine)
    assert engine._thread._requests == {} and engine._thread._choices == {}


async def test_abort_gives_a_last_output(engine: AsyncLLMEngine) -> None:
    stream = engine.generate(IDS, SamplingParams(n=2, max_tokens=400, ignore_eos=True, seed=1), "victim")
    await anext(stream)
    await engine.abort(["victim", "unknown"])
    async with asyncio.timeout(30):
        rest = [output async for output in stream]
    assert rest[-1].finished
    assert [output.finish_reason for output in rest[-1].outputs] == ["abort", "abort"]
    await engine.abort("victim")
    await quiet(engine)


async def test_an_id_in_use_is_refused_and_its_owner_goes_on(engine: AsyncLLMEngine) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)  # it must not end before the second comes
    stream = engine.generate(IDS, kind(long, RequestOutputKind.FINAL_ONLY), "same")
    first = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    with pytest.raises(RequestError, match="the request id 'same' is already in use"):
        await outputs(engine, GREEDY, "same")
    assert (await first).outputs[0].token_ids[:8] == greedy_ids(IDS, 8)
    assert (await outputs(engine, GREEDY, "same"))[-1].finished  # free again


async def test_an_id_may_come_again_while_the_engine_still_works_on_the_first(
    engine: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes longer than a program needs to ask anew: the engine hears of the stop string too late."""
    text = (await outputs(engine))[-1].outputs[0].text
    first = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True, stop=(text[3:5],))
    late: list[str] = []

    async def unheard(request_ids: Iterable[str]) -> None:
        late.extend(request_ids)

    with monkeypatch.context() as patch:
        patch.setattr(engine._thread._client, "abort", unheard)
        for _ in range(3):
            stopped = (await outputs(engine, first, "chat"))[-1].outputs[0]
            assert (stopped.text, stopped.finish_reason) == (text[: text.index(text[3:5])], "stop")
            async with asyncio.timeout(60):
                again = [o async for o in engine.generate({"prompt_token_ids": [9, 9]}, GREEDY, "chat")]
            assert again[-1].request_id == "chat"
            assert again[-1].outputs[0].token_ids == greedy_ids([9, 9], 8)
            assert again[-1].outputs[0].finish_reason == "length"
    assert len(late) == 3
    await engine._thread._client.abort(late)
    await quiet(engine)


async def test_values_of_another_kind_fail_alone(engine: AsyncLLMEngine) -> None:
    """Each of these once ended the engine, or would, if it came there."""
    for field, value in [("seed", time.time()), ("max_tokens", 16.0), ("ignore_eos", "yes"), ("min_tokens", 1.5)]:
        late = GREEDY.clone()
        setattr(late, field, value)
        with pytest.raises(RequestError, match=f"{field} must be"):
            await outputs(engine, late)
    for priority, message in [(1.5, "32-bit integer"), (2**70, "32-bit integer"), (3, "no effect under the scheduler")]:
        with pytest.raises(RequestError, match=message):
            await anext(engine.generate(IDS, GREEDY, "ranked", priority=priority))  # type: ignore[arg-type]
    custom = GREEDY.clone()
    custom.extra_args = {"mask": object()}
    with pytest.raises(RequestError, match="cannot be sent to the engine"):
        await outputs(engine, custom, "ranked")
    [true] = [o async for o in engine.generate([True, 6, 7], kind(GREEDY, RequestOutputKind.FINAL_ONLY))]
    assert true.prompt_token_ids == [1, 6, 7]
    assert (await outputs(engine, GREEDY, "ranked"))[-1].finished
    await quiet(engine)


async def test_bad_requests_fail_alone(engine: AsyncLLMEngine) -> None:
    async def refused(prompt: Any, message: str, params: SamplingParams = GREEDY, **more: Any) -> None:
        with pytest.raises(RequestError, match=message):
            await anext(engine.generate(prompt, params, **more))

    await refused([], "the prompt is empty")
    await refused([5] * 600, "the prompt has 600 tokens, the model's length is 512")
    await refused({"text": "x"}, "a prompt with text is not supported")
    await refused(IDS, "lora_request is not supported", lora_request=object())
    bad = GREEDY.clone()
    bad.n = 0
    await refused(IDS, "n must be between 1 and 128", bad)
    await quiet(engine)
    assert engine.is_running and not engine.errored and not engine.is_stopped
    await engine.check_health()


async def test_the_prefix_cache_can_be_reset(engine: AsyncLLMEngine) -> None:
    prompt = {"prompt_token_ids": list(range(3, 60))}
    seen = []
    for reset in (True, False, True):
        if reset:
            assert await engine.reset_prefix_cache() is True
        [final] = [o async for o in engine.generate(prompt, kind(GREEDY, RequestOutputKind.FINAL_ONLY))]
        seen.append(final.num_cached_tokens)
    assert seen == [0, 48, 0]


async def test_a_long_text_is_encoded_beside_the_loop(engine: AsyncLLMEngine) -> None:
    with pytest.raises(RequestError, match="the prompt has 8000 tokens"):
        await anext(engine.generate("hello" * 8000, GREEDY))
    with pytest.raises(RequestError, match="the prompt has 8000 tokens"):
        await anext(engine.generate({"prompt": "hello" * 8000}, GREEDY))


# --- the end of the engine ----------------------------------------------------------------------------------------


async def test_a_killed_engine_fails_every_open_stream(mortal: AsyncLLMEngine) -> None:
    streams = [mortal.generate([5 + i], LONG, str(i)) for i in range(5)]
    for stream in streams:
        await anext(stream)
    waiting = [asyncio.create_task(drain(stream)) for stream in streams]
    os.kill(mortal._thread._client.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in errors] == [EngineDeadError] * 5
    assert "killed by SIGKILL" in str(errors[0])
    assert mortal.errored and not mortal.is_running
    assert mortal.dead_error is not None and "SIGKILL" in str(mortal.dead_error)
    for attempt in (mortal.check_health(), mortal.abort("0"), mortal.reset_prefix_cache(), outputs(mortal)):
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await attempt
    mortal.shutdown()
    mortal.shutdown()


async def drain(stream: Any) -> None:
    async for _ in stream:
        pass


async def test_a_shutdown_fails_every_open_stream(folder: Path) -> None:
    async with AsyncLLM.from_engine_args(args(folder)) as engine:
        pid = engine._thread._client.pid
        stream = engine.generate(IDS, LONG)
        await anext(stream)
        waiting = asyncio.create_task(drain(stream))
        await asyncio.sleep(0)
    with pytest.raises(EngineDeadError, match="the engine is shut down"):
        await asyncio.wait_for(waiting, 5)
    with pytest.raises(EngineDeadError, match="the engine is shut down"):
        await outputs(engine)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not engine._thread._thread.is_alive()


async def test_a_silent_engine_with_work_is_not_healthy(
    mortal: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = mortal._thread._client.pid
    stream = mortal.generate(IDS, LONG)
    await anext(stream)
    await mortal.check_health()
    os.kill(pid, signal.SIGSTOP)
    try:
        monkeypatch.setattr(engine_thread, "SILENCE_S", -1.0)
        with pytest.raises(EngineDeadError, match="gave no sign of life"):
            await mortal.check_health()
    finally:
        os.kill(pid, signal.SIGCONT)
    await stream.aclose()


def test_dropping_it_ends_the_process(folder: Path) -> None:
    engine = AsyncLLMEngine.from_engine_args(args(folder))
    pid = engine._thread._client.pid
    del engine
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_start_that_cannot_be_says_why(folder: Path) -> None:
    with pytest.raises(ModelError, match="/nowhere does not exist"):
        AsyncLLMEngine.from_engine_args(args(Path("/nowhere")))
    with pytest.raises(ConfigError, match="--max-num-seqs must be"):
        AsyncLLMEngine.from_engine_args(args(folder, max_num_seqs=0))
    with pytest.raises(ConfigError, match="--max-model-len 100000 is more than the 512 tokens"):
        AsyncLLMEngine.from_engine_args(args(folder, max_model_len=100_000))


PROGRAM = """
import asyncio, sys
from quire import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

async def main():
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(sys.argv[1], dtype="float32", cpu_threads=1, num_blocks=64))
    async for output in engine.generate([5, 6, 7], SamplingParams(max_tokens=500, ignore_eos=True), "a"):
        print(engine._thread._client.pid, len(output.outputs[0].token_ids), flush=True)
        break
    assert "torch" not in sys.modules

asyncio.run(main())
"""


def test_a_program_that_just_ends_leaves_no_process(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout.split()[0]), 0)
