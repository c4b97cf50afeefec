"""The command line: flags made from fields, every form of a boolean, one line for every error, and light imports."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quire.config import EngineConfig, ServeConfig
from quire.engine.spawn import Spawned, spawn
from quire.entrypoints import cli, commands
from quire.entrypoints.flags import normalise
from quire.errors import ModelError

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


def main(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        commands.run(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServeConfig]:
    """Configurations that `quire serve` would have run with."""
    from quire.entrypoints import serve

    configs: list[ServeConfig] = []

    def run(config: ServeConfig, spawned: object) -> int:
        assert spawned is None
        configs.append(config)
        return 0

    monkeypatch.setattr(serve, "run", run)
    for name in [name for name in os.environ if name.startswith("QUIRE_")]:
        monkeypatch.delenv(name)
    return configs


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {}),
        (["m"], {"model": "m"}),
        (["m", "--port=1", "--max-seq-len", "9"], {"model": "m", "port": 1, "max_model_len": 9}),
        (["--enable-prefix-caching", "m"], {"model": "m"}),
        (["--enable-prefix-caching", "true", "m"], {"model": "m"}),
        (["m", "--enable-prefix-caching=false"], {"model": "m", "enable_prefix_caching": False}),
        (["m", "--enable-prefix-caching", "false"], {"model": "m", "enable_prefix_caching": False}),
        (["--no-enable-prefix-caching", "m"], {"model": "m", "enable_prefix_caching": False}),
        (["m", "--api-key=a", "--api-key=b"], {"model": "m", "api_key": ("a", "b")}),
        (["--", "-m"], {"model": "-m"}),
    ],
)
def test_serve_reads_flags(served: list[ServeConfig], arguments: list[str], expected: dict[str, Any]) -> None:
    assert main("serve", *arguments) == 0
    assert served == [ServeConfig(**expected)]


def test_every_field_is_a_flag_in_the_form_the_operator_writes(served: list[ServeConfig]) -> None:
    for name, field in ServeConfig.model_fields.items():
        default = field.default
        if name == "model" or default in (None, ()):
            continue
        text = str(default).lower() if isinstance(default, bool) else str(default)
        assert main("serve", f"--{name.replace('_', '-')}={text}") == 0, name
    assert set(served) == {ServeConfig()}


def test_variables_and_file(served: list[ServeConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("port: 5\nmax_num_seqs: 6")
    monkeypatch.setenv("QUIRE_PORT", "7")
    assert main("serve", "--config", str(tmp_path / "c.yaml")) == 0
    assert (served[0].port, served[0].max_num_seqs) == (7, 6)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["serve", "--max-num-seqs=0"], 2, "--max-num-seqs must be an integer between 1 and 4096, got '0'"),
        (["serve", "--max-num-seq=1"], 2, "--max-num-seq"),
        (["serve", "m", "extra"], 2, "extra"),
        (["serv"], 2, "serv"),
        (["pull", "nobody"], 1, "no bundled model is called 'nobody'"),
        (["generate", "--prompt=x", "--max-num-seqs=0"], 2, "--max-num-seqs"),
    ],
)
def test_an_error_is_one_line(
    served: list[ServeConfig], capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, words: str
) -> None:
    assert main(*arguments) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("quire: error: ")
    assert words in line


def test_a_message_of_several_lines_becomes_one(
    served: list[ServeConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from quire.entrypoints import serve

    def run(config: ServeConfig, spawned: object) -> int:
        raise ModelError("weights do\n  not fit")

    monkeypatch.setattr(serve, "run", run)
    assert main("serve") == 1
    assert capsys.readouterr().err == "quire: error: weights do not fit\n"


def test_help_reads_well(
    served: list[ServeConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main("serve", "--help") == 0
    text = capsys.readouterr().out
    for words in ("Usage: quire serve", "--max-model-len, --max-seq-len N", "Engine:", "Server:", "QUIRE_MAX_NUM_SEQS"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80
    assert main() == 0
    assert "serve" in capsys.readouterr().out


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom quire.entrypoints import cli\n"
        "try: cli.main(['serve', '--help'])\nexcept SystemExit: pass\n"
        "sys.exit(' '.join({'torch', 'fastapi', 'zmq', 'tokenizers', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environ, timeout=60
    )
    assert done.stderr.strip() == ""


def test_the_engine_is_spawned_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys\nfrom quire.entrypoints import cli\n"
        "def spawn(): sys.exit(' '.join(heavy & set(sys.modules)))\n"
        "heavy = {'asyncio', 'fastapi', 'msgspec', 'numpy', 'pydantic', 'rich', 'typer', 'uvicorn', 'zmq'}\n"
        "cli.spawn = spawn\n"
        "cli.main(['serve', 'm'])"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environ, timeout=60
    )
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("arguments", [["serve", "--help"], ["serve", "m", "-h"], ["version"], []])
def test_nothing_is_spawned_for_what_needs_no_engine(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr(cli, "spawn", lambda: pytest.fail("an engine's process was spawned"))
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 0


def test_a_bad_command_line_ends_the_engine_that_was_spawned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spawned: list[Spawned] = []

    def spawning() -> Spawned:
        spawned.append(spawn())
        return spawned[0]

    monkeypatch.setattr(cli, "spawn", spawning)
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", "m", "--port=x"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("quire: error: --port must be")
    assert spawned[0].process.returncode is not None
    assert not spawned[0].folder.exists()


def test_the_server_process_never_loads_torch() -> None:
    modules = "quire.entrypoints.serve, quire.engine.client, quire.server.run"
    code = f"import sys, {modules}\nsys.exit(' '.join({{'torch', 'triton', 'transformers'}} & set(sys.modules)))"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environ, timeout=60
    )
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--enable-prefix-caching", "x"], ["--enable-prefix-caching=true", "x"]),
        (["--enable-prefix-caching", "FALSE"], ["--enable-prefix-caching", "FALSE"]),
        (["--no-enable-prefix-caching"], ["--enable-prefix-caching=false"]),
        (["--model-x", "--", "--enable-prefix-caching"], ["--model-x", "--", "--enable-prefix-caching"]),
    ],
)
def test_booleans_without_a_value_get_one(arguments: list[str], expected: list[str]) -> None:
    assert normalise(arguments, EngineConfig) == expected


def test_the_flags_reference_is_current() -> None:
    from quire.entrypoints.flags import reference

    assert DOCS.read_text() == reference(), "run: python -m quire.entrypoints.flags > docs/configuration.md"


def test_pull_copies_atomically_and_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from quire.models import bundled

    source = tmp_path / "cache.gguf"
    source.write_bytes(b"weights")
    monkeypatch.setattr(bundled, "pull", lambda name, say: source)
    target = tmp_path / "copy.gguf"
    assert main("pull", "smollm2", "--to", str(target)) == 0
    first = target.stat().st_ino
    assert main("pull", "smollm2", "--to", str(target)) == 0
    assert (target.read_bytes(), target.stat().st_ino) == (b"weights", first)
    assert capsys.readouterr().out.splitlines() == [str(target), str(target)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache.gguf", "copy.gguf"]
    assert main("pull", "smollm2", "--to", str(tmp_path / "no" / "where")) == 2
    assert "--to must be a file in an existing folder" in capsys.readouterr().err
