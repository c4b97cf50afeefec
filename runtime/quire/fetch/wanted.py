"""Which files of a repository or folder are needed to serve it."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch

from quire.errors import ModelError

CONFIGURATION = ("*.json", "*.jinja", "*.model", "tokenizer*", "*.txt")
WEIGHTS = "*.safetensors"
CODE = "*.py"
MODULES = "modules.json"
MODULE = "[0-9]*_*/config.json"


def wanted(where: str, paths: Iterable[str], *, code: bool = False) -> tuple[str, ...]:
    """Of the files in the top folder: configuration, tokenizer and safetensors; without these the one .gguf file. Hidden files are nobody's model.

    Where modules.json says what follows the model, the configurations of these modules too (`1_Pooling/config.json`). With `code` the Python files too. Repositories that hold the weights twice (`consolidated.safetensors` beside `model-*.safetensors`) give them once.
    Raises ModelError where nothing can be served, or where it is not clear what.
    """
    listed = sorted(path for path in paths if not path.startswith("."))
    top = [path for path in listed if "/" not in path]
    weights = [path for path in top if fnmatch(path, WEIGHTS)]
    named = [path for path in weights if path.startswith("model")]
    if weights and "config.json" in top:
        rest = (
            path
            for path in top
            if any(fnmatch(path, pattern) for pattern in (*CONFIGURATION, *([CODE] if code else [])))
        )
        modules = [path for path in listed if fnmatch(path, MODULE)] if MODULES in top else []
        return tuple(sorted({*(named or weights), *rest, *modules}))
    gguf = [path for path in top if path.endswith(".gguf")]
    if len(gguf) == 1:
        return tuple(gguf)
    if gguf:
        raise ModelError(f"{where} holds {len(gguf)} .gguf files; name one: {', '.join(gguf[:8])}")
    if weights:
        raise ModelError(f"{where} holds weights but no config.json: is it a Hugging Face model folder?")
    raise ModelError(f"{where} holds no *.safetensors and no .gguf file in its top folder")
