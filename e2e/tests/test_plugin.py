"""Promise: `kubectl llmd` shows, steers and talks to what runs, with a kubeconfig and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from cluster.handle import Cluster
from stack import llmd, rollouts

NAME = "plugged"
QUESTION = "What is the capital of France? Answer in one short sentence."

pytestmark = pytest.mark.timeout(600)

Plugin = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def plugin(stack: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Plugin:
    """`kubectl llmd WORDS`, found by kubectl in PATH as after an installation."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "kubectl-llmd"
    script.write_text(f"#!{sys.executable}\nfrom quire_operator.plugin.cli import main\n\nmain()\n")
    script.chmod(0o755)
    path = os.pathsep.join((str(folder), str(stack.kubectl_program.parent), os.environ["PATH"]))
    environment = {**stack.environment, "PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(stack.kubectl_program), "llmd", *words, "-n", namespace]
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def served(stack: Cluster, namespace: str) -> str:
    llmd.apply(stack, namespace, llmd.example(NAME))
    llmd.wait_ready(stack, namespace, NAME)
    return NAME


def test_status_of_what_runs_is_zero_and_names_its_pod(
    stack: Cluster, namespace: str, served: str, plugin: Plugin
) -> None:
    done = plugin("status", served)
    [pod] = rollouts.pods(stack, namespace, served)
    assert done.returncode == 0, done.stdout + done.stderr
    assert pod["metadata"]["name"] in done.stdout and pod["spec"]["nodeName"] in done.stdout
    told = json.loads(plugin("status", served, "-o", "json").stdout)
    assert told["ready"] and told["phase"] == "Ready" and told["revisions"][0]["ready"] == 1


def test_chat_answers_through_the_router(served: str, plugin: Plugin) -> None:
    done = plugin("chat", served, QUESTION, "--temperature", "0", "--max-tokens", "48")
    assert done.returncode == 0 and "Paris" in done.stdout, done.stdout + done.stderr


def test_logs_are_those_of_the_engine_with_the_pods_name(
    stack: Cluster, namespace: str, served: str, plugin: Plugin
) -> None:
    [pod] = rollouts.pods(stack, namespace, served)
    done = plugin("logs", served)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines, done.stderr
    assert all(line.startswith(f"{pod['metadata']['name']} engine | ") for line in lines)
    assert any("quire serves" in line for line in lines), done.stdout
    assert len(plugin("logs", served, "--tail", "1").stdout.splitlines()) == 1
    assert "no container of it has been restarted" in plugin("logs", served, "--previous").stderr


def test_a_rollout_waits_for_resume(stack: Cluster, namespace: str, served: str, plugin: Plugin) -> None:
    old = rollouts.current(stack, namespace, served)
    assert plugin("rollout", "pause", served).returncode == 0
    llmd.patch_spec(stack, namespace, served, {"engine": {"maxNumSeqs": 4}})
    rollouts.until(
        stack,
        namespace,
        served,
        "the rollout to be held",
        lambda status: rollouts.reason(status, "Progressing") == "Paused",
        deadline_s=60,
    )
    held = plugin("status", served)
    assert held.returncode == 3 and "paused" in held.stdout, held.stdout
    assert plugin("rollout", "pause", served).returncode == 1, "it is paused already"
    resumed = plugin("rollout", "resume", served)
    assert resumed.returncode == 0 and "goes on" in resumed.stdout, resumed.stderr
    llmd.wait_ready(stack, namespace, served)
    history = plugin("rollout", "history", served).stdout
    assert old in history and "engine --max-num-seqs: 8 -> 4" in history
    assert rollouts.current(stack, namespace, served) != old
