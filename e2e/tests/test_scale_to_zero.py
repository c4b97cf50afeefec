"""Promise: a model that nobody asks takes no replica, and whoever asks then is answered: nobody gets 404 or 503 for it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from cluster import wait
from cluster.handle import Cluster
from stack import llmd
from stack.ask import stream_chat

NAME = "dozing"
IDLE_S = 20


def ask(router: str, number: int) -> str:
    """A whole answer, streamed or not; raises for anything else. One may wait for the first pod for as long as that takes."""
    question = f"Question {number}: name a colour."
    if number % 2:
        return "".join(stream_chat(router, NAME, question, max_tokens=8, patience_s=180))
    body = {"model": NAME, "messages": [{"role": "user", "content": question}], "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{router}/v1/chat/completions", json=body, timeout=180, trust_env=False)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


@pytest.mark.timeout(600)
def test_to_zero_when_nobody_asks_and_back_for_whoever_does(stack: Cluster, namespace: str, router: str) -> None:
    scaling = {
        "minReplicas": 0,
        "maxReplicas": 2,
        "targets": {"queueSize": "1000"},
        "scaleDown": {"idleAfter": f"{IDLE_S}s"},
    }
    llmd.apply(stack, namespace, llmd.example(NAME, replicas=None, autoscaling=scaling))
    llmd.wait_ready(stack, namespace, NAME)

    asked = 0
    end = time.monotonic() + IDLE_S + 5
    while time.monotonic() < end:
        assert ask(router, asked)
        asked += 1
    assert scalings(stack, namespace) == [], f"{asked} requests, one after the other"

    llmd.wait(stack, namespace, NAME, "jsonpath={.status.phase}=ScaledToZero", deadline_s=120)
    stack.kubectl("wait", "pods", "--all", "--namespace", namespace, "--for=delete", "--timeout=120s")
    assert "idleAfter" in llmd.condition(stack, namespace, NAME, "Ready")["message"]
    wait.until("it is still a model, of no pod", lambda: listed(router), deadline_s=60, interval_s=0.2)

    # Long enough from here on, so that what is looked at below stays.
    llmd.patch_spec(stack, namespace, NAME, {"autoscaling": {"scaleDown": {"idleAfter": "1h"}}})
    with ThreadPoolExecutor(6) as clients:
        answers = list(clients.map(lambda number: ask(router, number), range(6)))
    assert all(answers)
    llmd.wait_ready(stack, namespace, NAME)
    assert sorted(scalings(stack, namespace)) == ["ScaledFromZero", "ScaledToZero"], "once down and once up"


def listed(router: str) -> str | None:
    """None where the router has it with no ready replica."""
    models = httpx.get(f"{router}/v1/models", timeout=30, trust_env=False).json()["data"]
    ready = [each["ready_replicas"] for each in models if each["id"] == NAME]
    return None if ready == [0] else f"its ready replicas are {ready}"


def scalings(cluster: Cluster, namespace: str) -> list[str]:
    """Events of moves to zero and back."""
    events = cluster.kubectl_json("get", "events.events.k8s.io", "-n", namespace)["items"]
    return [event["reason"] for event in events if event["reason"] in ("ScaledToZero", "ScaledFromZero")]
