"""llama.cpp: compiled for this CPU from the source that the Python package llama-cpp-python carries."""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
from pathlib import Path

from peers.home import PeerError, cpu_tag, folder, output_of, run

VERSION = "0.3.36"
LABEL = f"llama.cpp of llama-cpp-python {VERSION}, compiled for this CPU"
TARGETS = ("llama-server", "llama-bench", "llama-quantize")
JOBS = 1
OFF = ("LLAMA_OPENSSL", "LLAMA_USE_PREBUILT_UI", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES")


def install() -> Path:
    """The folder with the programs; compiles them once for each CPU (some ten minutes). Raises PeerError."""
    home = folder(f"llama_cpp_python-{VERSION}")
    programs = home / f"build-{cpu_tag()}" / "bin"
    if all((programs / target).exists() for target in TARGETS):
        return programs
    for tool in ("cmake", "g++"):
        if shutil.which(tool) is None:
            raise PeerError(f"{tool} is needed to compile llama.cpp; install it")
    log = home / "install.log"
    source = home / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"
    if not source.exists():
        package = f"llama-cpp-python=={VERSION}"
        run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--no-binary=llama-cpp-python",
                "--dest",
                home,
                package,
            ],
            log,
        )
        with tarfile.open(next(home.glob("*.tar.gz"))) as archive:
            archive.extractall(home, filter="data")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *(f"-D{name}=OFF" for name in OFF)]
    run(["cmake", *generator, "-S", source, "-B", programs.parent, *options], log)
    run(["cmake", "--build", programs.parent, f"-j{JOBS}", "--target", *TARGETS], log)
    return programs


def requantized(programs: Path, source: Path, kind: str) -> Path:
    """`source` converted to another type of weights, for speed only: its quality is that of the source."""
    target = folder("models") / f"{source.stem}.{kind}.gguf"
    if not target.exists():
        partial = target.with_suffix(".partial")
        run([programs / "llama-quantize", "--allow-requantize", source, partial, kind], folder() / "models.log")
        partial.rename(target)
    return target


def server_command(programs: Path, model: Path, *, threads: int, slots: int, port: int) -> list[str]:
    """An OpenAI server. Its context is shared out between the slots, so each can hold the longest request of W1 to W4."""
    sizes = ["-t", str(threads), "-tb", str(threads), "-np", str(slots), "-c", str(slots * 1536)]
    return [
        str(programs / "llama-server"),
        "-m",
        str(model),
        "-a",
        "m",
        *sizes,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]


def bench(programs: Path, model: Path, *, threads: int, prompt: int, output: int) -> dict[str, float]:
    """llama-bench, in process: prompt and decoded tokens per second, from an empty context."""
    sizes = ["-t", str(threads), "-p", str(prompt), "-n", str(output), "-r", "1", "-o", "json"]
    rows = json.loads(output_of([programs / "llama-bench", "-m", model, *sizes]))
    speeds = {("prompt" if row["n_prompt"] else "decode"): float(row["avg_ts"]) for row in rows}
    return {"prompt_tokens_per_s": speeds["prompt"], "decode_tokens_per_s": speeds["decode"]}
