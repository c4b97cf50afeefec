"""Fetching from a real server on loopback that breaks, lies, refuses and is slow to recover; onto a disk that is too small."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from faulty_server import COMMIT, Fault, FaultyServer, faulty_server
from quire.errors import ConfigError, ModelError
from quire.fetch import store as store_module
from quire.fetch.fetch import Fetch, fetch, wait_until_complete
from quire.fetch.remote import RemoteFile
from quire.fetch.store import MARK
from quire.fetch.transfer import PARTS
from quire.fetch.web import TOKEN
from quire.models.pooling import Pooling, from_folder
from quire.models.source import resolve

MIB = 1 << 20
WEIGHTS = bytes(range(256)) * (5 * MIB // 256)
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"a": 1}',
    "model.safetensors": WEIGHTS,
    "consolidated.safetensors": WEIGHTS,
    "onnx/model.safetensors": b"no",
    "README.md": b"no",
}
WANTED = {"config.json", "tokenizer.json", "model.safetensors"}
BIG = f"/org/name/resolve/{COMMIT}/model.safetensors"


@pytest.fixture
def hub() -> Iterator[FaultyServer]:
    with faulty_server(FILES) as server:
        yield server


class Run:
    """A fetch with its log and its pauses, which take no time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.pauses: list[float] = []

    def __call__(self, server: FaultyServer, source: str = "hf://org/name", **options: object) -> Path:
        environ = options.pop("environ", {})
        wanted = Fetch(source, self.folder, endpoint=server.url, **options)  # type: ignore[arg-type]
        return fetch(wanted, environ, say=self.lines.append, sleep=self.pauses.append)  # type: ignore[arg-type]

    @property
    def files(self) -> dict[str, bytes]:
        return {
            path.name: path.read_bytes()
            for path in self.folder.iterdir()
            if path.is_file() and not path.name.startswith(".")
        }


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "model")


def test_what_serves_is_fetched_and_nothing_else(hub: FaultyServer, run: Run) -> None:
    assert run(hub) == run.folder
    assert run.files == {name: FILES[name] for name in WANTED}
    assert not (run.folder / PARTS).exists() and (run.folder / MARK).is_file()
    assert resolve(str(run.folder)).kind == "folder", "the engine takes it"


def test_a_second_fetch_asks_nobody(hub: FaultyServer, run: Run) -> None:
    run(hub)
    hub.requests.clear()
    run(hub)
    run(hub, offline=True)
    assert hub.requests == []


def test_offline_downloads_nothing(hub: FaultyServer, run: Run) -> None:
    with pytest.raises(ModelError, match="--offline"):
        run(hub, offline=True)
    assert hub.requests == []


def test_a_break_is_resumed_where_it_happened(hub: FaultyServer, run: Run) -> None:
    hub.faults[BIG] = [Fault(cut=2 * MIB + 7), Fault(cut=MIB + 1)]
    run(hub)
    assert run.files["model.safetensors"] == WEIGHTS
    first, second, third = hub.asked(BIG)
    assert "range" not in first.headers
    assert second.headers["range"] == f"bytes={2 * MIB + 7}-" and third.headers["range"] == f"bytes={3 * MIB + 8}-"
    assert sum(each.sent for each in (first, second, third)) == len(WEIGHTS), "no byte was sent twice"
    assert run.pauses == [], "a connection that brought something is opened again at once"


def test_the_next_process_goes_on(hub: FaultyServer, run: Run) -> None:
    hub.faults[BIG] = [Fault(cut=3 * MIB), Fault(status=403)]
    with pytest.raises(ModelError, match="403"):
        run(hub)
    assert not (run.folder / MARK).exists() and "model.safetensors" not in run.files
    run(hub)
    assert hub.asked(BIG)[-1].headers["range"] == f"bytes={3 * MIB}-"
    assert run.files["model.safetensors"] == WEIGHTS


def test_a_server_without_ranges_sends_it_all_again(hub: FaultyServer, run: Run) -> None:
    hub.faults[BIG] = [Fault(cut=2 * MIB), Fault(ranges=False)]
    run(hub)
    assert run.files["model.safetensors"] == WEIGHTS


