"""Small programs written for vLLM run when only their imports are changed: what vLLM has in its modules is in `quire` itself."""

from __future__ import annotations

import gc
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.engine import host
from quire.models import bundled

pytestmark = pytest.mark.model

FOLDER = Path(__file__).resolve().parents[2] / "support" / "vllm_scripts"
SCRIPTS = sorted(FOLDER.glob("*.py"))
IMPORT = re.compile(r"^from vllm(?:\.[\w.]+)? import ", re.MULTILINE)


@pytest.fixture(autouse=True)
def engines_end_with_their_script() -> Iterator[None]:
    """A script's functions and its names hold each other, and with them a model of 600 MB until the collector comes by."""
    yield
    gc.collect()
    host.trim()  # else each leaves some 300 MB with the C library


def test_there_are_scripts_and_they_are_vllms() -> None:
    assert len(SCRIPTS) >= 5
    for script in SCRIPTS:
        source = script.read_text()
        assert IMPORT.search(source) and not re.search(r"\bquire\b", source)
        assert source.count("vllm") == len(IMPORT.findall(source)), "only imports name vllm"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_runs_with_only_the_imports_changed(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MODEL", str(bundled.pull("smollm2")))
    monkeypatch.setattr(sys, "argv", [script.name])
    changed = tmp_path / script.name
    changed.write_text(IMPORT.sub("from quire import ", script.read_text()))
    runpy.run_path(str(changed), run_name="__main__")
    assert capsys.readouterr().out.strip()
