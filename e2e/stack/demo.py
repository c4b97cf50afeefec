"""`make demo`: a newcomer's first run, from a clone to an answer out of a pod."""

from __future__ import annotations

import os
import time

from cluster.handle import Cluster
from stack import release
from stack.ask import port_forward, stream_chat
from stack.prepare import prepare
from stack.progress import ROOT, StepFailed, say, step

EXAMPLE = ROOT / "examples" / "smollm2.yaml"
NAME = "smollm2"
QUESTION = "Why is the sky blue? Answer in one sentence."


def wait_ready(cluster: Cluster, name: str, namespace: str, *, deadline_s: float) -> None:
    """Wait for Ready; on failure say what the condition says."""
    try:
        cluster.kubectl(
            "wait", f"llmd/{name}", "--namespace", namespace, "--for=condition=Ready", f"--timeout={deadline_s:.0f}s"
        )
    except Exception as exc:
        conditions = (
            cluster.kubectl_json("get", f"llmd/{name}", "--namespace", namespace)
            .get("status", {})
            .get("conditions", [])
        )
        lines = [f"{c['type']}={c['status']} {c.get('reason', '')}: {c.get('message', '')}" for c in conditions]
        raise StepFailed(f"llmd/{name} is not Ready after {deadline_s:.0f} s; " + " | ".join(lines)) from exc


def demo() -> None:
    """Everything up, one question asked, what to type next."""
    start = time.monotonic()
    prepared = prepare()
    cluster = prepared.cluster
    release.install(prepared)
    with step(f"kubectl apply -f {EXAMPLE.relative_to(ROOT)}, until it is Ready"):
        cluster.kubectl("apply", "--namespace", "default", "--filename", str(EXAMPLE))
        wait_ready(cluster, NAME, "default", deadline_s=300)
    print(cluster.kubectl("get", "llmd", "--namespace", "default"))
    print(f"> {QUESTION}\n")
    with port_forward(cluster, "svc/quire-router", 80, namespace=release.NAMESPACE) as url:
        for piece in stream_chat(url, NAME, QUESTION, max_tokens=96):
            print(piece, end="", flush=True)
    print("\n")
    say(f"==> up and answering after {time.monotonic() - start:.0f} s. What to type next:")
    in_venv = os.path.relpath(".venv/bin/python")
    say(f'''
    eval "$(PYTHONPATH=e2e {in_venv} -m cluster env)"     # kubectl and helm for this cluster
    kubectl get llmd,pods                                  # what runs
    kubectl -n quire-system port-forward svc/quire-router 8080:80 &
    curl -N http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
      -d '{{"model": "{NAME}", "stream": true, "messages": [{{"role": "user", "content": "Tell me a joke."}}]}}'
    kubectl apply -f examples/autoscaling.yaml             # an HPA on queue size, no add-ons
    make cluster-down                                      # end it; nothing stays behind
''')
