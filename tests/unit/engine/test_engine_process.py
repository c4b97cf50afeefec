"""The engine process: it answers, idles without work, dies with its parent, and says why it died."""

from __future__ import annotations

import ast
import asyncio
import itertools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from quire.config import EngineConfig
from quire.engine import client as client_module
from quire.engine.client import EngineClient
from quire.engine.spawn import spawn
from quire.engine.startup import build
from quire.errors import ConfigError, EngineDeadError, ModelError, RequestError
from quire.request import AddRequest, FinishReason, SamplingParams, StepOutputs
from quire.structured import structured_output
from quire.text import load_tokenizer
from quire_testing.structured import write_model
from quire_testing.tiny_llama import greedy, make_model, save_folder

DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(make_model(), tmp_path_factory.mktemp("tiny"))


def config(folder: Path | str, **changes: object) -> EngineConfig:
    return EngineConfig(model=str(folder), dtype="float32", cpu_threads=1, num_blocks=64, **changes)  # type: ignore[arg-type]


def request(name: str, prompt: list[int], max_tokens: int = 8) -> AddRequest:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return AddRequest(request_id=name, prompt_token_ids=prompt, params=params, arrival_s=time.monotonic())


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[EngineClient]:
    client = await EngineClient.start(config(folder), deadline_s=DEADLINE_S, log_level="warning")
    yield client
    await client.close()


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def first(client: EngineClient, wanted: str) -> StepOutputs:
    """The first report with a delta for a request."""
    async with asyncio.timeout(30):
        async for step in client.outputs():
            if any(delta.request_id == wanted for delta in step.deltas):
                return step
    raise AssertionError("the outputs ended")


def test_it_is_ready_and_answers(folder: Path) -> None:
    async def talk() -> None:
        client = await EngineClient.start(config(folder), deadline_s=DEADLINE_S, log_level="warning")
        ready = client.ready
        assert (ready.block_size, ready.num_blocks, ready.max_model_len, ready.vocab_size) == (16, 64, 512, 199)
        assert set(ready.startup_s) == {"import", "config", "weights", "kv_pool", "warmup", "total"}
        assert ready.startup_s["total"] == pytest.approx(sum(ready.startup_s.values()) / 2)
        assert ready.info["dtype"] == "float32"
        for name in "abc":
            await client.add(request(name, [5, 6, ord(name)]))
        await client.add(request("bad", []))
        got: dict[str, list[int]] = {}
        errors: dict[str, str | None] = {}
        async with asyncio.timeout(30):
            async for step in client.outputs():
                for delta in step.deltas:
                    got.setdefault(delta.request_id, []).extend(delta.token_ids)
                    if delta.finish_reason is FinishReason.ERROR:
                        errors[delta.request_id] = delta.error
                if len(errors) == 1 and all(len(got.get(name, [])) == 8 for name in "abc"):
                    break
        model = make_model()
        model.generation_config.eos_token_id = None
        assert got == {"bad": [], **{name: greedy(model, [5, 6, ord(name)], 8) for name in "abc"}}
        assert errors == {"bad": "the prompt is empty; it must have at least one token"}
        pid, sockets = client.pid, client._spawned.folder
        await client.close()
        await client.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert not sockets.exists()
        with pytest.raises(EngineDeadError):
            await client.add(request("late", [1]))

    asyncio.run(talk())