def test_a_store_that_answers_a_range_with_200_is_understood(hub: FaultyServer, run: Run) -> None:
    hub.faults[BIG] = [Fault(cut=2 * MIB), Fault(sloppy=True)]
    run(hub)
    assert run.files["model.safetensors"] == WEIGHTS
    assert sum(each.sent for each in hub.asked(BIG)) == len(WEIGHTS)


@pytest.mark.parametrize("sloppy", [False, True])
def test_two_versions_are_never_stitched_together(run: Run, sloppy: bool) -> None:
    old, new = b"o" * (3 * MIB), b"n" * (4 * MIB)
    with faulty_server({"m.gguf": old}) as server:
        server.faults["/m.gguf"] = [Fault(cut=2 * MIB), Fault(sloppy=sloppy)]

        def change(path: str) -> None:
            if len(server.asked(path)) == 2:
                server.files["m.gguf"] = new

        server.before = change
        run(server, f"{server.url}/m.gguf")
        assert server.asked("/m.gguf")[1].headers["if-range"] == f'"{hashlib.md5(old).hexdigest()}"'
    assert run.files == {"m.gguf": new}


def test_a_folder_is_not_stitched_together_either(hub: FaultyServer, run: Run) -> None:
    """The branch moves between two tries: what was there by then is fetched anew, although its size is the same."""
    hub.faults[f"/org/name/resolve/{COMMIT}/config.json"] = [Fault(status=403)]
    with pytest.raises(ModelError, match="403"):
        run(hub, parallel=1)  # the largest first
    assert run.files == {name: FILES[name] for name in ("model.safetensors", "tokenizer.json")}
    hub.commit = "d" * 40
    hub.files = {"config.json": b"{}", "tokenizer.model": b'{"b": 2}', "model.safetensors": WEIGHTS[::-1]}
    run(hub)
    assert run.files == hub.files, "what is no part of the new version is gone"
    [last] = hub.asked(BIG.replace(COMMIT, hub.commit))
    assert "range" not in last.headers


def test_a_file_that_only_the_answer_measures_and_nothing_validates_starts_over(run: Run) -> None:
    with faulty_server({"m.gguf": WEIGHTS}, etags=False) as server:
        server.faults["/m.gguf"] = [Fault(cut=2 * MIB), Fault(status=404)]
        with pytest.raises(ModelError, match="check the address"):
            run(server, f"{server.url}/m.gguf")
        run(server, f"{server.url}/m.gguf")
        assert "range" not in server.asked("/m.gguf")[-1].headers
    assert run.files == {"m.gguf": WEIGHTS}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_wrong_digest_is_downloaded_once_more_and_then_given_up(hub: FaultyServer, run: Run, name: str) -> None:
    path = f"/org/name/resolve/{COMMIT}/{name}"
    hub.faults[path] = [Fault(corrupt=True)]
    run(hub)
    assert run.files[name] == FILES[name] and len(hub.asked(path)) == 2


def test_a_digest_that_stays_wrong_leaves_no_file(hub: FaultyServer, run: Run) -> None:
    hub.faults[BIG] = [Fault(corrupt=True)] * 9
    with pytest.raises(ModelError, match=r"model\.safetensors: the content does not have the digest"):
        run(hub)
    assert "model.safetensors" not in run.files and len(hub.asked(BIG)) == 2


def test_the_digest_of_an_address_is_checked(run: Run) -> None:
    with faulty_server({"m.gguf": WEIGHTS}) as server:
        with pytest.raises(ModelError, match="does not have the digest"):
            run(server, f"{server.url}/m.gguf", sha256="0" * 64)
        run(server, f"{server.url}/m.gguf", sha256=hashlib.sha256(WEIGHTS).hexdigest())


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_obeyed(hub: FaultyServer, run: Run, status: int) -> None:
    tree = f"/api/models/org/name/tree/{COMMIT}"
    hub.faults[tree] = [Fault(status=status, headers={"Retry-After": "7"})]
    hub.faults[BIG] = [Fault(status=status, headers={"Retry-After": "9"}), Fault(status=status)]
    run(hub)
    assert run.files["model.safetensors"] == WEIGHTS
    assert 7 <= run.pauses[0] < 8 and 9 <= run.pauses[1] < 10 and run.pauses[2] <= 60
    assert any(str(status) in line and "attempt 2 of 8" in line for line in run.lines)


