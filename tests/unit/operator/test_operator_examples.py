"""Every example that users apply is an LLMDeployment this operator understands."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from operator_kit import DEFAULTS
from quire_operator.policy import revision_of
from quire_operator.resources import build_pod_template
from quire_operator.spec import parse

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_parses_and_renders(path: Path) -> None:
    for body in yaml.safe_load_all(path.read_text()):
        if body["kind"] != "LLMDeployment":
            continue
        body["metadata"] |= {"namespace": "demo", "uid": "u", "generation": 1}
        assert revision_of(build_pod_template(parse(body), DEFAULTS))
