"""From what the user calls a model to files on this machine.

A model argument is a folder, a .gguf file, `file:///path`, a hub id (`org/name`, `hf://org/name`,
`org/name/file.gguf`) or a bundled name. Files that are here win: a cached hub model starts without any outbound
attempt. Reading the files is not done here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from quire.config import EngineConfig
from quire.errors import ModelError
from quire.fetch.wanted import CONFIGURATION, WEIGHTS
from quire.models import bundled

HUB_TIMEOUT_S = 10.0
WEIGHTS_INDEX = "model.safetensors.index.json"
WEIGHTS_FILE = "model.safetensors"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelFiles:
    """A model on this machine: `path` is the .gguf file, or the folder with config.json. `name` is its default name."""

    kind: Literal["gguf", "folder"]
    path: Path
    name: str


def resolve(
    model: str,
    *,
    revision: str = "main",
    tokenizer_only: bool = False,
    with_code: bool = False,
    say: Callable[[str], None] = _log.info,
) -> ModelFiles:
    """Find a model's files, downloading them if they are named but not here.

    revision: branch, tag or commit of a hub model. tokenizer_only: weights are not wanted. with_code: Python files that come
    with a hub model are wanted too. `say` gets progress lines.
    Raises ModelError that names what was looked for and what would help.
    """
    if model in bundled.BUNDLED and not Path(model).exists():
        path = bundled.pull(model, say=say)
        return ModelFiles("folder" if path.is_dir() else "gguf", path, model)
    if model.startswith("file:"):
        return _local(_path_of_url(model), tokenizer_only)
    if model.startswith("hf://"):
        return _hub(model.removeprefix("hf://"), revision, tokenizer_only, with_code, say)
    path = Path(model).expanduser()
    if path.exists() or model.startswith(("/", ".", "~")) or (model.endswith(".gguf") and model.count("/") != 2):
        return _local(path, tokenizer_only)
    if model.count("/") in (1, 2):
        return _hub(model, revision, tokenizer_only, with_code, say)
    raise ModelError(
        f"no model {model!r}: it is no file or folder here, no hub id (org/name), and no bundled name "
        f"({', '.join(sorted(bundled.BUNDLED))})"
    )


def resolve_tokenizer(config: EngineConfig, files: ModelFiles, *, say: Callable[[str], None] = _log.info) -> ModelFiles:
    """Find the files of a configuration's tokenizer. files: those of its model. Raises ModelError as `resolve` does."""
    model, revision = config.tokenizer_source
    if (model, revision) == (config.model, config.revision):
        return files
    return resolve(model, revision=revision, tokenizer_only=True, say=say)


def _path_of_url(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ModelError(f"{url}: a file URL is written file:///absolute/path")
    return Path(unquote(parts.path))


def _local(path: Path, tokenizer_only: bool) -> ModelFiles:
    if not path.exists():
        raise ModelError(f"{path} does not exist; give a folder with config.json, a .gguf file, or a hub id (org/name)")
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path} is a file but not a .gguf; give the folder that holds it with its config.json")
        return ModelFiles("gguf", path, path.stem)
    if tokenizer_only:
        return ModelFiles("folder", path, path.resolve().name)
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return ModelFiles("gguf", files[0], files[0].stem)
        if files:
            raise ModelError(f"{path} holds {len(files)} .gguf files; name one: {', '.join(f.name for f in files[:8])}")
        raise ModelError(f"{path} holds no config.json and no .gguf file; is it a Hugging Face model folder?")
    return ModelFiles("folder", path, path.resolve().name)


def _hub(model: str, revision: str, tokenizer_only: bool, with_code: bool, say: Callable[[str], None]) -> ModelFiles:
    """A hub model: from the cache when complete there, else downloaded."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    org, name, *file = model.split("/")
    repo = f"{org}/{name}"
    patterns = [*CONFIGURATION] + ([] if tokenizer_only else [WEIGHTS]) + (["*.py"] if with_code else [])
    if file:
        patterns = [file[0]]
    try:
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=patterns, local_files_only=True))
        missing, partial = _missing(folder, file, tokenizer_only, with_code), False
    except LocalEntryNotFoundError as exc:
        held: str | None = getattr(exc, "snapshot_path", None)  # of a download that was interrupted
        folder, partial = Path(held or ""), held is not None
        missing = (
            _missing(folder, file, tokenizer_only, with_code) if partial else "nothing of it is in the local cache"
        )
    except HFValidationError as exc:
        raise ModelError(f"{model!r} is no hub id (org/name) and no file or folder here") from exc
    if missing or (partial and not constants.HF_HUB_OFFLINE):  # offline, what is needed is enough
        if constants.HF_HUB_OFFLINE:
            raise ModelError(f"{model}: {missing}, and HF_HUB_OFFLINE is set; download it first or unset it")
        say(f"downloading {model} (revision {revision}) from {constants.ENDPOINT}")
        try:
            HfApi().model_info(repo, revision=revision, timeout=HUB_TIMEOUT_S)  # snapshot_download would wait for ever
            folder = Path(snapshot_download(repo, revision=revision, allow_patterns=patterns))
        except Exception as exc:
            raise ModelError(
                f"cannot download {model} (revision {revision}) from {constants.ENDPOINT}: {_first_line(exc)}; check the name, "
                "the network, HF_ENDPOINT, and HF_TOKEN for gated models"
            ) from exc
        missing = _missing(folder, file, tokenizer_only, with_code)
        if missing:
            raise ModelError(f"{model} (revision {revision}) on {constants.ENDPOINT} cannot be served: {missing}")
    if file:
        return ModelFiles("gguf", folder / file[0], Path(file[0]).stem)
    return ModelFiles("folder", folder, model)


def _missing(folder: Path, file: list[str], tokenizer_only: bool, with_code: bool) -> str:
    """What a snapshot lacks, in words; empty where it is complete."""
    if file:
        return "" if (folder / file[0]).is_file() else f"it has no file {file[0]}"
    if tokenizer_only:
        return "" if (folder / "tokenizer.json").is_file() else "it has no tokenizer.json"
    if not (folder / "config.json").is_file():
        return "it has no config.json"
    if with_code and (code := _missing_code(folder / "config.json")):
        return f"its code is not there ({code})"
    if (folder / WEIGHTS_FILE).is_file():
        return ""
    index = folder / WEIGHTS_INDEX
    if not index.is_file():
        return f"it has no {WEIGHTS_FILE} and no {WEIGHTS_INDEX}"
    try:
        shards = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError):
        return f"its {WEIGHTS_INDEX} is damaged"
    absent = sorted(shard for shard in shards if not (folder / shard).is_file())
    return f"{len(absent)} of {len(shards)} weight files are not there, as {absent[0]}" if absent else ""


def _missing_code(config: Path) -> str:
    """A Python file that `auto_map` of config.json names and that is absent; empty where there is none.

    Code is written `file.Class`, or `org/name--file.Class` where it is in another repository, which is not ours to look at.
    """
    try:
        references = json.loads(config.read_text())["auto_map"].values()
    except (ValueError, KeyError, AttributeError, TypeError):
        return ""  # none is named, or the file is damaged, which is said where it is read
    names = [f"{ref.split('.')[0]}.py" for ref in references if isinstance(ref, str) and "--" not in ref]
    return next((name for name in names if not (config.parent / name).is_file()), "")


def _first_line(exc: BaseException) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return lines[0] if lines else type(exc).__name__
