"""Everything that is made for one spec per feature, against files that were read by people.

`QUIRE_SNAPSHOTS=write` writes them anew; then read the diff. What changes here rolls pods at the next upgrade of the operator.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from operator_kit import DEFAULTS, owner, workloads
from quire_operator.resources import (
    build_hpa,
    build_service,
    build_supplies,
)
from spec_cases import SPECS

FOLDER = Path(__file__).parent / "snapshots"


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


@pytest.mark.parametrize("case", SPECS)
def test_the_objects_are_those_that_were_read(case: str) -> None:
    of = owner(SPECS[case])
    made = [
        *build_supplies(of, DEFAULTS),
        build_service(of),
        *workloads(of),
        build_hpa(of),
    ]
    for each in made:
        if each is not None:
            del (
                each["metadata"]["ownerReferences"],
                each["metadata"]["labels"],
            )  # the same in all: see the builders' tests
    text = yaml.dump_all([each for each in made if each], Dumper=_Dumper, sort_keys=False, width=120)
    file = FOLDER / f"{case}.yaml"
    if os.environ.get("QUIRE_SNAPSHOTS") == "write":
        FOLDER.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


def test_there_is_no_snapshot_without_a_case() -> None:
    assert {file.stem for file in FOLDER.glob("*.yaml")} == set(SPECS)
