"""Vocabularies from folders and GGUF files: ids of the reference library, end ids, faults that name the file."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from quire.errors import ModelError, RequestError
from quire.models import bundled
from quire.request import SamplingParams
from quire.text import Tokenizer as TextTokenizer
from quire.text import load_tokenizer
from quire.text.pieces import Pieces
from quire.text.vocabulary import Vocabulary
from tiny_text import build_tokenizer, write_tokenizer

TEXTS = [
    "Hello, world! I'LL don't we've  two spaces\n\n\ttabs   ",
    "1234567 3.14 x2y",
    "Zürich naïve 漢字かな交じり 🎉👨‍👩‍👧 Straße",
    " leading <|im_start|>user\r\n<|im_end|>",
    "CamelCaseWORDS snake_case kebab-case/path//to",
    "",
]


def byte_level(pre: pre_tokenizers.PreTokenizer) -> Tokenizer:
    """A small trained byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def write_gguf(path: Path, tokenizer: Tokenizer, *, pre: str, **more: Any) -> Path:
    import json

    import gguf
    import numpy as np

    model = json.loads(tokenizer.to_str())["model"]
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_tokenizer_model(more.get("kind", "gpt2"))
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(more.get("add_bos", False))
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o", "default"])
def test_gguf_ids_equal_the_reference(tmp_path: Path, trained: Tokenizer, pre: str) -> None:
    from transformers import PreTrainedTokenizerFast

    write_gguf(tmp_path / "tiny.gguf", trained, pre=pre)
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    tokenizer = load_tokenizer(tmp_path / "tiny.gguf")
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_gguf_digits_are_split_as_the_models_own_tokenizer_does(tmp_path: Path, trained: Tokenizer) -> None:
    own = byte_level(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    )
    write_gguf(tmp_path / "tiny.gguf", own, pre="smollm")
    tokenizer = load_tokenizer(tmp_path / "tiny.gguf")
    for text in [*TEXTS, " ½ 12³"]:
        assert tokenizer.encode(text) == own.encode(text).ids


def test_gguf_begin_token_and_end_ids(tmp_path: Path, trained: Tokenizer) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "tiny.gguf", trained, pre="gpt-2", add_bos=True))
    assert tokenizer.encode("hi")[0] == 1
    assert tokenizer.encode("<|im_start|>hi").count(1) == 1
    assert set(tokenizer.eos_ids) == {2, 0}  # <|im_end|> from the header, <|endoftext|> because it is one


@pytest.mark.parametrize(
    ("pre", "kind", "words"), [("nobody-knows", "gpt2", "pre-tokenizer 'nobody-knows'"), ("gpt-2", "bert", "'bert'")]
)
def test_gguf_that_is_not_understood_is_refused(
    tmp_path: Path, trained: Tokenizer, pre: str, kind: str, words: str
) -> None:
    write_gguf(tmp_path / "odd.gguf", trained, pre=pre, kind=kind)
    with pytest.raises(ModelError, match=f"odd.gguf.*{words}.*--tokenizer"):
        load_tokenizer(tmp_path / "odd.gguf")


def test_folder_end_ids_come_from_generation_config_too(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tokenizer(tmp_path))
    assert set(tokenizer.eos_ids) == {0, 2}
    params = tokenizer.resolve(SamplingParams(stop=("<|im_start|>", "x"), stop_token_ids=(7,), max_tokens=None), room=5)
    assert (params.stop, set(params.stop_token_ids), params.max_tokens) == (("<|im_start|>", "x"), {7, 1, 2, 0}, 5)
    assert tokenizer.resolve(SamplingParams(ignore_eos=True, max_tokens=3), room=5).stop_token_ids == ()


