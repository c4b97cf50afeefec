"""The revision changes with the pods and with nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_kit import DEFAULTS, owner, revision
from quire_operator.observation import WorkloadView
from quire_operator.policy import intent_of, revision_of, standing_revision
from quire_operator.resources import build_pod_template
from quire_operator.resources.pod import PodDefaults

BASE = revision(owner())

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_order_of_keys_does_not_matter(template: dict[str, Any]) -> None:
    reordered = json.loads(json.dumps(dict(reversed(template.items()))))
    assert revision_of(template) == revision_of(reordered)


def test_order_of_lists_matters() -> None:
    assert revision_of({"args": ["a", "b"]}) != revision_of({"args": ["b", "a"]})


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"maxNumSeqs": 32}},
        {"engine": {"extraArgs": ["--seed=1"]}},
        {"model": {"source": "file:///models/other.gguf"}},
        {"model": {"source": "file:///models/smollm2.gguf", "servedName": "other"}},
        {"image": "quire/runtime:other"},
        {"resources": {"gpus": 1}},
        {"resources": {"limits": {"memory": "1Gi"}}},
        {"rollout": {"drainTimeout": "2m"}},
        {"template": {"spec": {"nodeSelector": {"a": "b"}}}},
        {"template": {"metadata": {"annotations": {"a": "b"}}}},
    ],
)
def test_what_reaches_the_pods_rolls_them(spec: dict[str, Any]) -> None:
    assert revision(owner(spec)) != BASE


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 5},
        {"adapters": [{"name": "a", "source": "file:///a"}]},
        {"autoscaling": {"maxReplicas": 3, "targets": {"queueSize": "4"}}},
        {"rollout": {"maxSurge": 2, "progressDeadline": "1h"}},
        {"engine": {}},
        {"template": {"spec": {}}},
        {"resources": {"gpus": 0}},
    ],
)
def test_what_does_not_reach_the_pods_rolls_nothing(spec: dict[str, Any]) -> None:
    assert revision(owner(spec)) == BASE


def test_the_default_image_is_part_of_it() -> None:
    other = build_pod_template(owner(), PodDefaults("quire/runtime:next", DEFAULTS.image_pull_policy))
    assert revision_of(other) != BASE
    named = owner({"image": "quire/runtime:mine"})
    assert revision_of(build_pod_template(named, DEFAULTS)) == revision_of(
        build_pod_template(named, PodDefaults("quire/runtime:next", DEFAULTS.image_pull_policy))
    )


def test_it_is_the_same_in_every_release_that_builds_the_same_pods() -> None:
    # A change here means: upgrading the operator rolls every pod of every user. Change it only for a reason.
    assert BASE == "b21ade24"


# -- what the user said, whatever an operator makes of it

INTENT = intent_of(owner())


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 5},
        {"adapters": [{"name": "a", "source": "file:///a"}]},
        {"autoscaling": {"maxReplicas": 3, "targets": {"queueSize": "4"}}},
        {"rollout": {"maxSurge": 2, "progressDeadline": "1h", "strategy": "Recreate"}},
        {"rollout": {"drainTimeout": "1m"}},
        {
            "engine": {},
            "template": {"metadata": {}, "spec": {}},
            "resources": {"gpus": 0, "gpuResourceName": "nvidia.com/gpu"},
        },
        {"model": {"source": "file:///models/smollm2.gguf", "revision": "main", "aliases": []}, "image": ""},
    ],
)
def test_the_intent_knows_defaults_and_what_does_not_shape_pods(spec: dict[str, Any]) -> None:
    assert intent_of(owner(spec)) == INTENT


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"maxNumSeqs": 32}},
        {"model": {"source": "file:///models/other.gguf"}},
        {"model": {"source": "file:///models/smollm2.gguf", "aliases": ["x"]}},
        {"image": "quire/runtime:other"},
        {"resources": {"limits": {"memory": "1Gi"}}},
        {"rollout": {"drainTimeout": "2m"}},
        {"template": {"spec": {"nodeSelector": {"a": "b"}}}},
    ],
)
def test_the_intent_changes_with_what_shapes_pods(spec: dict[str, Any]) -> None:
    assert intent_of(owner(spec)) != INTENT


def test_the_intent_is_the_same_in_every_release() -> None:
    # A change here means: an operator of another release takes running pods for those of another spec, and rolls them.
    assert INTENT == "c8a46489"
    full = {
        "engine": {"maxNumSeqs": 32, "enablePrefixCaching": False, "extraArgs": ["--seed=1"]},
        "model": {"source": "hf://a/b", "tokenSecretRef": {"name": "hf"}},
        "resources": {"gpus": 1, "requests": {"cpu": "4"}},
        "rollout": {"drainTimeout": "2m"},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"a": "b"}}},
    }
    assert intent_of(owner(full)) == "6dd1b2ac"


def workload(revision_name: str, intent: str, *, desired: int = 1, created: str = "1") -> WorkloadView:
    return WorkloadView(f"smol-{revision_name}", revision_name, desired, created, None, intent)


def test_a_workload_of_the_same_intent_stands_for_what_would_be_rendered_now() -> None:
    assert standing_revision("new", "i", []) == "new"
    assert standing_revision("new", "i", [workload("old", "j")]) == "new"
    assert standing_revision("new", "i", [workload("old", "i")]) == "old"
    assert standing_revision("new", "i", [workload("old", "i"), workload("new", "i")]) == "new"
    running = [workload("idle", "i", desired=0, created="2"), workload("runs", "i", created="1")]
    assert standing_revision("new", "i", running) == "runs"
