"""Promise: what breaks beneath Kubernetes is survived: its API server, its store, and a node with a replica on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from cluster import providers
from cluster.handle import Cluster
from cluster.local import LocalProvider
from stack import llmd, release
from stack.ask import stream_chat
from stack.load import Load
from stack.progress import StepFailed

pytestmark = pytest.mark.alone

NAME = "surviving"
LOST_S = 60.0
"""Longer than it takes until Kubernetes takes a dead node's pods off the Service (some 40 s)."""
BREAKS_S = 30.0
"""Longer than a router waits for a word of a node that is gone (10 s), shorter than a client waits for the next piece."""
STREAMS = 4
"""At the same time, so that each of the two pods has some."""


@pytest.fixture(scope="module")
def provider() -> LocalProvider:
    chosen = providers.choose()
    if not isinstance(chosen, LocalProvider):
        pytest.skip("only the local cluster can be broken at will")
    return chosen


@pytest.fixture(scope="module")
def served(stack: Cluster, namespace: str) -> Iterator[str]:
    """Two replicas, one on each node."""
    llmd.apply(stack, namespace, llmd.example(NAME, replicas=2))
    llmd.wait_ready(stack, namespace, NAME)
    assert len({node for _, node in model_pods(stack, namespace)}) == 2
    yield NAME


def model_pods(cluster: Cluster, namespace: str) -> set[tuple[str, str]]:
    """uid and node of each."""
    found = cluster.kubectl_json("get", "pods", "-n", namespace, "-l", f"quire.dev/deployment={NAME}")["items"]
    return {(pod["metadata"]["uid"], pod["spec"]["nodeName"]) for pod in found}


def long_answer(router: str, begun: threading.Semaphore) -> tuple[bool, float]:
    """Whether it came whole, and when it ended."""
    whole = False
    try:
        pieces = stream_chat(router, NAME, "Tell me a story about the sea.", max_tokens=512, to_the_end=True)
        next(pieces)
        begun.release()
        whole = bool(list(pieces))
    except (httpx.HTTPError, StepFailed):
        pass
    return whole, time.monotonic()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("daemon", ["apiserver", "etcd"])
def test_clients_notice_nothing_of_a_restart(
    stack: Cluster, provider: LocalProvider, namespace: str, router: str, served: str, daemon: str
) -> None:
    before = model_pods(stack, namespace)
    with Load(router, NAME, clients=2, max_tokens=32) as load:
        provider.restart_daemon("cp", daemon)
        llmd.prove_acted_on(stack, namespace, NAME, replicas=2)
    assert load.completed > 0 and load.errors == []
    assert model_pods(stack, namespace) == before


@pytest.mark.timeout(400)
def test_requests_are_answered_while_a_node_is_gone(
    stack: Cluster, provider: LocalProvider, namespace: str, router: str, served: str
) -> None:
    found = stack.kubectl_json("get", "pods", "-n", release.NAMESPACE, "-l", "app.kubernetes.io/component=router")
    # Another module's second router may still be draining.
    alive = [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]
    [(name, kept)] = [(pod["metadata"]["name"], pod["spec"]["nodeName"]) for pod in alive]
    [lost] = {node for _, node in model_pods(stack, namespace)} - {kept}
    begun, pool = threading.Semaphore(0), ThreadPoolExecutor(STREAMS)
    asked = [pool.submit(long_answer, router, begun) for _ in range(STREAMS)]
    assert all(begun.acquire(timeout=60) for _ in asked)
    provider.power_off(lost)
    off = time.monotonic()
    try:
        slowest, answered, until = 0.0, 0, off + LOST_S
        while time.monotonic() < until:
            begin = time.monotonic()
            assert "".join(stream_chat(router, NAME, f"Say the number {answered}.", max_tokens=8))
            slowest, answered = max(slowest, time.monotonic() - begin), answered + 1
        assert answered > 10 and slowest < 30, f"the slowest of {answered} answers took {slowest:.1f} s"
    except (httpx.HTTPError, AssertionError) as exc:
        exc.add_note(stack.kubectl("logs", f"pod/{name}", "-n", release.NAMESPACE, "--tail=50"))
        exc.add_note(f"after {answered} answers, the slowest in {slowest:.1f} s")
        raise
    finally:
        provider.boot(lost)
        pool.shutdown()
    ends = [each.result() for each in asked]
    broken = [at - off for whole, at in ends if not whole]
    assert 0 < len(broken) < STREAMS, "those of the lost node break off, the others are whole"
    assert max(broken) < BREAKS_S, f"the last one heard after {max(broken):.0f} s that it broke off"
    llmd.wait_ready(stack, namespace, NAME)
    llmd.prove_acted_on(stack, namespace, NAME, replicas=2)
