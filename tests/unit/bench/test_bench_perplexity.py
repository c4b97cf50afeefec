"""`quire bench perplexity`: the figure is that of its formula, with transformers' own probabilities."""

from __future__ import annotations

import json
import math
from importlib import resources
from pathlib import Path

import pytest
import torch

from quire.bench.perplexity import cut
from quire.entrypoints.cli import main
from quire.text import load_tokenizer
from tiny_api import reference_model, tiny_folder

TEXT = "hello world, ünd wörd: UVW hello hello who was it? " * 5
FLAGS = ["--num-blocks=200", "--cpu-threads=1", "--dtype=float32"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


@torch.inference_mode()
def expected(folder: Path, context: int) -> list[float]:
    """What each token costs, in nats."""
    tokens, model = load_tokenizer(folder).encode(TEXT, add_special_tokens=False), reference_model()
    costs = []
    for start in range(0, len(tokens), context):
        chunk = torch.tensor(tokens[start : start + context])
        logprobs = model(chunk[None]).logits[0].log_softmax(dim=-1)
        costs += [-float(logprobs[at, token]) for at, token in enumerate(chunk[1:].tolist())]
    return costs


@pytest.mark.parametrize("context", [16, 37])
def test_it_is_what_the_formula_says(folder: Path, tmp_path: Path, context: int) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out.json"
    text.write_text(TEXT, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["bench", "perplexity", str(folder), f"--text={text}", f"--context={context}", f"--json={out}", *FLAGS])
    assert ended.value.code == 0
    found, costs = json.loads(out.read_text()), expected(folder, context)
    assert found["median"]["tokens"] == len(costs) > 100
    assert found["median"]["nll"] == pytest.approx(sum(costs) / len(costs), abs=1e-5)
    assert found["median"]["perplexity"] == pytest.approx(math.exp(sum(costs) / len(costs)), rel=1e-5)
    assert found["engine"]["quantization"] == "none"
    assert found["work"]["text"] == str(text)


def test_chunks_hold_every_token_but_a_lonely_last_one() -> None:
    assert cut(range(7), 3) == [[0, 1, 2], [3, 4, 5]]
    assert cut(range(8), 3) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert cut(range(1), 3) == []


@pytest.mark.parametrize(
    ("content", "flag", "message"),
    [
        (b"", "--context=16", "has fewer than 2 tokens; give a longer one"),
        (b"\xff\xfe\x00", "--context=16", "cannot be read as UTF-8"),
        (None, "--context=16", "cannot be read as UTF-8"),
        (b"hello " * 900, "--context=600", "--context 600 is more than the 511 tokens of a prompt here; lower it"),
    ],
)
def test_what_cannot_be_measured(
    folder: Path, tmp_path: Path, content: bytes | None, flag: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    if content is not None:
        text.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["bench", "perplexity", str(folder), f"--text={text}", flag, *FLAGS])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_text_that_is_here_is_long_enough_and_plain() -> None:
    text = resources.files("quire.bench").joinpath("time_machine.txt").read_text(encoding="utf-8")
    assert len(text.split()) > 4000
    assert text.isprintable() or set(filter(lambda character: not character.isprintable(), text)) == {"\n"}
