"""The revision changes with the pods and with nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_kit import DEFAULTS, owner, revision
from quire_operator.policy import revision_of
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
