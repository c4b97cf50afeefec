"""Build the programs of the cluster from the Go module proxy, once per `go.mod` and `go.sum`.

Each folder below `e2e/tools/` is a Go module that pins one project. Its programs go to
`<cache>/tools/<name>-<hash>/bin`: built beside it, then renamed, so a folder that exists is complete. The hash covers
the folder's files and the build flags below. Go's own caches stay where Go keeps them.
"""

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.caches import cache_root, exclusive
from cluster.errors import CommandError, PrerequisiteError
from cluster.progress import Progress
from cluster.run import run
from cluster.stream import stream

SOURCES = Path(__file__).resolve().parent.parent / "tools"
BUILD_DEADLINE_S = 3600.0


@dataclass(frozen=True)
class Tool:
    """One Go module, the version it pins, and the main packages taken from it."""

    name: str
    module: str
    version: str
    packages: tuple[str, ...]
    ldflags: tuple[str, ...] = ()
    folder: str = ""
    """Of the module, where it is not called like the tool."""

    @property
    def sources(self) -> Path:
        """The module's folder."""
        return SOURCES / (self.folder or self.name)

    @property
    def programs(self) -> tuple[str, ...]:
        return tuple(package.rsplit("/", 1)[1] for package in self.packages)


def _kubernetes(version: str) -> Tool:
    major, minor, _ = version.removeprefix("v").split(".")
    stamp = "k8s.io/component-base/version"
    programs = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
    return Tool(
        "kubernetes",
        "k8s.io/kubernetes",
        version,
        tuple(f"k8s.io/kubernetes/cmd/{program}" for program in programs),
        # Without these every program calls itself v0.0.0-master, which Helm's kubeVersion check then refuses.
        tuple(
            f"-X {stamp}.{key}={value}"
            for key, value in (("gitVersion", version), ("gitMajor", major), ("gitMinor", minor))
        ),
    )


KUBERNETES = _kubernetes("v1.34.4")
KUBECTL = replace(KUBERNETES, name="kubectl", packages=("k8s.io/kubernetes/cmd/kubectl",), folder="kubernetes")
"""For clusters that others run: a fifth of the compiling."""
HELM = Tool(
    "helm",
    "helm.sh/helm/v3",
    "v3.22.0",
    ("helm.sh/helm/v3/cmd/helm",),
    ("-X helm.sh/helm/v3/internal/version.version=v3.22.0",),
)
COREDNS = Tool("coredns", "github.com/coredns/coredns", "v1.15.0", ("quire.dev/e2e/tools/coredns",))
ALL = (KUBERNETES, HELM, COREDNS)
HELM_UNITTEST = Tool(
    "helm-unittest",
    "github.com/helm-unittest/helm-unittest",
    "v1.1.2",
    ("github.com/helm-unittest/helm-unittest/cmd/helm-unittest",),
)
HELM_DOCS = Tool(
    "helm-docs", "github.com/norwoodj/helm-docs", "v1.14.2", ("github.com/norwoodj/helm-docs/cmd/helm-docs",)
)
CHART = (HELM, HELM_UNITTEST, HELM_DOCS)
"""What `make lint-chart` runs; no cluster needs the last two."""


def build_flags(tool: Tool) -> tuple[str, ...]:
    """Flags of `go build`; part of the cache key."""
    # No debug information, neither made nor linked: a tenth of the compiling.
    return (
        "-trimpath",
        "-mod=readonly",
        "-gcflags=all=-dwarf=false",
        "-ldflags",
        " ".join(("-s", "-w", *tool.ldflags)),
    )


def cache_key(tool: Tool, *sources: bytes) -> str:
    """Twelve hex digits that change when the built programs may. sources: contents of the module's files."""
    digest = hashlib.sha256()
    for part in (*sources, "\0".join((*build_flags(tool), *tool.packages)).encode()):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:12]


def bin_dir(tool: Tool, root: Path | None = None) -> Path:
    """Where the tool's programs are or will be."""
    key = cache_key(tool, *(path.read_bytes() for path in sorted(tool.sources.iterdir())))
    return (root or cache_root() / "tools") / f"{tool.name}-{key}" / "bin"


