"""Reach the router from outside the cluster and talk to a model. Works on every kind of cluster: kubectl port-forward."""

from __future__ import annotations

import contextlib
import json
import re
import select
import subprocess
import time
from collections.abc import Iterator

import httpx

from cluster.handle import Cluster
from stack.progress import StepFailed


@contextlib.contextmanager
def port_forward(cluster: Cluster, target: str, port: int, *, namespace: str, deadline_s: float = 20) -> Iterator[str]:
    """Forward a free local port to `target` (svc/NAME, pod/NAME); yields the base URL."""
    command = [str(cluster.kubectl_path), "--kubeconfig", str(cluster.kubeconfig), "--namespace", namespace]
    command += ["port-forward", "--address", "127.0.0.1", target, f":{port}"]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert child.stdout is not None
        deadline = time.monotonic() + deadline_s
        line = ""
        while not (found := re.search(r"127\.0\.0\.1:(\d+) ->", line)):
            readable, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
            line = child.stdout.readline() if readable else ""
            if not line:
                raise StepFailed(f"kubectl port-forward {target} in {namespace} gave no port within {deadline_s:.0f} s")
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        child.terminate()
        child.wait(timeout=10)
        if child.stdout is not None:
            child.stdout.close()


def stream_chat(
    base_url: str, model: str, question: str, *, max_tokens: int, temperature: float = 0.0
) -> Iterator[str]:
    """Ask one question with streaming; yields pieces of the answer as they come."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": True,
    }
    timeout = httpx.Timeout(60.0, connect=10.0)
    with httpx.stream("POST", f"{base_url}/v1/chat/completions", json=body, timeout=timeout) as response:
        if response.status_code != 200:
            raise StepFailed(
                f"the router answered {response.status_code}: {response.read().decode(errors='replace')[:500]}"
            )
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            if data == line or data == "[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise StepFailed(f"the stream ended with an error: {event['error']}")
            for choice in event["choices"]:
                if piece := choice["delta"].get("content"):
                    yield piece
