"""Promise: the images are small, run as nobody on a read-only root, carry what they need and nothing of the host that built them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.caches import exclusive
from cluster.progress import Progress
from images import base as debian
from images.build import Built, Wanted, build
from images.contents import Contents, chunks, layers, read
from images.engines import BuildRequest, choose
from images.host import host_pip, read_host
from images.layout import IMAGES, Layout

MB = 1_000_000
SECRET_IDS = ("apt_auth", "apt_conf", "apt_sources", "ca_bundle", "netrc", "pip_conf")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a read-only root, which needs root")


@pytest.fixture(scope="module")
def built() -> dict[str, Built]:
    """Both images of this tree; nothing is built where the archives are there."""
    return {image.name: image for image in build(IMAGES, Wanted.of_environment(), Progress())}


@pytest.fixture(scope="module")
def contents(built: dict[str, Built]) -> dict[str, Contents]:
    return {name: read(image.archive) for name, image in built.items()}


@pytest.fixture(scope="module")
def inside(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run a program in an image as Kubernetes does: its environment, uid 65532, read-only root, /tmp and /cache writable."""
    roots: dict[str, Path] = {}

    def run(name: str, *command: str) -> str:
        root = roots.get(name) or roots.setdefault(name, unpack(built[name].archive, tmp_path_factory.mktemp(name)))
        script = (
            'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc"'
            ' && mount -t tmpfs -o mode=1777 tmp "$0/tmp" && mount -t tmpfs -o mode=1777 cache "$0/cache"'
            ' && exec chroot --userspec=65532:65532 --groups= "$0" "$@"'
        )
        environment = dict(entry.split("=", 1) for entry in read_config(built[name].archive)["Env"])
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, str(root), *command]
        search = f"{environment.pop('PATH')}:{os.environ['PATH']}"
        done = subprocess.run(
            words, env={**environment, "PATH": search}, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{command} in {name}: {done.stderr or done.stdout}"
        return done.stdout

    return run


def read_config(archive: Path) -> dict[str, list[str]]:
    config: dict[str, list[str]] = read(archive).config["config"]
    return config


def unpack(archive: Path, folder: Path) -> Path:
    """The root file system of an archive."""
    folder.chmod(0o755)
    for layer in layers(archive):
        with subprocess.Popen(
            ["tar", "--extract", "--numeric-owner", "--same-permissions", "--directory", str(folder)],
            stdin=subprocess.PIPE,
        ) as child:
            assert child.stdin is not None
            shutil.copyfileobj(layer, child.stdin, 1 << 20)
        assert child.returncode == 0
        for mark in folder.rglob(".wh.*"):
            hidden = mark.with_name(mark.name.removeprefix(".wh."))
            shutil.rmtree(hidden) if hidden.is_dir() else hidden.unlink(missing_ok=True)
            mark.unlink()
    return folder


def torch_flavour(contents: Contents) -> str:
    """`+cpu` of torch 2.13.0+cpu; empty for PyPI's build."""
    names = [path for path in contents.files() if "/torch-" in path and path.endswith(".dist-info/METADATA")]
    return names[0].partition("+")[2].partition(".dist-info")[0] if names else "none"


def test_sizes(contents: dict[str, Contents]) -> None:
    assert contents["operator"].unpacked_bytes < 250 * MB
    if torch_flavour(contents["runtime"]) == "cpu":
        assert contents["runtime"].unpacked_bytes < 1300 * MB


def test_the_operator_image_has_no_torch_and_no_engine(contents: dict[str, Contents]) -> None:
    packages = {
        path.split("/site-packages/")[1].split("/")[0]
        for path in contents["operator"].files()
        if "/site-packages/" in path
    }
    assert {"quire_operator", "quire_router", "kopf", "lightkube"} <= packages
    assert not packages & {"torch", "triton", "numpy", "quire", "quire_kernels"}


@pytest.mark.parametrize("name", IMAGES)
def test_no_compiler_no_pip_no_caches_no_documentation(contents: dict[str, Contents], name: str) -> None:
    files = contents[name].files()
    programs = {path.rsplit("/", 1)[1] for path in files if "/bin/" in path}
    assert not programs & {"gcc", "g++", "cc", "c++", "cmake", "ninja", "make", "pip", "pip3", "git"}
    assert {"tini", "python3"} <= programs
    unwanted = ("root/.cache/", "usr/share/man/", "var/lib/apt/lists/", "var/cache/apt/", "src/", "usr/share/locale/")
    assert not [path for path in files if path.startswith(unwanted)]


@pytest.mark.parametrize("name", IMAGES)
def test_bytecode_is_compiled_at_build_time(contents: dict[str, Contents], name: str) -> None:
    files = contents[name].files()
    own = [
        path
        for path in files
        if path.startswith("opt/quire/") and "/site-packages/quire" in path and path.endswith(".py")
    ]
    assert own
    if name == "runtime":
        own += [path for path in files if path.endswith(("site-packages/torch/__init__.py", "torch/nn/functional.py"))]
    for path in own:
        folder, _, module = path.rpartition("/")
        assert f"{folder}/__pycache__/{module.removesuffix('.py')}.cpython-311.pyc" in files


@pytest.mark.parametrize(
    ("name", "entrypoint", "environment"),
    [
        ("runtime", ["/usr/bin/tini", "--", "quire"], {"QUIRE_CACHE_DIR=/cache", "HF_HOME=/cache/huggingface"}),
        ("operator", ["/usr/bin/tini", "--", "python", "-m"], set()),
    ],
)
def test_configuration(contents: dict[str, Contents], name: str, entrypoint: list[str], environment: set[str]) -> None:
    config = contents[name].config["config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == entrypoint
    always = {"HOME=/tmp", "PYTHONSAFEPATH=1", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1"}
    assert always | environment <= set(config["Env"])
    assert not [entry for entry in config["Env"] if entry.lower().startswith(("pip_", "http", "no_proxy", "ssl"))]
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in config["Labels"].items()}
    assert {"title", "description", "version", "revision", "source", "licenses"} <= labels.keys()
    assert labels["licenses"] == "Apache-2.0" and labels["title"] == f"Quire {name}"


def test_the_embedded_model_is_readable_by_everyone(contents: dict[str, Contents]) -> None:
    model = contents["runtime"].files()["models/smollm2.gguf"]
    assert model.size == 98_362_432 and model.mode & 0o777 == 0o444


@pytest.mark.parametrize("name", IMAGES)
def test_nothing_of_the_host_is_in_a_layer(built: dict[str, Built], name: str) -> None:
    host = read_host(host_pip(), None)
    registry = ("index-url", "extra-index-url", "trusted-host", "proxy", "cert", "find-links")
    needles = {word.encode() for key in registry for word in host_pip().get(key, "").split()}
    needles |= {part for key in ("netrc", "apt_auth") for part in host.secrets.get(key, b"").split() if len(part) > 5}
    needles |= {str(path.parent).encode() for path in host.find_links.files}
    ordinary = {b"", *(b"/etc/ssl/certs/ca-certificates.crt", b"/opt/wheels", b"machine", b"default", b"password")}
    for chunk in chunks(built[name].archive):
        found = [needle for needle in needles - ordinary if needle in chunk]
        assert not found


@as_root
def test_secrets_of_a_build_are_seen_by_it_and_stay_in_no_layer(tmp_path: Path) -> None:
    layout = Layout.of_user()
    wanted = Wanted.of_environment()
    engine = choose(layout, wanted.engine, lambda: pytest.fail("images are built already, so an engine is here"))
    bases = (wanted.base, debian.reference(), debian.REGISTRY_BASE)
    reference = next(ref for ref in bases if ref and engine.image_id(ref))
    canary = "canary-of-the-image-tests"
    secrets = {name: tmp_path / name for name in SECRET_IDS}
    for name, path in secrets.items():
        path.write_text(f"{canary} {name}\n")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / canary).touch()
    context = tmp_path / "context"
    context.mkdir()
    mounts = " ".join(f"--mount=type=secret,id={name}" for name in SECRET_IDS)
    (context / "Dockerfile").write_text(
        "ARG BASE\nFROM scratch AS wheels\nFROM ${BASE}\n"
        f"RUN {mounts} --mount=type=bind,from=wheels,target=/run/wheels cat /run/secrets/* /run/wheels/* | wc -w > /seen"
        f" && ls /run/wheels | wc -l >> /seen\n"
    )
    ref = "localhost/quire/canary:1"
    request = BuildRequest(
        context / "Dockerfile", ref, {"BASE": reference}, secrets, tmp_path / "wheels", True, tmp_path / "log"
    )
    archive = tmp_path / "canary.tar"
    with exclusive(layout.lock, Progress(), "the image builds"):
        layout.scratch.mkdir(parents=True, exist_ok=True)
        engine.build(request, Progress())
        engine.export(ref, archive, Progress(), tmp_path / "export.log")
        engine.remove(ref)
    pieces = list(chunks(archive))
    assert any(f"{2 * len(SECRET_IDS)}\n1\n".encode() in piece for piece in pieces)  # the build saw them all
    assert not any(canary.encode() in piece for piece in pieces)


@as_root
def test_the_runtime_starts_as_nobody_on_a_read_only_root(inside: Callable[..., str]) -> None:
    assert "serve" in inside("runtime", "/usr/bin/tini", "--", "quire", "--help")
    code = "import os, quire, quire_kernels, torch; print(os.getuid(), torch.ones(3).sum().item())"
    assert inside("runtime", "/usr/bin/tini", "--", "python", "-c", code).split() == ["65532", "3.0"]


@as_root
@pytest.mark.parametrize("module", ["quire_operator", "quire_router"])
def test_the_operator_image_starts_both_programs(inside: Callable[..., str], module: str) -> None:
    code = f"import importlib, os; importlib.import_module('{module}.__main__'); print(os.getuid())"
    assert inside("operator", "/usr/bin/tini", "--", "python", "-c", code).split() == ["65532"]