def test_what_programs_call_on_a_tokenizer_of_transformers(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    write_tokenizer(tmp_path, pad_token="<|endoftext|>")
    reference, tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    for name in ("bos", "eos", "pad", "unk"):
        assert getattr(tokenizer, f"{name}_token") == getattr(reference, f"{name}_token"), name
        assert getattr(tokenizer, f"{name}_token_id") == getattr(reference, f"{name}_token_id"), name
    assert tokenizer.eos_token_id == 2
    tokens = ["hello", "<|im_end|>", "no such token"]
    assert tokenizer.convert_tokens_to_ids(tokens) == reference.convert_tokens_to_ids(tokens)
    assert tokenizer.convert_tokens_to_ids("<|im_start|>") == 1
    assert tokenizer.convert_ids_to_tokens([0, 2, 40]) == reference.convert_ids_to_tokens([0, 2, 40])
    assert tokenizer.convert_ids_to_tokens(2) == "<|im_end|>"
    assert tokenizer.get_vocab() == reference.get_vocab()
    assert tokenizer.vocab_size == reference.vocab_size
    assert set(tokenizer.all_special_tokens) == set(reference.all_special_tokens)
    assert sorted(tokenizer.all_special_ids) == sorted(reference.all_special_ids)
    for text in ("hello wor", ["hello", "a b"]):
        mine, theirs = tokenizer(text), reference(text)
        assert (mine["input_ids"], mine.input_ids) == (theirs["input_ids"], theirs.input_ids)
        assert mine.attention_mask == theirs.attention_mask
    assert tokenizer.batch_decode([[2, 40], [41]], skip_special_tokens=False) == reference.batch_decode([[2, 40], [41]])


def test_bad_words_that_are_blanks_are_those_blanks(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tokenizer(tmp_path))

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    def banned(word: str) -> tuple[tuple[int, ...], ...]:
        return tokenizer.resolve(SamplingParams(bad_words=(word,)), room=5).bad_words_token_ids

    assert banned("\n") == (ids("\n"),)
    assert banned("\n\n") == (ids("\n\n"),)
    assert banned("  ") == (ids("  "),)
    assert banned("\thello") == (ids("\thello"), ids(" \thello"))
    assert banned("  hello") == (ids("hello"), ids(" hello"))


def test_a_bad_word_without_tokens_is_refused() -> None:
    backend = Tokenizer(models.WordLevel({"yes": 0, "no": 1}))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = TextTokenizer(Vocabulary(backend=backend, name="words", special_ids=frozenset(), eos_ids=()))
    assert tokenizer.resolve(SamplingParams(bad_words=("no",)), room=5).bad_words_token_ids == ((1,),)
    with pytest.raises(RequestError, match="bad_words must be words of 1 to 256 tokens, got ' '"):
        tokenizer.resolve(SamplingParams(bad_words=(" ",)), room=5)


@pytest.mark.parametrize(("add_bos", "begins"), [(None, 1), (True, 1), (False, 0)])
def test_folder_begin_token_is_there_exactly_once(tmp_path: Path, add_bos: bool | None, begins: int) -> None:
    write_tokenizer(tmp_path, **({} if add_bos is None else {"add_bos_token": add_bos}))
    backend = build_tokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", pair="<|im_start|> $A $B", special_tokens=[("<|im_start|>", 1)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("hi").count(1) == begins
    assert tokenizer.encode("<|im_start|>hi").count(1) == 1
    assert tokenizer.encode("hi", add_special_tokens=False).count(1) == 0
    assert tokenizer.encode("x" * 5000).count(1) == begins


def test_folder_faults_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match="absent"):
        load_tokenizer(tmp_path / "absent")


def test_names_that_users_of_transformers_know(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tokenizer(tmp_path))
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.eos_token) == (2, 1, "<|im_end|>")
    assert tokenizer.pad_token_id is None
    assert tokenizer.vocab_size == len(tokenizer)
    assert tokenizer.convert_tokens_to_ids("<|im_start|>") == 1
    assert tokenizer.convert_tokens_to_ids(["<|im_end|>", "no such token"]) == [2, None]
    assert tokenizer.convert_ids_to_tokens(2) == "<|im_end|>"
    assert tokenizer.convert_ids_to_tokens([0, 10_000]) == ["<|endoftext|>", None]


def test_sentencepiece_style_vocabularies_decode() -> None:
    words = ["<unk>", "<s>", "</s>", "▁Hello", "▁world", "<0xF0>", "<0x9F>", "<0x8E>", "<0x89>", "!"]
    backend = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    pieces = Pieces(backend, {1, 2})
    assert pieces.strips_first_space
    assert b"".join(pieces.bytes_of(i) for i in [1, 3, 4, 5, 6, 7, 8, 9, 2, 99]) == " Hello world🎉!".encode()


def test_unknown_decoders_are_refused() -> None:
    backend = build_tokenizer()
    backend.decoder = decoders.CTC()
    with pytest.raises(ModelError, match="CTC"):
        Pieces(backend, ())


@pytest.mark.model
def test_the_embedded_model_has_the_ids_of_the_reference() -> None:
    from transformers import PreTrainedTokenizerFast

    path = bundled.pull("smollm2")
    reference = PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer = load_tokenizer(path)
    for text in TEXTS:
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    assert tokenizer.encode_chat(messages) == reference.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
