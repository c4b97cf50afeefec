"""`make setup` survives what users do to it: Ctrl-C, a second run after it, another apt at work. Python and apt are scripts here."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cluster import prerequisites, processes, wait

SCRIPT = Path(__file__).resolve().parents[3] / "e2e" / "setup" / "make-venv"
# `python -m venv DIR` links itself to DIR/bin/python; there `-m pip` works once `.pip` lies beside it.
PYTHON = """#!/bin/sh
echo "$(basename "$0") $*" >> "$FAKE/calls"
case "$*" in
  *"import ensurepip"*) exit "${BARE:-0}" ;;
  "-m venv"*)
    for dir; do :; done
    case "$*" in *--clear*) rm -rf "$dir" ;; esac
    mkdir -p "$dir/bin" && ln -sf "$FAKE/python3" "$dir/bin/python"
    [ -e "$FAKE/interrupt" ] && { rm "$FAKE/interrupt"; kill -KILL $$; }
    touch "$dir/bin/.pip" ;;
  "-m pip"*)
    [ -e "$(dirname "$0")/.pip" ] || { echo "No module named pip" >&2; exit 1; }
    case "$*" in *"--group dev"*) [ ! -e "$FAKE/slow" ] || { echo $$ > "$FAKE/slow"; exec sleep 600; } ;; esac ;;
  *version*) echo 1.2.3 ;;
  -V) echo "Python 3.11.2" ;;
esac
"""
APT = """#!/bin/sh
echo "apt-get $*" >> "$FAKE/calls"
case "$*" in *update*) exit 100 ;; esac
"""


def put(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    put(tmp_path / "python3", PYTHON)
    put(tmp_path / "apt-get", APT)
    put(tmp_path / "id", "#!/bin/sh\necho 0\n")
    return tmp_path


def environment(fake: Path) -> Mapping[str, str]:
    return {"FAKE": str(fake), "PATH": f"{fake}:{os.environ['PATH']}"}


def make_venv(fake: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, fake / "python3", fake / "venv"],
        env={**environment(fake), **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def calls(fake: Path, words: str) -> list[str]:
    return [line for line in (fake / "calls").read_text().splitlines() if words in line]


def test_a_second_run_makes_no_second_environment(fake: Path) -> None:
    for _ in range(2):
        done = make_venv(fake)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "torch 1.2.3, Python 3.11.2" in done.stdout
    assert len(calls(fake, "-m venv")) == 1 and len(calls(fake, "--group dev")) == 2


def test_an_interrupted_environment_is_made_anew(fake: Path) -> None:
    (fake / "interrupt").touch()
    assert make_venv(fake).returncode != 0
    assert (fake / "venv" / "bin" / "python").exists() and calls(fake, "--group dev") == []
    done = make_venv(fake)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(calls(fake, "-m venv")) == 2 and len(calls(fake, "--group dev")) == 1


@pytest.fixture
def installing(fake: Path) -> Iterator[tuple[subprocess.Popen[str], processes.Process]]:
    """make-venv and its pip, in the midst of the packages."""
    (fake / "slow").touch()
    # Where the tests run in the background, Ctrl-C is ignored by them and by what they start.
    command = ["env", "--default-signal=INT", SCRIPT, fake / "python3", fake / "venv"]
    script = subprocess.Popen(
        command,
        env=environment(fake),
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait.until("pip runs", lambda: None if (fake / "slow").read_text() else "no pid", deadline_s=30)
        pip = processes.identify(int((fake / "slow").read_text()))
        assert pip is not None
        yield script, pip
        processes.end(pip)
    finally:
        script.kill()
        script.communicate()


def test_ctrl_c_ends_pip_too(installing: tuple[subprocess.Popen[str], processes.Process]) -> None:
    script, pip = installing
    os.killpg(script.pid, signal.SIGINT)
    script.communicate(
        timeout=30
    )  # to the end of its output: nothing that could still write is left, the heartbeat included
    assert script.returncode != 0
    assert not processes.alive(pip)


def test_debian_packages_wait_for_another_apt_and_survive_a_stale_source(fake: Path) -> None:
    done = make_venv(fake, BARE="1")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "(some package sources did not answer)" in done.stdout
    update, install = calls(fake, "apt-get")
    options = [word for word in prerequisites._APT if "=" in word]
    assert options and all(f"-o {option}" in line for line in (update, install) for option in options)
    assert update.endswith(" update") and install.endswith(" python3-venv python3-dev g++")
