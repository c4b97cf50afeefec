"""Which files a build takes in: .dockerignore's rules and the Dockerfile's COPY lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import UsageError
from images.context import copied_sources, ignored, input_files, parse_ignore, snapshot
from images.layout import REPOSITORY

PATHS = st.lists(st.sampled_from(["runtime", "a", "b.py", "__pycache__", "x.so"]), min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        ("README.md", True),
        ("runtime", False),
        ("runtime/quire/cli.py", False),
        ("runtime/quire/__pycache__", True),
        ("runtime/quire/__pycache__/cli.pyc", True),
        ("kernels/build/x/y.o", True),
        ("kernels/quire_kernels/_cpu.abi3.so", True),
        ("kernels/buildings.py", False),
        ("docs/runtime/page.md", True),
    ],
)
def test_the_repositorys_rules(path: str, hidden: bool) -> None:
    rules = parse_ignore((REPOSITORY / ".dockerignore").read_text())
    assert ignored(path, rules) is hidden


@given(PATHS)
def test_the_last_rule_that_matches_decides(path: str) -> None:
    assert ignored(path, parse_ignore("*"))
    assert not ignored(path, parse_ignore(f"*\n!{path}"))
    assert ignored(f"{path}/below", parse_ignore(f"*\n!{path}\n{path}"))


@pytest.mark.parametrize(
    ("pattern", "path", "hidden"),
    [
        ("**/*.pyc", "x.pyc", True),
        ("**/*.pyc", "a/b/x.pyc", True),
        ("*.pyc", "a/x.pyc", False),
        ("a?c", "abc/d", True),
        ("a?c", "a/c", False),
        ("docs/**", "docs/a/b", True),
        ("# docs", "docs", False),
        ("/docs/", "docs/a", True),
    ],
)
def test_patterns(pattern: str, path: str, hidden: bool) -> None:
    assert ignored(path, parse_ignore(pattern)) is hidden


def test_copy_lines_name_the_sources() -> None:
    dockerfile = """
FROM x AS a
COPY runtime/pyproject.toml kernels/pyproject.toml ./
# COPY not/this .
COPY --chmod=0755 \\
    runtime/ /src/
COPY --from=a /etc/passwd /etc/passwd
add data.bin /data
RUN echo COPY neither this
"""
    assert copied_sources(dockerfile) == ("runtime/pyproject.toml", "kernels/pyproject.toml", "runtime", "data.bin")


def test_a_copy_of_nothing_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x\nCOPY gone/ /\n")
    (tmp_path / ".dockerignore").write_text("*\n!gone\n")
    with pytest.raises(UsageError, match=r"Dockerfile copies gone, which is not in .*; add it or mend the COPY line"):
        input_files(tmp_path / "Dockerfile")


def test_each_image_takes_in_its_own_distributions_only() -> None:
    runtime = {path.relative_to(REPOSITORY).as_posix() for path in input_files(REPOSITORY / "Dockerfile.runtime")}
    operator = {path.relative_to(REPOSITORY).as_posix() for path in input_files(REPOSITORY / "Dockerfile.operator")}
    assert {"runtime/quire/__init__.py", "runtime/pyproject.toml", "kernels/CMakeLists.txt"} <= runtime
    assert {"operator/quire_operator/__init__.py", "operator/quire_router/__init__.py"} <= operator
    assert {path.split("/")[0] for path in runtime} == {"runtime", "kernels"}
    assert {path.split("/")[0] for path in operator} == {"operator"}
    assert not [path for path in runtime | operator if path.endswith((".pyc", ".so"))]


def test_a_snapshot_is_what_a_build_can_see_and_nothing_else(tmp_path: Path) -> None:
    copy = snapshot(REPOSITORY / "Dockerfile.operator", tmp_path / "copy")
    assert copy == tmp_path / "copy" / "Dockerfile.operator"
    files = {path.relative_to(tmp_path / "copy") for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    taken = {path.relative_to(REPOSITORY) for path in input_files(REPOSITORY / "Dockerfile.operator")}
    assert files == {*taken, Path("Dockerfile.operator"), Path(".dockerignore")}
    assert {path.relative_to(tmp_path / "copy") for path in input_files(copy)} == taken