def ensure(progress: Progress, wanted: tuple[Tool, ...] = ALL, root: Path | None = None) -> dict[str, Path]:
    """Program name -> path, building what is not there. Safe to call from several processes at once."""
    found: dict[str, Path] = {}
    for tool in wanted:
        target = bin_dir(tool, root)
        if not target.is_dir():
            with exclusive(target.parent.parent / f".{tool.name}.lock", progress, f"the build of {tool.name}"):
                if not target.is_dir():
                    _build(tool, target.parent, progress)
        os.utime(target.parent)  # used now: `_prune` goes by this
        found |= {program: target / program for program in tool.programs}
    return found


def needed_go(go_mod: str) -> str:
    """The Go version that a go.mod asks for."""
    found = re.search(r"^go (\S+)$", go_mod, re.MULTILINE)
    assert found is not None, "our own files name it"
    return found[1]


def go_version(text: str) -> tuple[int, ...]:
    """`go1.26.8` -> (1, 26, 8); empty for a development version."""
    found = re.match(r"(?:go)?(\d+(?:\.\d+)*)", text.strip())
    return tuple(map(int, found[1].split("."))) if found else ()


def _check_go(tool: Tool) -> None:
    needed = needed_go((tool.sources / "go.mod").read_text())
    what = f"{tool.name} {tool.version} is built from source"
    if shutil.which("go") is None:
        raise PrerequisiteError(f"the Go toolchain was not found; {what}: install Go {needed} or newer")
    try:
        # An older Go fetches the wanted toolchain now, if GOTOOLCHAIN allows it.
        have = run(["go", "env", "GOVERSION"], deadline_s=600, cwd=tool.sources, env=_go_environment())
        said = have.strip()
    except CommandError as error:
        have, said = "go0", str(error)
    if go_version(have) and go_version(have) < go_version(needed):
        raise PrerequisiteError(
            f"{what}, which needs Go {needed} or newer; here is {said}, and it did not fetch a newer one "
            "(Go 1.21 and later do with GOTOOLCHAIN=auto): install a newer Go"
        )


def _go_environment() -> dict[str, str]:
    # GOGC: the compiler's own garbage collection is an eighth of the compiling (329 s of CPU instead of 375 for client-go).
    return {"GOGC": "400", **os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-buildvcs=false"}


def _build(tool: Tool, target: Path, progress: Progress) -> None:
    _check_go(tool)
    for stale in target.parent.glob(f".{tool.name}-*.tmp"):  # left by a build that was killed; the lock is ours
        shutil.rmtree(stale)
    scratch = Path(tempfile.mkdtemp(prefix=f".{tool.name}-", suffix=".tmp", dir=target.parent))
    (scratch / "bin").mkdir()
    log = target.parent / f"{tool.name}-build.log"

    def describe(lines: Sequence[str]) -> str:
        linked = sum(1 for _ in (scratch / "bin").iterdir())
        packages = sum(not line.startswith("go: ") for line in lines)  # -v: one a line
        return f"{packages} packages compiled, {linked} of {len(tool.programs)} programs linked"

    command = ["go", "build", "-v", *build_flags(tool), "-o", f"{scratch / 'bin'}/", *tool.packages]
    stream(
        command,
        title=f"build {tool.name} {tool.version} (once; some minutes)",
        log=log,
        deadline_s=BUILD_DEADLINE_S,
        progress=progress,
        cwd=tool.sources,
        env=_go_environment(),
        describe=describe,
    )
    scratch.chmod(0o755)
    scratch.rename(target)
    _prune(tool, target)


def _prune(tool: Tool, keep: Path) -> None:
    """Drop builds of the same tool that nobody used for two weeks: each is up to 400 MB."""
    horizon = time.time() - 14 * 24 * 3600
    for other in keep.parent.glob(f"{tool.name}-*"):
        if other.is_dir() and other != keep and other.stat().st_mtime < horizon:
            shutil.rmtree(other)
