"""Which images a stack runs with, and that a missing name is refused before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.errors import UsageError
from stack import prepare
from stack.__main__ import rounds, worst
from stack.prepare import Image, given_images

BOTH = {"QUIRE_RUNTIME_IMAGE": "reg.test:5000/q/runtime:1", "QUIRE_OPERATOR_IMAGE": "q/operator:2"}


@pytest.mark.parametrize("provider", ["local", "kind"])
def test_images_are_built_where_the_harness_can_load_them(provider: str) -> None:
    assert given_images({}, provider) is None


@pytest.mark.parametrize("provider", ["local", "kind", "existing"])
def test_named_images_are_used_as_they_are(provider: str) -> None:
    images = given_images(BOTH, provider)
    assert images == {"runtime": Image("reg.test:5000/q/runtime:1"), "operator": Image("q/operator:2")}
    assert (images["runtime"].repository, images["runtime"].tag) == ("reg.test:5000/q/runtime", "1")


@pytest.mark.parametrize(
    ("environment", "provider", "said"),
    [
        ({}, "existing", "QUIRE_RUNTIME_IMAGE is not set, but an existing cluster pulls its images"),
        ({"QUIRE_RUNTIME_IMAGE": "a:1"}, "local", "QUIRE_OPERATOR_IMAGE is not set, but the other one is set"),
        (BOTH | {"QUIRE_RUNTIME_IMAGE": "reg.test:5000/q/runtime"}, "existing", "it must end with a tag"),
    ],
)
def test_what_cannot_work_is_refused(environment: dict[str, str], provider: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        given_images(environment, provider)


def test_an_existing_cluster_without_images_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").touch()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("QUIRE_CLUSTER_PROVIDER", raising=False)
    for variable in BOTH:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(prepare, "run_module", lambda *call: pytest.fail(f"it ran {call}"))
    monkeypatch.setattr(prepare, "run_modules", lambda *calls: pytest.fail(f"it ran {calls}"))
    with pytest.raises(UsageError, match="QUIRE_RUNTIME_IMAGE"):
        prepare.prepare()


def test_every_whole_system_test_is_in_one_of_the_rounds() -> None:
    side_by_side, alone = rounds(["pytest", "-x"])
    assert side_by_side[:4] == ["pytest", "-x", "-m", "not alone"] and alone == ["pytest", "-x", "-m", "alone"]


@pytest.mark.parametrize(
    ("codes", "status"), [((0, 0), 0), ((1, 0), 1), ((0, 1), 1), ((5, 0), 0), ((0, 5), 0), ((5, 1), 1), ((5, 5), 5)]
)
def test_a_round_without_a_chosen_test_is_no_failure(codes: tuple[int, ...], status: int) -> None:
    assert worst(codes) == status


@pytest.mark.parametrize(("stop", "first"), [(False, 2), (False, 4), (True, 1)])
def test_what_ends_the_first_round_early_ends_the_second(stop: bool, first: int) -> None:
    codes = iter((first, 0))
    assert worst(codes, stop=stop) == first
    assert next(codes) == 0, "it was not asked for"
