"""The repository's shape, as docs/architecture.md draws it; above all, that `operator/` never becomes a module."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = {"operator": {"quire_operator", "quire_router"}, "runtime": {"quire"}, "kernels": {"quire_kernels"}}


def tracked() -> list[Path]:
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in out.split("\0") if name and (ROOT / name).exists()]


@pytest.mark.parametrize("folder", DISTRIBUTIONS)
def test_distribution_folders_hold_a_pyproject_and_import_packages_only(folder: str) -> None:
    inside = {path.relative_to(folder).parts[0] for path in tracked() if path.is_relative_to(folder)}
    extra = {"csrc", "CMakeLists.txt"} if folder == "kernels" else set()
    assert inside == {"pyproject.toml", *DISTRIBUTIONS[folder], *extra}


def test_every_top_level_folder_and_file_is_in_the_plan() -> None:
    folders = {path.parts[0] for path in tracked() if len(path.parts) > 1 and not path.parts[0].startswith(".")}
    files = {path.name for path in tracked() if len(path.parts) == 1 and not path.name.startswith(".")}
    plan = "operator runtime charts crds kernels tests e2e docs examples benchmarks"
    assert folders == set(plan.split())
    assert files == {
        "Dockerfile.runtime", "Dockerfile.operator", "Makefile", "README.md",
        "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml",
    }  # fmt: skip


@pytest.mark.parametrize("args", [["-c", "pass"], ["-m", "json.tool", "--help"], ["-m", "pip", "--version"]])
def test_the_standard_library_operator_wins_even_from_the_root_folder(args: list[str]) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *args], cwd=ROOT, env=environment, check=True, capture_output=True)
    code = "import operator; assert hasattr(operator, 'itemgetter'), operator"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, capture_output=True)


def test_operator_is_the_standard_library_module_here() -> None:
    import operator

    assert operator.__file__ is not None and not Path(operator.__file__).is_relative_to(ROOT)


def test_no_packages_or_conftests_where_they_would_shadow() -> None:
    names = {str(path) for path in tracked()}
    assert not names & {f"{folder}/__init__.py" for folder in (*DISTRIBUTIONS, "tests", "e2e")}
    assert not [name for name in names if re.match(r"(operator|runtime|kernels)/(.*/)?conftest\.py$", name)]
    assert not [name for name in names if name.startswith("tests/") and name.endswith("__init__.py") and not
                name.startswith("tests/support/")]  # fmt: skip
    assert "conftest.py" not in names


def test_the_root_pyproject_is_no_project() -> None:
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "project" not in root and "build-system" not in root
    assert root["tool"]["uv"]["workspace"]["members"] == ["kernels", "runtime", "operator"]


@pytest.mark.parametrize("folder", DISTRIBUTIONS)
def test_distributions_are_typed_small_and_agree_on_torch(folder: str) -> None:
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11" and project["license"] == "Apache-2.0"
    assert len(project["dependencies"]) < 24
    torch = [dep for dep in project["dependencies"] if re.match(r"torch\b", dep)]
    assert torch == ([] if folder == "operator" else ["torch==2.13.0"])
    for package in DISTRIBUTIONS[folder]:
        assert (ROOT / folder / package / "py.typed").exists()


def test_modules_stay_readable() -> None:
    generated = re.compile(r"_pb2(_grpc)?\.pyi?$")
    code = [
        path for path in tracked() if path.suffix in {".py", ".cpp", ".h", ".hpp"} and not generated.search(path.name)
    ]
    long = {str(path): n for path in code if (n := len((ROOT / path).read_text().splitlines())) > 600}
    assert not long


def test_nothing_names_the_machine_it_was_made_on() -> None:
    """No absolute path of a checkout and no package index host in what ships."""
    needle = re.compile(
        "|".join(["/wor" + "k/", "/ro" + r"ot/(?!\.)", "proxy.gol" + "ang", "deb.deb" + "ian", "pypi" + r"\.org"])
    )
    found = []
    for path in tracked():
        if path.suffix in {".sum", ".lock"} or (ROOT / path).stat().st_size > 1_000_000:
            continue
        try:
            text = (ROOT / path).read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path}:{n}" for n, line in enumerate(text.splitlines(), 1) if needle.search(line)]
    assert not found
