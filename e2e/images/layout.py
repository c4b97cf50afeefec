"""Where the image builds keep their things: one folder in the user's cache, shared by all clones of the repository."""

from dataclasses import dataclass
from pathlib import Path

from cluster.caches import cache_root

REPOSITORY = Path(__file__).resolve().parents[2]
IMAGES = ("runtime", "operator")
REGISTRY = "docker.io"
"""What every engine and the kubelet put before `quire/…`; nothing is fetched from there or sent there."""


@dataclass(frozen=True)
class Layout:
    """Paths below the cache folder. A file that exists under its final name is complete."""

    root: Path

    @classmethod
    def of_user(cls) -> "Layout":
        """`<cache>/images`, as every tool of the repository finds it."""
        return cls(cache_root() / "images")

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def storage(self) -> Path:
        """buildah's images and layers, apart from those of the machine's other users."""
        return self.root / "storage"

    @property
    def run_root(self) -> Path:
        return self.root / "storage-run"

    @property
    def scratch(self) -> Path:
        """Only the holder of the lock writes here; whatever a killed build left is deleted by the next."""
        return self.root / "scratch"

    @property
    def records(self) -> Path:
        """One JSON file per archive: the layers that its build used."""
        return self.root / "records"

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def archive(self, name: str, tag: str) -> Path:
        return self.root / f"{name}-{tag}.tar"

    def record(self, name: str, tag: str) -> Path:
        return self.records / f"{name}-{tag}.json"

    def archives(self, name: str) -> list[Path]:
        """This image's archives, the most recently used first."""
        found = self.root.glob(f"{name}-dev-*.tar")
        return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def short_ref(name: str, tag: str) -> str:
    """As pods and Helm values name it."""
    return f"quire/{name}:{tag}"


def full_ref(name: str, tag: str) -> str:
    """As engines and containerd store it."""
    return f"{REGISTRY}/{short_ref(name, tag)}"