def test_patience_ends(hub: FaultyServer, run: Run) -> None:
    hub.faults[BIG] = [Fault(status=503)] * 99
    with pytest.raises(ModelError, match=r"gave up after 3 attempts: 127\.0\.0\.1 answered 503"):
        run(hub, attempts=3)
    assert len(hub.asked(BIG)) == 3


def test_drops_without_progress_end_too(hub: FaultyServer, run: Run) -> None:
    hub.faults[BIG] = [Fault(cut=10)] * 99
    with pytest.raises(ModelError, match="gave up after 3 attempts"):
        run(hub, attempts=3)


@pytest.mark.parametrize(
    ("status", "environ", "said"),
    [
        (401, {}, "a token is needed"),
        (403, {"HF_TOKEN": "t"}, "accept its terms"),
        (404, {}, "check the name org/name and the revision main"),
    ],
)
def test_a_refusal_is_final_and_says_what_helps(
    hub: FaultyServer, run: Run, status: int, environ: dict[str, str], said: str
) -> None:
    path = "/api/models/org/name/revision/main"
    hub.faults[path] = [Fault(status=status)]
    with pytest.raises(ModelError, match=said):
        run(hub, environ=environ)
    assert len(hub.requests) == 1 and run.pauses == []


def test_a_server_that_is_not_there_is_told(run: Run, hub: FaultyServer) -> None:
    hub.url = "http://127.0.0.1:1"
    with pytest.raises(ModelError, match=r"gave up after 2 attempts: 127\.0\.0\.1 cannot be reached"):
        run(hub, attempts=2)


def test_the_token_goes_to_the_hub_and_not_where_it_redirects(hub: FaultyServer, run: Run) -> None:
    with faulty_server({"elsewhere": WEIGHTS}) as storage:
        other = storage.url.replace("127.0.0.1", "localhost")
        hub.faults[BIG] = [Fault(status=302, headers={"Location": f"{other}/elsewhere"})]
        run(hub, environ={"HF_TOKEN": "secret"})
        assert all(each.headers["authorization"] == "Bearer secret" for each in hub.requests)
        [redirected] = storage.requests
        assert "authorization" not in redirected.headers
    assert run.files["model.safetensors"] == WEIGHTS
    assert not any("secret" in line for line in run.lines)


def test_an_address_gets_its_own_token_and_never_the_hubs(hub: FaultyServer, run: Run) -> None:
    hub.files["m.gguf"] = WEIGHTS
    run(hub, f"{hub.url}/m.gguf", environ={"HF_TOKEN": "secret"})
    assert all("authorization" not in each.headers for each in hub.requests)
    hub.requests.clear()
    Run(run.folder.with_name("other"))(hub, f"{hub.url}/m.gguf", environ={"HF_TOKEN": "secret", TOKEN: "mine"})
    assert [each.headers["authorization"] for each in hub.requests] == ["Bearer mine"]


def test_too_little_room_is_told_before_anything_is_downloaded(
    hub: FaultyServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = type("Usage", (), {"free": 17 * MIB})
    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda folder: free)
    with pytest.raises(ModelError, match=r"has 17\.8 MB free, 5\.2 MB more are needed .*spec\.model\.cache\.size"):
        run(hub)
    assert hub.asked(BIG) == []


