"""`make demo`: a newcomer's first run, from a clone to an answer out of a pod."""

from __future__ import annotations

import time

from cluster.errors import HarnessError
from cluster.handle import Cluster
from stack import llmd, release
from stack.ask import stream_chat
from stack.prepare import prepare
from stack.progress import PROGRESS, ROOT

EXAMPLE = ROOT / "examples" / "smollm2.yaml"
NAME = "smollm2"
QUESTION = "What is the capital of France, and what is it known for?"


def _state(cluster: Cluster) -> str:
    """What the object says about itself while it is not Ready."""
    try:
        return str(
            llmd.condition(cluster, "default", NAME, "Ready").get("message", "the operator has not answered yet")
        )
    except HarnessError as exc:
        return str(exc)


def demo() -> None:
    """Everything up, one question asked, what to type next."""
    start = time.monotonic()
    prepared = prepare()
    cluster = prepared.cluster
    release.install(prepared)
    with PROGRESS.step(f"kubectl apply -f {EXAMPLE.relative_to(ROOT)}, until it is Ready", lambda: _state(cluster)):
        cluster.kubectl("apply", "--namespace", "default", "--filename", str(EXAMPLE))
        llmd.wait_ready(cluster, "default", NAME, deadline_s=300)
    print(cluster.kubectl("get", "llmd", "--namespace", "default"))
    print(f"> {QUESTION}\n")
    with cluster.reach(release.NAMESPACE, "quire-router", 80) as url:
        for piece in stream_chat(url, NAME, QUESTION, max_tokens=96):
            print(piece, end="", flush=True)
    print("\n")
    PROGRESS.say(f"up and answering after {time.monotonic() - start:.0f} s; what to type next:")
    print(f'''
    eval "$(PYTHONPATH=e2e .venv/bin/python -m cluster env)"     # kubectl and helm for this cluster
    kubectl get llmd,pods                                  # what runs
    kubectl -n quire-system port-forward svc/quire-router 8080:80 &
    curl -N http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
      -d '{{"model": "{NAME}", "stream": true, "messages": [{{"role": "user", "content": "Tell me a joke."}}]}}'
    kubectl apply -f examples/autoscaling.yaml             # an HPA on queue size, no add-ons
    make cluster-down                                      # end it; nothing stays behind
''')
