"""Parts of texts have the first and the last tokens of the whole, whatever tokenizer it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from quire.text import Tokenizer, load_tokenizer, window
from tiny_text import write_tokenizer

WORDS = (
    "the",
    " cat",
    " sat",
    " on",
    " mats",
    ", and",
    "\n\nIt",
    " was 12345678",
    "  ",
    " über",
    "猫が",
    ".",
    " unbelievably",
    "🙂",
    "\t",
    "!!!",
)
CORPUS = ["".join(WORDS[(i * i + 3 * j) % len(WORDS)] for j in range(40)) for i in range(60)]


def byte_level() -> Backend:
    made = Backend(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=alphabet)
    )
    return made


def metaspace() -> Backend:
    made = Backend(models.BPE(unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, show_progress=False, special_tokens=["<unk>"]))
    return made


def word_piece() -> Backend:
    made = Backend(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    made.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=200, show_progress=False, special_tokens=["[UNK]"])
    )
    return made


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> list[Tokenizer]:
    return [_loaded(tmp_path_factory.mktemp(made.__name__), made()) for made in (byte_level, metaspace, word_piece)]


def _loaded(folder: Path, backend: Backend) -> Tokenizer:
    backend.save(str(write_tokenizer(folder / "model") / "tokenizer.json"))
    return load_tokenizer(folder / "model")


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from(WORDS), max_size=60),
    st.sampled_from(["the cat", ".\nIt"]),
    st.integers(20, 100),
    st.integers(1, 100),
)
def test_parts_have_the_tokens_of_the_whole(
    readers: list[Tokenizer], words: list[str], seam: str, times: int, keep: int
) -> None:
    text = "".join([*words, seam]) * times
    for reader in readers:
        whole = reader.encode(text, add_special_tokens=False)
        begin, end = reader.beginning(text, keep), reader.end(text, keep)
        assert reader.encode(begin, add_special_tokens=False)[:keep] == whole[:keep]
        assert reader.encode(end, add_special_tokens=False)[-keep:] == whole[-keep:]
        most = 4 * (reader.pieces.longest * (keep + window.SPARE_TOKENS) + window.SLACK_CHARS)
        assert max(len(begin), len(end)) <= min(len(text), most)


@pytest.mark.parametrize("run", ["et", ".", "!!!", "猫が", "🙂", "1"])
def test_without_a_seam_parts_spell_the_same_text(readers: list[Tokenizer], run: str) -> None:
    """Every token is there, though a run may be divided at other places than in the whole."""
    text = run * 20_001
    for reader in readers[:2]:  # word pieces have one token for it, which spells nothing
        first = reader.encode(reader.beginning(text, 50), add_special_tokens=False)[:50]
        last = reader.encode(reader.end(text, 50), add_special_tokens=False)[-50:]
        assert len(first) == len(last) == 50
        assert text.startswith(reader.decode(first).strip().rstrip("\ufffd"))
        assert text.endswith(reader.decode(last).strip().lstrip("\ufffd"))


def test_no_more_is_encoded_than_can_be_used(readers: list[Tokenizer]) -> None:
    text = "the cat sat on mats and " * 50_000
    for reader in readers:
        assert len(reader.beginning(text, 10)) < 10_000 > len(reader.end(text, 10))
        for odd in ("x" * 1_000_000, " " * 1_000_000):
            assert len(reader.beginning(odd, 10)) < 20_000 > len(reader.end(odd, 10))
