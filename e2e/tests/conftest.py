"""Fixtures of the whole-system tests: one stack for the session, one namespace per test module.

Modules run side by side (`stack.__main__`). One that replaces or breaks what others stand on (operator, router, a node, a daemon) has
the mark `alone`.
The release and the cluster are left as they were found: a release that was there stays, one that the tests installed goes.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from cluster import interrupt
from cluster.handle import Cluster
from stack import release
from stack.prepare import Prepared, prepare

interrupt.install()  # a TERM takes the stack down like Ctrl-C


@pytest.fixture(scope="session")
def prepared() -> Prepared:
    """A cluster with this tree's images."""
    return prepare()


@pytest.fixture(scope="session")
def cluster(prepared: Prepared) -> Cluster:
    return prepared.cluster


@pytest.fixture(scope="session")
def stack(prepared: Prepared) -> Iterator[Cluster]:
    """The chart installed from this tree, operator and router ready."""
    if "PYTEST_XDIST_WORKER" in os.environ:  # one of several at the same time: `python -m stack test` has installed it
        assert release.installed(prepared.cluster), "run several at a time with `make e2e`"
        yield prepared.cluster
        return
    was_there = release.installed(prepared.cluster)
    release.install(prepared)
    yield prepared.cluster
    if not was_there:
        release.uninstall(prepared.cluster)


@pytest.fixture(scope="module")
def namespace(stack: Cluster) -> Iterator[str]:
    """A namespace of one module's own, deleted afterwards with everything in it."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    stack.kubectl("create", "namespace", name)
    stack.wait("serviceaccount/default", "create", namespace=name, deadline_s=60)
    yield name
    stack.kubectl("delete", "llmd", "--all", "--namespace", name, "--timeout=60s")
    stack.kubectl("wait", "pods", "--all", "--namespace", name, "--for=delete", "--timeout=120s")
    stack.kubectl("delete", "namespace", name, "--wait=false")  # what is left in it needs nobody


@pytest.fixture(scope="module")
def router(stack: Cluster) -> Iterator[str]:
    """Base URL of the router as seen from here."""
    with stack.reach(release.NAMESPACE, "quire-router", 80) as url:
        yield url