async def test_idle_it_reports_once_a_second_and_burns_nothing(client: EngineClient) -> None:
    def cpu_s() -> float:
        fields = Path(f"/proc/{client.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    beats: list[float] = []
    used = 0.0
    async with asyncio.timeout(30):
        async for step in client.outputs():
            assert step.deltas == []
            assert (step.stats.num_running, step.stats.num_blocks_used, step.stats.step_s) == (0, 0, 0.0)
            beats.append(step.stats.heartbeat_s)
            if len(beats) == 1:
                used = cpu_s()
            if len(beats) == 4:
                break
    assert cpu_s() - used <= 0.1
    assert all(0.9 < later - earlier < 3.0 for earlier, later in itertools.pairwise(beats))


async def test_what_cannot_be_read_fails_alone(client: EngineClient, capfd: pytest.CaptureFixture[str]) -> None:
    await client.add(request("long", [1, 2, 3], max_tokens=30))
    good = msgspec.to_builtins(request("bad", [5]))
    siblings = [{"request_id": "bad-1", "seed": 1}]
    frames = [
        {**good, "type": "add", "siblings": siblings, "params": {"seed": 1.76e9}},
        {**good, "type": "add", "request_id": "worse", "params": {"n": -1}},
        {**good, "type": "unheard of", "request_id": "worst"},
        {"type": "abort", "request_ids": 3},
        [],
    ]
    for frame in frames:
        await client._requests.send(msgspec.msgpack.encode(frame))
    await client._requests.send(b"\xc1 no msgpack")
    errors: dict[str, str | None] = {}
    tokens = 0
    async with asyncio.timeout(30):
        async for step in client.outputs():
            errors |= {d.request_id: d.error for d in step.deltas if d.finish_reason is FinishReason.ERROR}
            tokens += sum(len(delta.token_ids) for delta in step.deltas)
            if len(errors) == 4 and tokens == 30:
                break
    assert errors.keys() == {"bad", "bad-1", "worse", "worst"}
    assert "cannot read it: Expected `int | null`, got `float`" in (errors["bad"] or "")
    assert "n must be between 1 and 128, got -1" in (errors["worse"] or "")
    await client.add(request("next", [4]))
    assert (await first(client, "next")).deltas[0].request_id == "next"


async def test_what_cannot_travel_is_refused(client: EngineClient) -> None:
    params = SamplingParams(max_tokens=2, extra_args={"f": object()})
    with pytest.raises(RequestError, match="cannot be sent to the engine: Encoding objects of type object"):
        await client.add(msgspec.structs.replace(request("bad", [5]), params=params))
    await client.add(request("next", [4]))
    assert (await first(client, "next")).deltas[0].request_id == "next"


async def test_abort_frees_blocks_within_the_step(client: EngineClient) -> None:
    await client.add(request("long", [1, 2, 3], max_tokens=500))
    step = await first(client, "long")
    assert step.stats.num_blocks_used > 0
    await client.abort(["long", "unknown"])
    async with asyncio.timeout(30):
        async for step in client.outputs():
            if step.stats.num_running == 0:
                break
    assert step.stats.num_blocks_used == 0
    await client.add(request("next", [4]))
    assert (await first(client, "next")).deltas[0].request_id == "next"


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_killed_engine_is_noticed_at_once(client: EngineClient, sent: signal.Signals) -> None:
    await client.add(request("a", [1], max_tokens=500))
    await first(client, "a")
    os.kill(client.pid, sent)
    with pytest.raises(EngineDeadError, match=f"the engine process was killed by {sent.name}"):
        async with asyncio.timeout(30):
            async for _ in client.outputs():
                pass
    with pytest.raises(EngineDeadError, match=sent.name):
        await client.add(request("b", [1]))
    with pytest.raises(EngineDeadError, match=sent.name):
        await client.abort(["a"])


async def test_an_engine_that_stands_still_is_waited_for_until_it_must_end_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CLOSE_DEADLINE_S", 3600.0)
    client = await EngineClient.start(config(folder), deadline_s=DEADLINE_S, log_level="warning")
    process = client._spawned.process
    process.send_signal(signal.SIGSTOP)
    at_once = asyncio.Event()
    closing = asyncio.ensure_future(client.close(at_once=at_once))
    await asyncio.wait([closing], timeout=0.1)
    assert not closing.done()
    at_once.set()
    async with asyncio.timeout(30):
        await closing
    assert process.returncode == -signal.SIGKILL


async def test_a_step_that_fails_ends_the_engine_with_its_cause(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # the interpreter of the engine process runs this at its start
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'quire.engine.process' in sys.orig_argv:\n"
        "    from quire.engine.runner import ModelRunner\n"
        "    run = ModelRunner.run\n"
        "    def failing(self, plan):\n"
        "        if plan.scheduled[0].sequence.request_id == 'boom':\n"
        "            raise RuntimeError('the device is on fire')\n"
        "        return run(self, plan)\n"
        "    ModelRunner.run = failing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    client = await EngineClient.start(config(folder), deadline_s=DEADLINE_S, log_level="critical")
    await client.add(request("boom", [1]))
    with pytest.raises(EngineDeadError, match="the engine failed: RuntimeError: the device is on fire"):
        await first(client, "boom")
    assert await asyncio.wait_for(client._exited, 5) == 1
    with pytest.raises(EngineDeadError, match="the device is on fire"):
        await client.add(request("b", [1]))
    await client.close()


async def test_a_leak_is_healed_when_idle_and_the_engine_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'quire.engine.process' in sys.orig_argv:\n"
        "    from quire.engine.scheduler import Scheduler\n"
        "    finish = Scheduler._finish\n"
        "    def leaking(self, sequence):\n"
        "        finish(self, sequence)\n"
        "        if sequence.request_id == 'leak':\n"
        "            self.kv.pool.take()\n"
        "    Scheduler._finish = leaking\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    client = await EngineClient.start(config(folder), deadline_s=DEADLINE_S, log_level="error")
    await client.add(request("leak", [1, 2, 3]))
    used: list[int] = []
    async with asyncio.timeout(30):
        async for step in client.outputs():
            used.append(step.stats.num_blocks_used)
            if step.stats.kv_faults:
                break
    assert used[-2:] == [1, 0], "the block is lost until the first idle moment"
    assert step.stats.kv_faults == 1
    await client.add(request("next", [4]))
    assert (await first(client, "next")).stats.kv_faults == 1
    await client.close()
    assert "the KV cache's books do not balance (1 faults, healed)" in capfd.readouterr().err


@pytest.mark.parametrize("busy", [True, False])
async def test_a_server_that_closes_its_sockets_ends_the_engine(
    folder: Path, busy: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    client = await EngineClient.start(config(folder), deadline_s=DEADLINE_S, log_level="error")
    if busy:
        await client.add(request("long", [1], max_tokens=500))
        await first(client, "long")
    client._context.destroy(linger=0)
    assert await asyncio.wait_for(client._exited, 5) == 1
    *_, last = capfd.readouterr().err.strip().splitlines()
    assert last.endswith("the server closed its socket and did not say why; the engine ends too")
    await client.close()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "/nowhere"}, ModelError, "/nowhere does not exist"),
        ({"device": "cuda"}, ConfigError, "--device cuda: torch finds no CUDA device here"),
    ],
)
async def test_a_start_that_cannot_be_says_why(
    folder: Path, changes: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await EngineClient.start(config(folder).model_copy(update=changes), deadline_s=DEADLINE_S)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"max_model_len": 100_000}, ConfigError, "--max-model-len 100000 is more than the 512 tokens"),
        ({"max_model_len": 500, "num_blocks": 4}, ModelError, "--max-model-len 64 fits"),
        ({"kv_cache_memory": "9999Gi", "num_blocks": None}, ModelError, "--kv-cache-memory 9999Gi does not fit"),
    ],
)
def test_a_configuration_that_cannot_be_says_why(
    folder: Path, changes: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build(config(folder).model_copy(update=changes))


async def test_a_process_that_was_spawned_before_becomes_the_engine(folder: Path) -> None:
    spawned = spawn()
    client = await EngineClient.start(config(folder), deadline_s=DEADLINE_S, spawned=spawned)
    assert client.pid == spawned.process.pid
    assert 0 < client.ready.startup_s["import"] < DEADLINE_S
    await client.close()
    assert spawned.process.returncode is not None
    assert not spawned.folder.exists()


def test_a_process_that_gets_no_configuration_ends(capfd: pytest.CaptureFixture[str]) -> None:
    spawned = spawn()
    assert spawned.process.stdin is not None
    spawned.process.stdin.close()
    assert spawned.process.wait(DEADLINE_S) == 0
    spawned.end()
    spawned.end()
    assert not spawned.folder.exists()
    assert capfd.readouterr().err == ""


async def test_a_start_that_takes_too_long_is_ended(folder: Path) -> None:
    with pytest.raises(EngineDeadError, match="the engine was not ready within 0 s"):
        await EngineClient.start(config(folder), deadline_s=0.01)


PARENT = """
import asyncio, sys
from quire.config import EngineConfig
from quire.engine.client import EngineClient
from quire.engine.spawn import spawn

async def main():
    config = EngineConfig(model=sys.argv[1], cpu_threads=1, num_blocks=64)
    client = await EngineClient.start(config, deadline_s=120, log_level="error")
    print(client.pid, client._spawned.folder, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_the_engine_dies_with_its_parent(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, sockets = parent.stdout.readline().split()
        engine = os.pidfd_open(int(pid))
        parent.kill()
    os.set_blocking(engine, False)
    try:
        poller = select.poll()
        poller.register(engine)
        assert poller.poll(5_000), "the engine outlived its parent by 5 s"
    finally:
        os.close(engine)
        for socket in Path(sockets).glob("*"):
            socket.unlink()
        Path(sockets).rmdir()


async def test_structured_outputs_come_from_processes_that_end_with_the_engine(tmp_path: Path) -> None:
    client = await EngineClient.start(config(write_model(tmp_path)), deadline_s=DEADLINE_S, log_level="warning")
    try:
        params = SamplingParams(max_tokens=30, seed=1, structured_outputs=structured_output(choice=["yes", "no"]))
        await client.add(AddRequest(request_id="a", prompt_token_ids=[5, 6], params=params, arrival_s=time.monotonic()))
        tokens: list[int] = []
        waited = False
        async with asyncio.timeout(DEADLINE_S):
            async for step in client.outputs():
                waited |= (step.stats.num_waiting, step.stats.batch_size) == (1, 0)
                tokens += [token for delta in step.deltas for token in delta.token_ids]
                if any(delta.finish_reason is FinishReason.STOP for delta in step.deltas):
                    break
        assert waited, "it counts as waiting while its grammar is compiled, and the engine gives signs of life"
        assert load_tokenizer(tmp_path).decode(tokens) in ("yes", "no")
        [nursery] = children(client.pid)
        lifeline = os.pidfd_open(nursery)
        assert not select.select([lifeline], [], [], 0)[0]
    finally:
        await client.close()
    assert select.select([lifeline], [], [], 10)[0], "the nursery is still there"
    os.close(lifeline)


def test_the_engine_imports_torch_without_what_it_does_not_use_and_that_comes_when_wanted() -> None:
    code = (
        "import sys, quire.engine.process, torch\n"
        "absent = {'torch._refs', 'torch._decomp', 'torch._prims', 'torch.export', 'torch.distributions', 'torch._tensor_docs'}\n"
        "from quire.models.lean_torch import LATER, Absent, import_rest, import_torch\n"
        "assert not (absent | set(LATER)) & set(sys.modules)\n"
        "assert not hasattr(torch, '_meta_registrations') and not hasattr(torch.nn, 'quantized')\n"
        "try: torch.vmap(print)\n"
        "except NotImplementedError as exc: assert 'import_rest' in str(exc)\n"
        "import_torch(); import_rest()\n"
        "assert not [name for name, module in sys.modules.items() if name not in ('quire.models.lean_torch', '__main__', '__mp_main__')\n"
        "            and any(value is Absent for value in vars(module).values())]\n"
        "assert torch.vmap(torch.neg)(torch.ones(2)).tolist() == [-1, -1]\n"
        "with torch.device('meta'):\n"
        "    halves = torch.nn.LayerNorm(8)(torch.ones(3, 8)).chunk(2, dim=-1)\n"
        "assert [tuple(half.shape) for half in halves] == [(3, 4), (3, 4)]\n"
        "assert torch._meta_registrations.__file__\n"
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "with FakeTensorMode():\n"
        "    assert torch.linalg.svdvals(torch.ones(5, 3)).shape == (3,)\n"
        "print(sorted(name for name in vars(torch) if not name.startswith('__')))\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    told = []
    for lines in (code, "import torch\nprint(sorted(name for name in vars(torch) if not name.startswith('__')))"):
        done = subprocess.run([sys.executable, "-c", lines], check=False, capture_output=True, text=True, env=environ)
        assert (done.returncode, done.stderr) == (0, "")
        told.append(set(ast.literal_eval(done.stdout)))
    assert not told[1] - told[0]
