"""Models of a hub: what is asked of whom, and that nothing is asked where everything is here.

Each resolves in a process of its own, because huggingface_hub reads its variables when it is imported.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_hub import COMMIT, tiny_hub

RESOLVE = """
import sys
from quire.errors import ModelError
from quire.models import source
source.HUB_TIMEOUT_S = 1.0
try:
    for model, options in {asked!r}:
        print(source.resolve(model, say=print, **options).path)
except ModelError as exc:
    sys.exit(f"quire: error: {{exc}}")
"""
DOORS = {
    "the Python API": "from quire.api.requests import load_text; load_text(config)",
    "the server": """
from quire.models.source import resolve
from quire.server.run import _Process
_Process(config, None, print)._read_tokenizer(resolve(config.model, revision=config.revision))
""",
}
NAMED = ("org/name", {})
NOBODY = "http://127.0.0.1:9"


def resolved(
    home: Path, endpoint: str, *asked: tuple[str, dict[str, object]], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Resolve models one after the other. home: where the hub's cache is."""
    return run(RESOLVE.format(asked=asked or (NAMED,)), home, endpoint, **variables)


def run(code: str, home: Path, endpoint: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    env = {**kept, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", **variables}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False
    )


def error_of(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1, result.stdout
    return result.stderr.splitlines()[-1]


def test_a_mirror_serves_and_then_is_not_needed(tmp_path: Path) -> None:
    with tiny_hub() as hub:
        first = resolved(tmp_path, hub.url)
    assert first.returncode == 0, first.stderr
    said, path = first.stdout.splitlines()
    assert said == f"downloading org/name (revision main) from {hub.url}"
    assert sorted(file.name for file in Path(path).iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    second = resolved(tmp_path, NOBODY)
    assert second.stdout.splitlines() == [path], second.stderr


def test_nothing_is_asked_where_everything_is_here(tmp_path: Path) -> None:
    """A folder, a cached model, one with another's tokenizer, a gated one without token, all with and without OFFLINE."""
    with tiny_hub(token="secret") as hub:
        assert resolved(tmp_path, hub.url, HF_TOKEN="secret").returncode == 0
        asked = len(hub.requests)
        assert asked > 0
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        cases = ((str(folder), {}), NAMED, ("org/name", {"tokenizer_only": True}), ("org/name", {"revision": COMMIT}))
        for variables in ({}, {"HF_HUB_OFFLINE": "1"}):
            result = resolved(tmp_path, hub.url, *cases, **variables)
            assert len(result.stdout.splitlines()) == len(cases), result.stderr
        assert len(hub.requests) == asked


def test_the_revision_is_asked_for_and_kept_apart(tmp_path: Path) -> None:
    with tiny_hub() as hub:
        result = resolved(tmp_path, hub.url, ("org/name", {"revision": "v1"}))
        assert result.returncode == 0, result.stderr
    assert any(path.startswith("/api/models/org/name/revision/v1") for path, _ in hub.requests)
    assert not any("main" in path for path, _ in hub.requests)
    missing = resolved(tmp_path, NOBODY)
    assert error_of(missing).startswith(f"quire: error: cannot download org/name (revision main) from {NOBODY}: ")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"revision": "v1"}, {"v1"}),
        ({"revision": "v1", "tokenizer_revision": "t2"}, {"v1", "t2"}),
        ({"revision": "v1", "tokenizer": "org/name"}, {"v1", "main"}),
        ({"revision": "v1", "tokenizer": "org/name", "tokenizer_revision": "t2"}, {"v1", "t2"}),
    ],
)
def test_the_tokenizer_is_taken_from_its_own_revision(
    door: str, fields: dict[str, str], asked: set[str], tmp_path: Path
) -> None:
    """The same from everywhere. The hub's tokenizer is empty, which is how each ends."""
    with tiny_hub() as hub:
        code = (
            "import asyncio, sys\nfrom quire.config import ServeConfig\nfrom quire.errors import ModelError\n"
            f"config = ServeConfig(model='org/name', **{fields!r})\n"
            f"async def main():\n    exec({DOORS[door]!r}, globals())\n"
            "try:\n    asyncio.run(main())\nexcept ModelError as exc:\n    sys.exit(str(exc))\n"
        )
        result = run(code, tmp_path, hub.url)
    assert "cannot read" in error_of(result), result.stderr
    assert {path.rpartition("/")[2] for path, _ in hub.requests if "/revision/" in path} == asked


def test_the_token_is_sent_and_its_lack_is_said(tmp_path: Path) -> None:
    with tiny_hub(token="secret") as hub:
        refused = resolved(tmp_path, hub.url)
        assert "HF_TOKEN for gated models" in error_of(refused)
        assert resolved(tmp_path, hub.url, HF_TOKEN="secret").returncode == 0
    assert {authorization for _, authorization in hub.requests} == {None, "Bearer secret"}


def test_a_half_downloaded_model_is_incomplete_and_then_completed(tmp_path: Path) -> None:
    with tiny_hub() as hub:
        path = Path(resolved(tmp_path, hub.url).stdout.splitlines()[-1])
        blob = (path / "model.safetensors").resolve()
        blob.rename(blob.with_suffix(".incomplete"))  # as an interrupted download leaves it
        offline = resolved(tmp_path, hub.url, HF_HUB_OFFLINE="1")
        assert "org/name: it has no model.safetensors" in error_of(offline)
        assert "HF_HUB_OFFLINE is set" in error_of(offline)
        asked = len(hub.requests)
        again = resolved(tmp_path, hub.url)
        assert again.stdout.splitlines()[-1] == str(path), again.stderr
        assert len(hub.requests) > asked
        assert (path / "model.safetensors").read_bytes() == b"weights"
        (path / "tokenizer.json").unlink()
        assert resolved(tmp_path, hub.url).stdout.splitlines()[-1] == str(path)
        assert (path / "tokenizer.json").is_file()


def test_a_mirror_that_never_answers_is_named_in_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        result = resolved(tmp_path, address)
    assert error_of(result).startswith(f"quire: error: cannot download org/name (revision main) from {address}: ")


def test_a_mirror_that_stops_in_a_file_is_named_in_time(tmp_path: Path) -> None:
    with tiny_hub(stalls="model.safetensors") as hub:
        result = resolved(tmp_path, hub.url, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert error_of(result).startswith(f"quire: error: cannot download org/name (revision main) from {hub.url}: ")