def test_a_disk_that_fills_up_midway_is_told(run: Run) -> None:
    """The limit is the kernel's own on the size of a file: a write beyond it fails as one on a full disk does."""
    code = (
        "import sys; from pathlib import Path; from quire.fetch.fetch import Fetch, fetch;"
        "fetch(Fetch(sys.argv[1], Path(sys.argv[2])), {}, say=print)"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, 2 * MIB))

    with faulty_server({"m.gguf": WEIGHTS}) as server:
        done = subprocess.run(
            [sys.executable, "-c", code, f"{server.url}/m.gguf", str(run.folder)],
            preexec_fn=limit,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "ModelError: m.gguf: no room left in" in done.stderr and "spec.model.cache.size" in done.stderr


def test_two_fetches_of_one_folder_download_once(hub: FaultyServer, run: Run) -> None:
    held, asked_again = threading.Event(), threading.Event()

    def before(path: str) -> None:
        if path == BIG:
            held.set()
            asked_again.wait(30)

    hub.before = before
    first = threading.Thread(target=run, args=(hub,))
    first.start()
    assert held.wait(30)
    other = Run(run.folder)
    waiting = threading.Event()
    other.lines = _Signal(waiting)
    second = threading.Thread(target=other, args=(hub,))
    second.start()
    assert waiting.wait(30), "the second one says that it waits"
    asked_again.set()
    first.join(30)
    second.join(30)
    assert len(hub.asked(BIG)) == 1 and other.files == run.files
    assert any("waiting for it" in line for line in other.lines)


class _Signal(list[str]):
    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self._event = event

    def append(self, line: str) -> None:
        super().append(line)
        self._event.set()


def test_one_failure_stops_the_others(run: Run) -> None:
    files = {"config.json": b"{}", **{f"model-{n}.safetensors": WEIGHTS for n in range(4)}}
    with faulty_server(files) as server:
        server.faults[f"/org/name/resolve/{COMMIT}/model-0.safetensors"] = [Fault(status=403)]
        with pytest.raises(ModelError, match="403"):
            run(server, parallel=1)
        assert len([each for each in server.requests if "resolve" in each.path]) == 1


def test_another_model_is_not_mixed_into_the_folder(hub: FaultyServer, run: Run) -> None:
    run(hub)
    with pytest.raises(ModelError, match="choose another folder"):
        run(hub, revision="other")


@pytest.mark.parametrize("name", ["../evil.json", ".hidden.json", MARK])
def test_what_is_no_file_of_a_model_is_left_where_it_is(run: Run, name: str) -> None:
    with faulty_server({**FILES, name: b"x"}) as server:
        run(server)
    assert set(run.files) == WANTED and not (run.folder.parent / "evil.json").exists()
    assert (run.folder / MARK).read_bytes() != b"x"


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", ".x", "a\\b"])
def test_a_hostile_path_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="no plain relative path"):
        RemoteFile(name, "http://h/x")


def test_one_file_of_a_repository(run: Run) -> None:
    with faulty_server({"a.gguf": b"a" * 99, "b.gguf": WEIGHTS}) as server:
        with pytest.raises(ModelError, match=r"2 \.gguf files; name one: a\.gguf, b\.gguf"):
            run(server)
        run(server, "hf://org/name/b.gguf")
    assert run.files == {"b.gguf": WEIGHTS}


def test_one_file_of_a_folder_of_a_repository_is_where_the_engine_looks(run: Run) -> None:
    with faulty_server({"q4/a.gguf": b"GGUF", "q8/a.gguf": WEIGHTS}) as server:
        run(server, "hf://org/name/q4/a.gguf")
    assert run.files == {"a.gguf": b"GGUF"}
    assert resolve(str(run.folder)).path == run.folder / "a.gguf"


def test_a_model_for_vectors_comes_with_what_says_how_they_are_made(run: Run) -> None:
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    vectors = {
        **FILES,
        "modules.json": json.dumps(modules).encode(),
        "sentence_bert_config.json": b'{"max_seq_length": 8}',
        "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
        "onnx/config.json": b"no",
    }
    with faulty_server(vectors) as server:
        run(server)
    assert from_folder(run.folder) == Pooling("mean", normalise=False)
    assert (run.folder / "sentence_bert_config.json").is_file() and not (run.folder / "onnx").exists()


@pytest.mark.parametrize("source", ["smollm2", "ftp://x/y", "hf://only", "s3://", "https://host/folder/"])
def test_sources_that_are_none(run: Run, hub: FaultyServer, source: str) -> None:
    with pytest.raises(ConfigError, match=r"SOURCE must be|must name a"):
        run(hub, source)


def test_waiting_ends_when_it_is_whole_or_late(hub: FaultyServer, run: Run) -> None:
    times = iter(range(100))
    with pytest.raises(ModelError, match="not filled within 5 s"):
        wait_until_complete(
            run.folder, 5, say=run.lines.append, sleep=run.pauses.append, clock=lambda: float(next(times))
        )
    pauses = len(run.pauses)

    def fill(_: float) -> None:
        run.pauses.append(_)
        run(hub)

    wait_until_complete(run.folder, 1e9, say=run.lines.append, sleep=fill, clock=lambda: 0.0)
    assert len(run.pauses) == pauses + 1
