"""SentencePiece vocabularies in GGUF (Llama 2, Gemma): ids by SentencePiece's own rule, text back, chat from the file."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.errors import ModelError
from quire.request import SamplingParams
from quire.text import Tokenizer, load_tokenizer

WORDS = [
    "▁the",
    "▁them",
    "the",
    "th",
    "he",
    "▁t",
    "em",
    "ing",
    "in",
    "ng",
    "▁a",
    "an",
    "and",
    "▁and",
    "nd",
    "▁▁",
    "▁▁▁",
    "é",
]
LETTERS = ["▁", *"abcdefghijklmnopqrstuvwxyz", ".", "\n"]
SPECIAL = ["<unk>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
BYTES = [f"<0x{i:02X}>" for i in range(256)]
TOKENS = [*SPECIAL, *BYTES, *WORDS, *LETTERS, "<b>"]
SCORES = [0.0] * (len(SPECIAL) + 256) + [-float(i) for i in range(len(WORDS) + len(LETTERS))] + [-1000.0]
TYPES = [2, 3, 3, 3, 3] + [6] * 256 + [1] * (len(WORDS) + len(LETTERS)) + [4]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def write(path: Path, *, space_prefix: bool, scores: list[float] | None = SCORES) -> Path:
    writer = gguf.GGUFWriter(path, "gemma2")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    if scores is not None:
        writer.add_token_scores(scores)
    writer.add_token_types(TYPES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(space_prefix)
    writer.add_chat_template(TEMPLATE)
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def by_the_rule(text: str) -> list[int]:
    """SentencePiece's BPE: join the neighbours whose union has the best score, leftmost first, until none has one."""
    ids = {token: i for i, token in enumerate(TOKENS) if TYPES[i] == 1}
    parts = list(text.replace(" ", "▁"))
    while True:
        unions = [(-SCORES[ids[a + b]], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ids]
        if not unions:
            break
        _, i = min(unions)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    result: list[int] = []
    for part in parts:
        result += [ids[part]] if part in ids else [TOKENS.index(f"<0x{byte:02X}>") for byte in part.encode()]
    return result


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write(tmp_path_factory.mktemp("spm") / "gemma.gguf", space_prefix=False))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write(tmp_path_factory.mktemp("spm") / "llama.gguf", space_prefix=True))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="the aming nd.\né漢🎉", min_size=1, max_size=30))
def test_ids_and_text(gemma: Tokenizer, llama: Tokenizer, text: str) -> None:
    assert gemma.encode(text, add_special_tokens=False) == by_the_rule(text)
    assert llama.encode(text, add_special_tokens=False) == by_the_rule(" " + text)
    for tokenizer in (gemma, llama):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_begin_token_user_tokens_and_end_ids(gemma: Tokenizer) -> None:
    assert gemma.encode("the") == [1, *by_the_rule("the")]
    assert gemma.encode("<bos>the") == [1, *by_the_rule("the")]
    assert TOKENS.index("<b>") in gemma.encode("a<b>c")
    assert set(gemma.eos_ids) == {2, 4}  # <eos> from the header, <end_of_turn> because it ends a turn


def test_a_line_break_as_bad_word_is_one_wherever_it_comes(gemma: Tokenizer, llama: Tokenizer) -> None:
    for tokenizer in (gemma, llama):  # llama puts a space before every text
        params = tokenizer.resolve(SamplingParams(bad_words=("\n",)), room=5)
        assert params.bad_words_token_ids == ((TOKENS.index("\n"),),)


def test_chat_template_of_the_file(gemma: Tokenizer) -> None:
    ids = gemma.encode_chat([{"role": "user", "content": "the"}])
    assert ids[:2] == [1, 3]
    assert ids.count(4) == 1
    assert (
        gemma.decode(ids, skip_special_tokens=False)
        == "<bos><start_of_turn>user\nthe<end_of_turn>\n<start_of_turn>model\n"
    )


@pytest.mark.parametrize("scores", [None, SCORES[:-1]])
def test_without_scores_it_is_refused(tmp_path: Path, scores: list[float] | None) -> None:
    with pytest.raises(ModelError, match=rf"no tokenizer\.ggml\.scores for its {len(TOKENS)} tokens"):
        load_tokenizer(write(tmp_path / "odd.gguf", space_prefix=True, scores=scores))
