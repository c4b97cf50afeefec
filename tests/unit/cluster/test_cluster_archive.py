"""Image archives: names, packing, and the layer names that containerd derives."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from cluster import archive
from cluster.errors import UsageError


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("quire/runtime:dev-1", "docker.io/quire/runtime:dev-1"),
        ("quire/runtime", "docker.io/quire/runtime:latest"),
        ("busybox", "docker.io/library/busybox:latest"),
        ("localhost/quire/runtime:1", "localhost/quire/runtime:1"),
        ("registry.example:5000/a/b", "registry.example:5000/a/b:latest"),
        ("docker.io/quire/runtime:1", "docker.io/quire/runtime:1"),
    ],
)
def test_a_name_becomes_the_reference_that_the_kubelet_looks_for(name: str, full: str) -> None:
    assert archive.full_ref(name) == full
    assert archive.full_ref(full) == full


def test_packing_is_reproducible_and_readable(tmp_path: Path) -> None:
    first = archive.pack("quire/pause:1", {"pause": b"\x7fELF"}, "/pause")
    assert first == archive.pack("quire/pause:1", {"pause": b"\x7fELF"}, "/pause")
    path = tmp_path / "pause.tar"
    path.write_bytes(first)
    read = archive.read(path)
    assert read.refs == ("docker.io/quire/pause:1",)
    path.write_bytes(archive.pack("quire/pause:1", {"pause": b"other"}, "/pause"))
    assert archive.read(path).identity != read.identity


def test_the_packed_program_is_executable_and_not_root() -> None:
    with tarfile.open(fileobj=io.BytesIO(archive.pack("q/p:1", {"pause": b"x"}, "/pause"))) as tar:
        layer = tar.extractfile("layer.tar")
        manifest = tar.extractfile("manifest.json")
        assert layer is not None and manifest is not None
        config = tar.extractfile(json.load(manifest)[0]["Config"])
        assert config is not None
        assert json.load(config)["config"]["User"] == "65535:65535"
        with tarfile.open(fileobj=layer) as inner:
            assert inner.getmember("pause").mode == 0o755


def test_an_oci_archive_is_known_by_its_annotation() -> None:
    def index(name: str) -> bytes:
        return json.dumps({"manifests": [{"annotations": {"org.opencontainers.image.ref.name": name}}]}).encode()

    assert archive.manifest_names(index("quire/runtime:dev-1")) == ("quire/runtime:dev-1",)
    assert archive.manifest_names(index("latest")) == (), "a bare tag names no image"


def test_what_is_no_image_archive_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.tar does not exist"):
        archive.read(tmp_path / "missing.tar")
    (tmp_path / "text.tar").write_text("not a tar file, but long enough to look at" * 100)
    with pytest.raises(UsageError, match=r"text\.tar cannot be read"):
        archive.read(tmp_path / "text.tar")
    with tarfile.open(tmp_path / "other.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("readme"))
    with pytest.raises(UsageError, match=r"neither index\.json"):
        archive.read(tmp_path / "other.tar")


def test_layer_names_chain_as_the_image_specification_says() -> None:
    # Taken from containerd: two layers and the names of their snapshots.
    lower = "sha256:7c2ab2ada9923f669fddbc469038f923b2a501ba816fa0c7448f3ec3e32b6fed"
    upper = "sha256:ba3016097b7634e7a3a4f276895825117d40a94decc684eb50f6ff14c5c5e5ab"
    chained = "sha256:9806af86b11aaeb1204201dd779130fc923e642479fca658eef9a59938b4ce21"
    assert archive.chain_ids([lower, upper]) == [lower, chained]
    assert archive.chain_ids([]) == []
