"""The Python examples of README and guide are true."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

import quire

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(name: str) -> list[str]:
    found: list[str] = BLOCK.findall((ROOT / name).read_text(encoding="utf-8"))
    assert found
    return found


@pytest.mark.parametrize("name", ["README.md", "docs/python-api.md"])
def test_examples_compile_and_import_what_exists(name: str) -> None:
    for block in blocks(name):
        compile(block, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for line in re.findall(r"^from quire import (.*)$", block, re.MULTILINE):
            assert all(hasattr(quire, one.strip()) for one in line.split(","))


def test_all_that_is_promised_is_there() -> None:
    assert sorted(quire.__all__) == sorted(set(quire.__all__))
    for name in quire.__all__:
        assert getattr(quire, name).__doc__ or name == "__version__"
    assert {"LLM", "AsyncLLMEngine", "EngineArgs", "SamplingParams", "RequestOutput"} <= set(quire.__all__)


@pytest.mark.model
def test_the_example_of_the_readme_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [block] = blocks("README.md")
    (program := tmp_path / "readme.py").write_text(block)
    runpy.run_path(str(program))
    assert "Paris" in capsys.readouterr().out
