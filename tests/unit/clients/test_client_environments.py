"""Environments of clients: made once, by content, and never taken for made where they are not. pip is the real one, its index a folder."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

import client_environments
from client_environments import MARK, CannotInstallError, cause, python_of, renewed


def wheel(folder: Path, name: str, version: str, needs: str = "") -> None:
    """A package of one module that says its version."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"print({version!r})\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text)}\n")
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a client; the index is the folder `index`, the cache is `cache`."""
    index = tmp_path / "index"
    index.mkdir()
    for version in ("1.0", "2.0"):
        wheel(index, "caller", version, needs="helper")
    wheel(index, "helper", "3.1")
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setattr(client_environments, "REQUIREMENTS", tmp_path)
    file = tmp_path / "some.txt"
    file.write_text("caller==1.0\n")
    return file


def says(python: Path) -> str:
    return subprocess.run([python, "-c", "import caller"], check=True, capture_output=True, text=True).stdout.strip()


def test_an_environment_is_made_once_and_anew_for_other_requirements(requirements: Path, tmp_path: Path) -> None:
    first = python_of("some")
    log = first.parents[2] / "install.log"
    assert says(first) == "1.0" and first.is_relative_to(tmp_path / "cache" / "clients")
    before = log.stat().st_mtime_ns
    assert python_of("some") == first and log.stat().st_mtime_ns == before, "nothing was installed again"
    requirements.write_text("caller==2.0\n")
    second = python_of("some")
    assert says(second) == "2.0" and says(first) == "1.0", "another checkout may still use the first"


def test_an_environment_that_nobody_asked_for_in_a_long_time_goes(requirements: Path) -> None:
    first = python_of("some")
    old = time.time() - client_environments.UNUSED_S - 60
    os.utime(first.parents[2] / "installed", (old, old))
    requirements.write_text("caller==2.0\n")
    assert python_of("some").exists() and not first.exists()


def test_what_cannot_be_installed_is_an_error_each_time_and_says_why(requirements: Path) -> None:
    requirements.write_text("caller==9.0\n")
    for _ in range(2):
        with pytest.raises(CannotInstallError, match=r"No matching distribution found for caller==9.0.*install\.log"):
            python_of("some")


def test_an_index_that_does_not_answer_is_named(requirements: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(CannotInstallError, match=r"connection broken.*refused.*; ERROR: No matching distribution"):
        python_of("some")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", "it said nothing"),
        ("one\ntwo\n", "two"),
        ("npm error code E404\nnpm error 404 Not Found\nnpm notice\n", "npm error 404 Not Found"),
        (
            "npm error code ENOTFOUND\nnpm error network request failed\nnpm error A log of this run\n",
            "npm error network request failed; npm error A log of this run",
        ),
    ],
)
def test_the_cause_of_what_an_installer_said(said: str, expected: str) -> None:
    assert cause(said) == expected


def test_requirements_are_renewed_with_all_that_they_need(requirements: Path) -> None:
    assert renewed(f"caller==1.0\n{MARK}\nhelper==0.1\ngone==4\n") == f"caller==2.0\n{MARK}\nhelper==3.1\n"
    with pytest.raises(CannotInstallError, match="nobody"):
        renewed("nobody==1\n")


def test_every_version_in_the_repository_is_exact() -> None:
    files = list((client_environments.CLIENTS / "requirements").glob("*.txt"))
    assert len(files) > 4
    for file in files:
        lines = [line for line in file.read_text().splitlines() if line != MARK]
        assert all(line.count("==") == 1 and not set(line) & set("<>~*; ") for line in lines), file
