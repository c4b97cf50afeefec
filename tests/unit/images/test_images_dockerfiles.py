"""What the two Dockerfiles promise each other, the host and the runtime."""

from __future__ import annotations

import re

import pytest

from images.layout import IMAGES, REPOSITORY
from quire.models.bundled import BUNDLED

TEXT = {name: (REPOSITORY / f"Dockerfile.{name}").read_text() for name in IMAGES}


def instructions(name: str) -> list[str]:
    """Whole instructions, comments dropped, continued lines joined."""
    lines = [line for line in TEXT[name].splitlines() if not line.startswith("#")]
    return [line.strip() for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


def stage(name: str, stage_name: str) -> list[str]:
    """One stage's instructions; the last stage is called ''."""
    stages: dict[str, list[str]] = {}
    here = "before"
    for line in instructions(name):
        if match := re.match(r"FROM \S+(?: AS (\S+))?", line):
            here = match[1] or ""
        stages.setdefault(here, []).append(line)
    return stages[stage_name]


def test_both_share_their_first_stages_byte_for_byte() -> None:
    for name in ("python", "tools", "installer"):
        assert stage("runtime", name) == stage("operator", name)


@pytest.mark.parametrize("name", IMAGES)
def test_whatever_talks_to_a_registry_gets_the_secrets(name: str) -> None:
    for line in instructions(name):
        if line.startswith("RUN") and "apt-get" in line:
            assert {"apt_conf", "apt_sources", "apt_auth", "ca_bundle"} == set(
                re.findall(r"type=secret,id=(\w+)", line)
            )
        online = re.search(r"pip.* (install|download) ", line) and "--no-index" not in line
        if line.startswith("RUN") and online:
            assert {"pip_conf", "netrc", "ca_bundle"} == set(re.findall(r"type=secret,id=(\w+)", line))
            assert "type=bind,from=wheels" in line


@pytest.mark.parametrize("name", IMAGES)
def test_the_final_stage(name: str) -> None:
    final = stage(name, "")
    assert "USER 65532:65532" in final
    assert not [line for line in final if line.startswith("RUN")]  # what it holds was made and verified before
    assert next(line for line in final if line.startswith("ENTRYPOINT")).startswith(
        'ENTRYPOINT ["/usr/bin/tini", "--", '
    )
    copies = [line.split()[1] for line in final if line.startswith("COPY")]
    order = ["torch", "dependencies", "model", "installed", "application", "verified"]
    at = [order.index(copy.removeprefix("--from=")) for copy in copies]
    assert at == sorted(at)  # what changes often lies on top


def test_the_embedded_model_is_the_one_that_quire_pull_fetches() -> None:
    bundled = BUNDLED["smollm2"]
    arguments = dict(re.findall(r"ARG (MODEL_\w+)=(\S+)", TEXT["runtime"]))
    assert arguments == {
        "MODEL_WHEEL": f"{bundled.wheel}=={bundled.version}",
        "MODEL_MEMBER": bundled.member,
        "MODEL_SHA256": bundled.sha256,
    }


def test_only_listed_folders_reach_a_build() -> None:
    rules = [line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule for rule in rules if rule.startswith("!")} == {"!kernels", "!operator", "!runtime"}
