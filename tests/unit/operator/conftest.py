"""One real API server for all tests of the operator that ask for it, with the definitions of our kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from quire_operator.cluster import Cluster
from quire_operator.crd.kinds import KINDS
from quire_operator.crd.manifest import custom_resource_definition
from real_api import RealApi, real_api


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    """Modules that use it have a long timeout: the programs are built where they are not there yet."""
    with real_api(tmp_path_factory.mktemp("api")) as made:
        for kind in KINDS:
            made.define(custom_resource_definition(kind))
        runtime = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
        assert made.create("/apis/node.k8s.io/v1/runtimeclasses", runtime, dry_run=False).status_code == 201
        yield made


@pytest.fixture
async def real_cluster(api: RealApi) -> AsyncIterator[Cluster]:
    """The operator's hands on that server."""
    client = api.lightkube()
    yield Cluster(client)
    await client.close()
