"""What one start packs the next ones map: the same bits, nothing packed twice, and never another's weights."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from quire.config import EngineConfig
from quire.errors import ConfigError
from quire.fetch.mark import MARK
from quire.models import calibration, cpu_decoder, packed_cache, packed_file
from quire.models.calibration import Calibration
from quire.models.packed_cache import PackedCache, cache_of
from quire.models.packing import Reader
from quire.models.precision import Precision
from quire.request import SamplingParams
from quire_kernels.weight_bytes import bytes_of
from quire_testing.cores import generate, make_core
from quire_testing.packed_starts import (
    EVERYTHING,
    INT4,
    INT8,
    TOKENS,
    fresh,
    held,
    logits,
    mapped,
    native,
    packing,
    start,
)
from quire_testing.tiny_gguf import save_gguf
from quire_testing.tiny_models import make, save

FAMILIES = ["llama", "phi3", "mixtral", "qwen3-biases"]
"""Matrices of their own; stacked in the file; experts with routers; biases, a tied head."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make("llama"), tmp_path_factory.mktemp("saved"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A model of one's own."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def cache(tmp_path: Path) -> PackedCache:
    return PackedCache(tmp_path / "packed", EVERYTHING)


# ---- the same weights ----


@pytest.mark.parametrize("precision", [INT8, INT4], ids=["int8", "int4"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_second_start_packs_nothing(
    name: str, precision: Precision, tmp_path: Path, cache: PackedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = native(save(make(name), tmp_path / "model"))
    count, first = start(model, precision, cache)
    assert count == len(Reader(model._open(), precision, model.description).matrices())
    expected = fresh(model, precision)
    again = mapped(cache, model, precision)
    assert {name: bytes(bytes_of(weight)) for name, weight in again.items()} == expected
    monkeypatch.setattr(cpu_decoder, "Calibration", None)  # no text is read either
    count, second = start(native(model.files.path), precision, PackedCache(cache.folder, EVERYTHING))
    assert count == 0
    assert torch.equal(first, second)


def test_a_gguf_file_of_plain_numbers(tmp_path: Path, cache: PackedCache) -> None:
    source = make("llama")
    model = native(save_gguf(source, save(source, tmp_path / "folder"), tmp_path / "tiny.gguf", types=["F16"]))
    for precision in (INT8, INT4):
        count, first = start(model, precision, cache)
        assert count > 0
        count, second = start(model, precision, cache)
        assert count == 0
        assert torch.equal(first, second)
    assert len(held(cache)) == 2


def test_an_engine_starts_from_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the flag; answers are the same."""
    caches: list[PackedCache] = []

    def asked(config: EngineConfig) -> PackedCache | None:
        found = cache_of(config)
        assert found is not None
        caches.append(found)
        return found

    monkeypatch.setattr(packed_cache, "cache_of", asked)
    settings: dict[str, Any] = {"quantization": "int8", "packed_cache": str(tmp_path / "kept"), "num_blocks": 32}
    prompts, params = [[5, 9, 30], [7]], SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    answers = generate(make_core(folder, **settings), prompts, params)
    caches[0].wait()
    assert len(held(caches[0])) == 1
    with packing() as packed:
        core = make_core(folder, **settings)
    assert len(caches) == 2
    assert not packed
    assert generate(core, prompts, params) == answers


def test_pages_are_those_of_the_file_and_there_at_once(tmp_path: Path, cache: PackedCache) -> None:
    """All of them, of an embedding too that is larger than what a single touch brings."""
    model = native(save(make("llama", vocab_size=20_000), tmp_path / "model"))
    start(model, INT8, cache)
    executor = model.plan().load(INT8, 16, tuple, PackedCache(cache.folder, EVERYTHING))
    [path] = held(cache)
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = next(index for index, line in enumerate(lines) if line.endswith(str(path)))
    figures = {key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in lines[at + 1 : at + 20])}
    assert figures["Rss"] == figures["Size"] >= path.stat().st_size // 1024 > 2000
    assert figures["Anonymous"] == figures["Private_Dirty"] == 0
    path.unlink()  # as another process may do; what is mapped stays
    assert bool(logits(model, executor).isfinite().all())


def test_paths_may_be_called_anything(saved: Path, tmp_path: Path) -> None:
    strange = "a b\tc'\"$(x);é字🎼[*]?%s{0}"
    folder = Path(shutil.copytree(saved, tmp_path / strange / "model"))
    cache = PackedCache(tmp_path / f"{strange} kept", EVERYTHING)
    assert start(native(folder), INT8, cache)[0] > 0
    assert start(native(folder), INT8, cache)[0] == 0


# ---- not another's weights ----


def test_each_kind_of_number_has_its_own(folder: Path, cache: PackedCache) -> None:
    model = native(folder)
    for count, (precision, tokens) in enumerate(
        [(INT8, TOKENS), (INT4, TOKENS), (INT4, TOKENS[:-1]), (INT4, []), (Precision.of(torch.bfloat16), TOKENS)]
    ):
        assert start(model, precision, cache, tokens)[0] > 0
        assert len(held(cache)) == min(count + 1, 4)  # what the file has as it is needs no copy
    half = Precision(torch.bfloat16, torch.bfloat16, "int8")
    assert start(model, half, cache)[0] > 0


def rewrite(folder: Path, change: Callable[[bytearray, int], None], *, keep_time: bool) -> None:
    """Change the numbers of a model. change: gets the file, and where numbers begin."""
    path = folder / "model.safetensors"
    before = path.stat()
    raw = bytearray(path.read_bytes())
    change(raw, 8 + int.from_bytes(raw[:8], "little"))
    changed = path.with_suffix(".changed")
    changed.write_bytes(raw)
    changed.replace(path)  # a start may have the old one mapped
    if keep_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


def all_numbers(raw: bytearray, begin: int) -> None:
    raw[begin::4] = bytes(each ^ 1 for each in raw[begin::4])


def first_number(raw: bytearray, begin: int) -> None:
    raw[begin] ^= 1


@pytest.mark.parametrize(
    ("change", "keep_time"),
    [(all_numbers, True), (all_numbers, False), (first_number, False)],
    ids=["all", "both", "one"],
)
def test_a_changed_model_is_packed_anew(change: Any, keep_time: bool, folder: Path, cache: PackedCache) -> None:
    _, before = start(native(folder), INT8, cache)
    rewrite(folder, change, keep_time=keep_time)
    count, after = start(native(folder), INT8, cache)
    assert count > 0
    assert change is first_number or not torch.equal(before, after)
    assert len(held(cache)) == 2


def test_a_changed_configuration_is_another_model(folder: Path, cache: PackedCache) -> None:
    start(native(folder), INT4, cache)
    config = folder / "config.json"
    text = config.read_text()
    assert '"rms_norm_eps"' in text
    config.write_text(text.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-03'))
    assert config.read_text() != text
    assert start(native(folder), INT4, cache)[0] > 0


def test_a_model_that_changes_while_it_is_read_is_not_kept(
    folder: Path, cache: PackedCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = packed_file.contents

    def late(*given: Any) -> Iterator[memoryview]:
        yield from contents(*given)
        rewrite(folder, first_number, keep_time=False)

    monkeypatch.setattr(packed_file, "contents", late)
    start(native(folder), INT8, cache)
    assert held(cache) == []
    assert "the model's files changed while they were read" in caplog.text


def test_the_same_model_elsewhere_is_the_same(saved: Path, tmp_path: Path, cache: PackedCache) -> None:
    places = [Path(shutil.copytree(saved, tmp_path / name)) for name in ("one", "other")]  # with their times
    assert [start(native(place), INT8, cache)[0] > 0 for place in places] == [True, False]


def test_what_a_hub_or_a_fetch_has_checked_needs_no_time(folder: Path, tmp_path: Path, cache: PackedCache) -> None:
    """Each pod that downloads a model anew has it at another time."""
    path = folder / "model.safetensors"
    digest = "0123456789abcdef" * 4
    blobs = tmp_path / "hub" / "blobs"
    blobs.mkdir(parents=True)
    path.rename(blobs / digest)
    path.symlink_to(blobs / digest)
    assert start(native(folder), INT8, cache)[0] > 0
    os.utime(path, ns=(1, 1))
    assert start(native(folder), INT8, cache)[0] == 0
    path.unlink()
    (blobs / digest).rename(path)
    size = path.stat().st_size
    (folder / MARK).write_text(f'{{"files": {{"model.safetensors": {{"size": {size}, "sha256": "{digest}"}}}}}}')
    assert start(native(folder), INT8, cache)[0] == 0  # the same digest
    os.utime(path, ns=(9, 9))
    assert start(native(folder), INT8, cache)[0] == 0
    os.utime(folder / MARK, ns=(8, 8))  # written before the last change: it says nothing about it
    assert start(native(folder), INT8, cache)[0] > 0


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    found = cache_of(EngineConfig())
    assert found is not None
    assert found.folder == tmp_path / "packed"
    assert found.is_for(INT4, packed_cache.LEAST_BYTES)
    assert not found.is_for(INT4, packed_cache.LEAST_BYTES - 1)
    assert not found.is_for(Precision.of(torch.bfloat16), 1 << 30)
    assert not found.is_for(Precision(torch.float32, torch.bfloat16, "stored"), 1 << 30)
    assert cache_of(EngineConfig(packed_cache="none")) is None
    named = cache_of(EngineConfig(packed_cache=str(tmp_path / "x")))
    assert named is not None
    assert named.folder == tmp_path / "x"
    assert named.is_for(INT8, 1)
    with pytest.raises(ConfigError, match="--packed-cache ~nobody-at-all/x: "):
        cache_of(EngineConfig(packed_cache="~nobody-at-all/x"))


# ---- versions ----


def patterned(name: str, place: Path) -> Path:
    """Weights that no generator draws: the same everywhere."""
    model = make(name)
    with torch.no_grad():
        for at, parameter in enumerate(model.parameters()):
            index = torch.arange(parameter.numel()) + 1000 * at
            noise = (index * index * 40_503 + index * 2_654_435_761) >> 15 & 255
            parameter.copy_(((noise.float() - 128) / 512 + (1 if parameter.ndim == 1 else 0)).view(parameter.shape))
    return save(model, place)


READ = {
    "llama int8": "05de68e71b4b0bf3",
    "llama int4": "a00a0c678bbec68c",
    "phi3 int8": "e73a62ff6e099629",
    "phi3 int4": "02ff592d89a16e30",
    "mixtral int8": "3af041e75a3ea6e5",
    "mixtral int4": "b565ef92cc661180",
}
"""Digests of weights by family and kind of number, without a text. Where one changes, packed weights that were kept are no longer what would be
made: raise packed_file.VERSION, and write down the new ones."""
MATTERS = [1.058, 0.3112, 1.052, 0.6863, 1.031, 0.6497, 1.04, 0.7147]
"""What matters in the first two layers, on average. Where that changes raise calibration.VERSION."""


@pytest.mark.parametrize("name", ["llama", "phi3", "mixtral"])
def test_what_is_read_and_packed_by_this_version(name: str, tmp_path: Path) -> None:
    model = native(patterned(name, tmp_path))
    for precision in (INT8, INT4):
        digest = hashlib.sha256()
        for _, weight in Reader(model._open(), precision, model.description).pack(None):
            digest.update(bytes_of(weight))
        assert READ[f"{name} {precision.quantization}"] == digest.hexdigest()[:16]
    assert packed_file.VERSION == 1


def test_what_matters_by_this_version(tmp_path: Path) -> None:
    model = native(patterned("llama", tmp_path))
    watched = Calibration(model.description, model._open(), TOKENS)
    found = [float(squares.mean()) for layer in range(2) for squares in watched.layer(layer).values()]
    assert found == pytest.approx(MATTERS, rel=0.01)
    assert calibration.VERSION == 1
