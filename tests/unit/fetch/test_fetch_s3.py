"""Buckets: the signature against the examples that its specification publishes, folders over several pages, sums."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from faulty_server import Fault, faulty_server
from quire.errors import ModelError
from quire.fetch.fetch import Fetch, fetch, source_of
from quire.fetch.identity import Credentials
from quire.fetch.s3 import SUMS, Signature

EXAMPLE = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
FILES = {
    "models/m/config.json": b"{}",
    "models/m/model-1.safetensors": b"1" * 99,
    "models/m/model-2.safetensors": b"2" * 99,
    "models/m/tokenizer.json": b"[]",
    "models/mm/config.json": b"another",
    "models/one.gguf": b"gguf",
}


MODEL = ("config.json", "model-1.safetensors", "model-2.safetensors")


def get(source: str, folder: Path, url: str, environ: dict[str, str] | None = None) -> dict[str, bytes]:
    wanted = Fetch(source, folder, endpoint=url, attempts=1, parallel=1)
    fetch(wanted, environ or {}, say=lambda line: None, sleep=lambda pause: None)
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.mark.parametrize(
    ("url", "headers", "signature"),
    [
        (
            "https://examplebucket.s3.amazonaws.com/test.txt",
            {"Range": "bytes=0-9"},
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J",
            {},
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_the_signature_is_that_of_the_published_examples(url: str, headers: dict[str, str], signature: str) -> None:
    auth = Signature(EXAMPLE, "us-east-1", lambda: datetime(2013, 5, 24, tzinfo=UTC))
    request = next(auth.auth_flow(httpx.Request("GET", url, headers=headers)))
    assert request.headers["Authorization"].endswith(f"Signature={signature}")


def test_a_folder_is_listed_over_all_pages_and_signed(tmp_path: Path) -> None:
    with faulty_server(FILES) as server:
        files = get("s3://bucket/models/m", tmp_path, server.url, KEYS)
        assert len(server.asked("/bucket/")) == 2, "two keys a page"
        for request in server.requests:
            assert request.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=id/")
    assert set(files) == {"config.json", "model-1.safetensors", "model-2.safetensors", "tokenizer.json"}


def test_one_object_and_no_credentials(tmp_path: Path) -> None:
    with faulty_server(FILES) as server:
        assert get("s3://bucket/models/one.gguf", tmp_path, server.url) == {"one.gguf": b"gguf"}
        assert not any("authorization" in request.headers for request in server.requests)
        with pytest.raises(ModelError, match="is not there"):
            get("s3://bucket/models/two.gguf", tmp_path / "two", server.url)


def test_sums_beside_the_files_are_obeyed(tmp_path: Path) -> None:
    good = hashlib.sha256(b"1" * 99).hexdigest()
    lines = f"{good}  model-1.safetensors\n{'0' * 64} *model-2.safetensors\n"
    wrong = pytest.raises(ModelError, match=r"model-2\.safetensors: the content does not have the digest")
    with faulty_server({**FILES, f"models/m/{SUMS}": lines.encode()}) as server, wrong:
        get("s3://bucket/models/m", tmp_path, server.url)


@pytest.mark.parametrize("sums", [True, False])
def test_a_folder_that_is_uploaded_anew_between_two_tries_is_not_mixed(tmp_path: Path, sums: bool) -> None:
    def uploaded(old: bytes, new: bytes) -> dict[str, bytes]:
        files = {f"models/m/{each}": FILES[f"models/m/{each}"].replace(old, new) for each in MODEL}
        lines = "".join(f"{hashlib.sha256(files[f'models/m/{each}']).hexdigest()}  {each}\n" for each in MODEL)
        return {**files, **({f"models/m/{SUMS}": lines.encode()} if sums else {})}

    with faulty_server(uploaded(b"", b"")) as server:
        server.faults["/bucket/models/m/model-2.safetensors"] = [Fault(status=403)]
        with pytest.raises(ModelError, match="403"):
            get("s3://bucket/models/m", tmp_path, server.url)
        server.files = uploaded(b"1", b"A")
        assert get("s3://bucket/models/m", tmp_path, server.url)["model-1.safetensors"] == b"A" * 99


@pytest.mark.parametrize(
    ("source", "endpoint", "url"),
    [
        ("s3://b/k/m.gguf", None, "https://b.s3.eu-west-1.amazonaws.com/k/m.gguf"),
        ("s3://b.c/k/m.gguf", None, "https://s3.eu-west-1.amazonaws.com/b.c/k/m.gguf"),
        ("s3://b/k/a b+c.gguf", "http://store:9000/", "http://store:9000/b/k/a%20b%2Bc.gguf"),
    ],
)
def test_addresses(source: str, endpoint: str | None, url: str, tmp_path: Path) -> None:
    bucket = source_of(Fetch(source, tmp_path, region="eu-west-1", endpoint=endpoint), {})
    key = source.split("/", 3)[3]
    page = f"<R><Contents><Key>{key}</Key><Size>4</Size></Contents></R>".encode()
    [file] = bucket.files(lambda _: httpx.Response(200, content=page))
    assert file.url == url and file.path == key.rpartition("/")[2]


def test_a_copy_of_a_fetched_folder_is_a_model_and_its_code_comes_if_asked_for(tmp_path: Path) -> None:
    copied = {**FILES, "models/m/.quire-complete.json": b"{}", "models/m/modeling.py": b"x"}
    with faulty_server(copied) as server:
        assert "modeling.py" not in get("s3://bucket/models/m", tmp_path / "plain", server.url)
        wanted = Fetch("s3://bucket/models/m", tmp_path / "code", endpoint=server.url, attempts=1, code=True)
        folder = fetch(wanted, {}, say=lambda line: None, sleep=lambda pause: None)
    assert (folder / "modeling.py").is_file()
