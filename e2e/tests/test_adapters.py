"""Promise: adapters that the engine does not take are told, adapter by adapter and pod by pod, and cost neither a pod nor the Ready."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.handle import Cluster
from stack import llmd, rollouts

pytestmark = pytest.mark.timeout(600)

NAME = "adapted"
OWN = {"name": "legal", "source": "file:///mnt/adapters/legal"}
SENTENCE = "this engine has no LoRA adapters"
"""Of the engine's 501, for as long as it has none."""


@pytest.fixture(scope="module")
def served(stack: Cluster, namespace: str) -> set[tuple[str, int]]:
    """A model with two adapters, one of its own and one of an LLMAdapter; its pods."""
    llmd.apply(stack, namespace, llmd.example(NAME))
    llmd.wait_ready(stack, namespace, NAME)
    pods = rollouts.identities(stack, namespace, NAME)
    stack.apply(
        {
            "apiVersion": "quire.dev/v1alpha1",
            "kind": "LLMAdapter",
            "metadata": {"name": "support"},
            "spec": {"deployment": NAME, "source": "hf://example-org/support-lora", "servedName": "helper"},
        },
        namespace=namespace,
    )
    llmd.patch_spec(stack, namespace, NAME, {"adapters": [OWN]})
    return pods


def adapters(found: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Loaded and ready pods, by name."""
    return {each["name"]: (each["loaded"], each["of"]) for each in found.get("adapters", [])}


def test_what_the_engine_says_stands_in_both_objects_and_the_model_serves_on(
    stack: Cluster, namespace: str, served: set[tuple[str, int]]
) -> None:
    found = rollouts.until(
        stack, namespace, NAME, "both adapters in the status",
        lambda found: adapters(found) == {"legal": (0, 1), "helper": (0, 1)}, deadline_s=120,
    )  # fmt: skip
    loaded = next(each for each in found["conditions"] if each["type"] == "AdaptersLoaded")
    [pod] = rollouts.pods(stack, namespace, NAME)
    assert (loaded["status"], loaded["reason"]) == ("False", "NotSupported")
    assert SENTENCE in loaded["message"] and pod["metadata"]["name"] in loaded["message"]

    stack.wait("llmadapter/support", "jsonpath={.status.summary}=0/1", namespace=namespace, deadline_s=60)
    told = stack.kubectl_json("get", "llmadapter/support", "-n", namespace)["status"]
    [ready] = told["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "NotSupported")
    [one] = told["pods"]
    assert (one["name"], one["state"]) == (pod["metadata"]["name"], "NotSupported") and SENTENCE in one["message"]

    llmd.wait_ready(stack, namespace, NAME)
    assert rollouts.identities(stack, namespace, NAME) == served, "no pod was touched"
    rollouts.told_once(stack, namespace, NAME, "Warning", "NotSupported")
    rollouts.told_once(stack, namespace, "support", "Warning", "NotSupported", about="LLMAdapter")


def test_they_go_without_a_trace(stack: Cluster, namespace: str, served: set[tuple[str, int]]) -> None:
    assert not stack.kubectl_json("get", "llmadapter/support", "-n", namespace)["metadata"].get("finalizers")
    stack.kubectl("delete", "llmadapter/support", "-n", namespace, "--wait=true", "--timeout=60s")
    rollouts.until(
        stack, namespace, NAME, "the other one alone", lambda found: set(adapters(found)) == {"legal"}, deadline_s=120
    )
    llmd.patch_spec(stack, namespace, NAME, {"adapters": None})
    found = rollouts.until(
        stack, namespace, NAME, "no adapter in the status",
        lambda found: not adapters(found) and not rollouts.reason(found, "AdaptersLoaded"), deadline_s=120,
    )  # fmt: skip
    llmd.wait_ready(stack, namespace, NAME)
    assert found["phase"] == "Ready" and rollouts.identities(stack, namespace, NAME) == served
