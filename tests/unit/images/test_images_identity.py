"""The content hash: every input changes it, nothing else does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images import identity
from images.identity import content_tag, hash_of


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    files = {
        "Dockerfile.thing": "FROM x\nCOPY thing/ /src/\n",
        ".dockerignore": "*\n!thing\n**/*.so\n",
        "thing/pyproject.toml": "[project]\n",
        "thing/pkg/a.py": "a = 1\n",
        "thing/run.sh": "#!/bin/sh\n",
        "other/b.py": "b = 1\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def tag(repository: Path, *, base: str = "base", wheels: str = "none") -> str:
    return content_tag(repository / "Dockerfile.thing", base_identity=base, wheels_identity=wheels)


def edit(name: str, content: str) -> Callable[[Path], object]:
    return lambda root: (root / name).write_text(content)


@pytest.mark.parametrize(
    "change",
    [
        edit("Dockerfile.thing", "FROM y\nCOPY thing/ /src/\n"),
        edit(".dockerignore", "*\n!thing\n**/*.so\n**/*.pyc\n"),
        edit("thing/pyproject.toml", "[project]\nversion = '2'\n"),
        edit("thing/pkg/a.py", "a = 2\n"),
        edit("thing/pkg/new.py", ""),
        lambda root: (root / "thing/pkg/a.py").unlink(),
        lambda root: (root / "thing/pkg/a.py").rename(root / "thing/pkg/b.py"),
        lambda root: (root / "thing/run.sh").chmod(0o755),
    ],
)
def test_a_change_of_an_input_changes_the_tag(repository: Path, change: Callable[[Path], object]) -> None:
    before = tag(repository)
    change(repository)
    assert tag(repository) != before


@pytest.mark.parametrize(
    "change",
    [
        edit("other/b.py", "b = 2\n"),
        edit("README.md", "new\n"),
        edit("thing/pkg/fast.so", "compiled"),
        lambda root: os.utime(root / "thing/pkg/a.py", (1, 1)),
        lambda root: (root / "thing/pkg/a.py").chmod(0o600),
    ],
)
def test_what_does_not_go_in_leaves_the_tag(repository: Path, change: Callable[[Path], object]) -> None:
    before = tag(repository)
    change(repository)
    assert tag(repository) == before


def test_base_wheels_and_recipe_count(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tags = {tag(repository), tag(repository, base="other"), tag(repository, wheels="cpu")}
    monkeypatch.setattr(identity, "RECIPE", "next")
    tags.add(tag(repository))
    assert len(tags) == 4


def test_another_checkout_of_the_same_files_has_the_same_tag(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = tmp_path_factory.mktemp("clone") / "deeper"
    repository.rename(copy)
    moved = tag(copy)
    copy.rename(repository)
    assert moved == tag(repository)


def test_the_form(repository: Path) -> None:
    assert re.fullmatch(r"dev-[0-9a-f]{12}", tag(repository))


@given(st.lists(st.text()), st.lists(st.text()))
def test_sequences_never_run_together(one: list[str], other: list[str]) -> None:
    assert (hash_of(one) == hash_of(other)) == (one == other)
