"""Promise: Ready means answering. Pods that say they are ready are not enough: a completion has to come back through the router."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.handle import Cluster
from stack import llmd, rollouts

pytestmark = pytest.mark.timeout(300)

NAME = "pretending"
PRETENDER = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        self.answer(200)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(500)

ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""
"""In place of the engine: every probe succeeds, no request does."""


def test_a_pod_that_is_ready_and_answers_nothing_is_not_called_ready(stack: Cluster, namespace: str) -> None:
    container = {"name": "engine", "command": ["python", "-c", PRETENDER], "args": []}
    broken = llmd.example(NAME, template={"spec": {"containers": [container]}}, rollout={"drainTimeout": "0s"})
    llmd.apply(stack, namespace, broken)
    never: list[str] = []

    def told(found: dict[str, Any]) -> bool:
        if rollouts.reason(found, "Ready") == "Answering":
            never.append(found["summary"])
        return bool(never) or rollouts.reason(found, "Ready") == "CompletionFailed"

    found = rollouts.until(stack, namespace, NAME, "the failed completion", told, deadline_s=120)
    assert not never, found
    assert found["readyReplicas"] == 1, "its probes succeed"
    assert "the router answers 5" in llmd.condition(stack, namespace, NAME, "Ready")["message"]

    llmd.apply(stack, namespace, llmd.example(NAME, rollout={"drainTimeout": "0s"}))
    llmd.wait_ready(stack, namespace, NAME)
    rollouts.told_once(stack, namespace, NAME, "Normal", "Ready")
