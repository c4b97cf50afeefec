"""The process: announcement, drain, second signal, death of the engine, refusals; as a real process with real signals."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from live_server import events_of
from server_process import Process, process

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


async def streaming(running: Process) -> asyncio.Task[httpx.Response]:
    """A streamed request that the server has in flight."""
    task = asyncio.create_task(running.http.post("/v1/chat/completions", json={**CHAT, "stream": True}))
    async with asyncio.timeout(30):
        while (await running.http.get("/load")).json()["server_load"] == 0:
            pass
    return task


async def test_it_announces_itself_and_ends_on_sigterm(tmp_path: Path) -> None:
    async with process(tmp_path) as running:
        url = str(running.http.base_url)
        assert url in await running.line("quire serves")
        await running.line("KV cache")
        assert url in await running.line("curl")
        assert (await running.http.post("/v1/chat/completions", json=CHAT)).status_code == 200
        running.send(signal.SIGTERM)
        assert (await running.end())[0] == 0


async def test_the_models_sampling_defaults_are_said_once_and_hold(tmp_path: Path) -> None:
    async with process(tmp_path, "told", temperature=0.25, max_new_tokens=7) as running:
        await running.line("curl")
        answer = (await running.http.post("/v1/chat/completions", json=CHAT)).json()
        assert answer["choices"][0]["message"]["content"] == "0.25 7"
        running.send(signal.SIGTERM)
        async with asyncio.timeout(30):
            _, logged = await running.handle.communicate()
    said = [line for line in logged.decode().splitlines() if "sampling defaults of" in line]
    assert len(said) == 1
    assert "temperature 0.25, max_tokens 7; --generation-config none leaves them out" in said[0]


async def test_bad_sampling_defaults_end_the_start(tmp_path: Path) -> None:
    async with process(tmp_path, temperature=-1) as running:
        status, last = await running.end()
    assert status == 1
    assert last.startswith(
        f"quire: error: {tmp_path / 'generation_config.json'}: temperature must be between 0 and 100"
    )


async def test_drain_lets_running_requests_finish(tmp_path: Path) -> None:
    async with process(tmp_path, "hold") as running:
        await running.line("curl")
        task = await streaming(running)
        running.send(signal.SIGTERM)
        await running.line("draining: 1 requests")
        assert (await running.http.get("/health/ready")).status_code == 503
        assert (await running.http.get("/health/live")).status_code == 200
        refused = await running.http.post("/v1/chat/completions", json=CHAT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        running.send(signal.SIGUSR1)
        assert events_of((await task).text)[-1] == "[DONE]"
        assert (await running.end())[0] == 0


async def test_the_drain_has_an_end(tmp_path: Path) -> None:
    async with process(tmp_path, "hold", drain_s=0.1) as running:
        await running.line("curl")
        task = await streaming(running)
        running.send(signal.SIGTERM)
        response = await task
        assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
        assert (await running.end())[0] == 0


@pytest.mark.parametrize("mode", ["hold", "stuck"])
async def test_a_second_signal_ends_at_once(tmp_path: Path, mode: str) -> None:
    async with process(tmp_path, mode, drain_s=1000) as running:
        await running.line("curl")
        task = await streaming(running)
        running.send(signal.SIGTERM)
        await running.line("draining")
        running.send(signal.SIGTERM)
        assert (await running.end())[0] == 143
        await asyncio.gather(task, return_exceptions=True)


async def test_the_death_of_the_engine_ends_it_with_the_cause(tmp_path: Path) -> None:
    async with process(tmp_path, "hold") as running:
        await running.line("curl")
        task = await streaming(running)
        running.send(signal.SIGUSR2)
        assert (await task).json()["error"]["code"] == "engine_dead"
        assert await running.end() == (1, "quire: error: killed by SIGKILL (out of memory?)")


async def test_a_model_that_cannot_start_ends_it_with_one_line(tmp_path: Path) -> None:
    async with process(tmp_path, "refuse") as running:
        assert await running.end() == (1, "quire: error: weights do not fit: 5 GiB of 4 GiB")


async def test_it_can_be_stopped_while_loading(tmp_path: Path) -> None:
    async with process(tmp_path, "never") as running:
        async with asyncio.timeout(30):
            while True:
                try:
                    ready = await running.http.get("/health/ready")
                    break
                except httpx.ConnectError:
                    pass
        assert (ready.status_code, ready.json()["state"]) == (503, "loading")
        running.send(signal.SIGTERM)
        assert (await running.end())[0] == 0


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with process(tmp_path, port=port) as running:
            status, last = await running.end()
    assert status == 2
    assert last.startswith(f"quire: error: cannot listen on --host 127.0.0.1 --port {port}: ")
    assert last.endswith("; choose another port")


async def frozen(http: httpx.AsyncClient, engine_pid: int, body: dict[str, Any]) -> None:
    """B046: an engine that stands still with work fails liveness and readiness; one that goes on answers, and is alive."""

    async def alive(status: int) -> None:
        async with asyncio.timeout(60):
            while (await http.get("/health/live")).status_code != status:
                pass

    os.kill(engine_pid, signal.SIGSTOP)
    asked = asyncio.create_task(http.post("/v1/chat/completions", json=body))
    await alive(503)
    assert (await http.get("/health/ready")).status_code == 503
    os.kill(engine_pid, signal.SIGCONT)
    assert (await asked).status_code == 200
    await alive(200)


@pytest.mark.model
async def test_the_real_engine_answers_and_its_death_ends_the_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    handle = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire.entrypoints.cli", "serve", "smollm2", "--host=127.0.0.1", f"--port={port}",
        "--max-model-len=256", "--kv-cache-memory=64Mi", "--dtype=float32", "--liveness-timeout=2",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120) as http:
            running = Process(handle, http, port)
            assert handle.stdout is not None
            async with asyncio.timeout(240):
                while b"curl" not in (line := await handle.stdout.readline()):
                    assert line, (await handle.communicate())[1].decode()
            body: Any = {
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
                "temperature": 0,
                "max_tokens": 20,
            }
            whole = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]
            assert (whole["message"]["content"], whole["finish_reason"]) == ("The capital of France is Paris.", "stop")
            streamed = await http.post("/v1/chat/completions", json={**body, "stream": True})
            assert "Paris" in streamed.text and events_of(streamed.text)[-1] == "[DONE]"
            async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as api:
                told = await api.chat.completions.create(model="smollm2", logprobs=True, top_logprobs=3, **body)
                logprobs = told.choices[0].logprobs
                assert logprobs is not None and logprobs.content is not None
                assert "".join(entry.token for entry in logprobs.content) == "The capital of France is Paris."
                for entry in logprobs.content:  # greedy: the token is the likeliest one
                    assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob)
                    assert 0 >= entry.top_logprobs[0].logprob >= entry.top_logprobs[2].logprob
            assert "torch" not in proc(handle.pid, "maps")
            (engine_pid,) = proc(handle.pid, f"task/{handle.pid}/children").split()
            await frozen(http, int(engine_pid), body)
            os.kill(int(engine_pid), signal.SIGKILL)
            status, last = await running.end()
            assert status == 1
            assert last.startswith("quire: error: the engine process was killed by SIGKILL")
    finally:
        if handle.returncode is None:
            handle.kill()
            await handle.wait()
