"""`kubectl llmd chat` at a terminal: Ctrl-C ends the answer alone, Ctrl-D the talk."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from operator_process import GROUP
from quire_operator.labels import API_VERSION, KIND
from real_api import RealApi
from server_process import process

pytestmark = pytest.mark.timeout(3600)  # the programs are built where they are not there yet


class Terminal:
    """A process whose standard input and output are one."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._own, theirs = pty.openpty()
        command = ["env", "--default-signal=INT", *command]  # tests may run where it is ignored, as behind `&`
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)
        self.said = ""

    def type(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def until(self, words: str, *, within_s: float = 60.0) -> str:
        """What came up to and with the words."""
        end = time.monotonic() + within_s
        while words not in self.said:
            left = end - time.monotonic()
            assert left > 0 and select.select([self._own], [], [], left)[0], f"{words!r} never came: {self.said!r}"
            self.said += os.read(self._own, 65536).decode(errors="replace")
        found, _, self.said = self.said.partition(words)
        return found

    def interrupt_until(self, words: str) -> None:
        """^C, again where it came in the moment between a prompt and the reading of its line: Python sees that one with the next key only."""
        for _ in range(6):
            self.process.send_signal(signal.SIGINT)
            if words in self.said or select.select([self._own], [], [], 10.0)[0]:
                break
        self.until(words)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)


async def test_an_interrupt_ends_the_answer_and_the_end_of_input_the_talk(api: RealApi, tmp_path: Path) -> None:
    namespace, folder, config = api.namespace(), tmp_path / "talker", tmp_path / "person"
    folder.mkdir()
    config.write_text(json.dumps(api.kubeconfig()))
    async with process(folder, "long") as server:
        await server.line("curl")
        model = (await server.http.get("/v1/models")).json()["data"][0]["id"]
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": "smol"},
            "spec": {"model": {"source": "file:///m", "servedName": model}},
        }
        made = api.create(f"{GROUP}/namespaces/{namespace}/llmdeployments", body, dry_run=False)
        assert made.status_code == 201, made.text
        command = [sys.executable, "-m", "quire_operator.plugin", "chat", "smol", "--max-tokens=1800"]
        command += [f"--url=http://127.0.0.1:{server.port}/v1", f"--kubeconfig={config}", f"--namespace={namespace}"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "dumb"}

        def talk() -> int:
            with closing(Terminal(command, environment)) as terminal:
                terminal.until("> ")
                terminal.interrupt_until("> ")
                for question in ("Hi", "And?"):
                    terminal.type(f"{question}\r")
                    terminal.until("xxxx")
                    terminal.process.send_signal(signal.SIGINT)
                    terminal.until(" [ended]")
                    terminal.until("> ")
                terminal.type("\x04")
                return terminal.process.wait(60)

        def once() -> int:
            with closing(Terminal([*command, "Hi"], environment)) as terminal:
                terminal.until("xxxx")
                terminal.process.send_signal(signal.SIGINT)
                return terminal.process.wait(60)

        assert await asyncio.to_thread(talk) == 0
        assert await asyncio.to_thread(once) == 130
