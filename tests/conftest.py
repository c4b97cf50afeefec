"""Settings of Hypothesis, and the order of files that run side by side, for every unit and contract test.

No time limit on one example, for the machine may be busy. `make test` draws the same examples every time, so that a change is red by what
it changed; `make fuzz` draws new ones (HYPOTHESIS_PROFILE=search), and what it finds becomes a test of its own.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

FIRST = (
    "tests/unit/operator/test_operator_rollout_real.py",
    "tests/unit/server/test_server_page_browser.py",
    "tests/unit/api/test_api_vllm_scripts.py",
    "tests/unit/models/test_models_smollm2.py",
    "tests/unit/operator/test_operator_leader_real.py",
    "tests/unit/operator/test_plugin_real.py",
    "tests/unit/operator/test_operator_faults_real.py",
    "tests/unit/operator/test_operator_rights.py",
    "tests/unit/engine/test_engine_process.py",
    "tests/unit/api/test_api_beam.py",
    "tests/unit/models/test_models_quality.py",
    "tests/unit/models/test_models_transformers.py",
    "tests/unit/engine/test_engine_sampler.py",
    "tests/unit/kernels/test_kernels_attention.py",
)
"""Files that take longest: begun last, they would end alone. Most of them wait for something, so they cost the others little."""

APART = ("tests/clients/test_schemathesis.py", "tests/unit/operator/test_operator_rollout_real.py")
"""Files whose tests share nothing and are long: each test is given out by itself."""


def pytest_configure(config: pytest.Config) -> None:
    if missing := [name for name in (*FIRST, *APART) if not (config.rootpath / name).is_file()]:
        raise pytest.UsageError(f"tests/conftest.py names files that are not there: {', '.join(missing)}")


class Scheduling(LoadFileScheduling):
    """Files as wholes, but for those of APART."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return nodeid if scope in APART else scope


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling | None:
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # alone, they run as they stand
        order = {name: place for place, name in enumerate(FIRST)}
        items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))
