"""Chat: the reference library's ids, exactly; user text never becomes control tokens; faults are 400 with a remedy."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import ConfigError, RequestError
from quire.text import load_tokenizer
from quire.text.chat import BREAK, Defuser
from tiny_text import SPECIAL, TEMPLATE, write_tokenizer

DEFUSER = Defuser(SPECIAL)
PIECES_OF_MARKERS = st.lists(
    st.sampled_from(
        ["<|im_start|>", "<|im_end|>", "<|im_", "start|>", "<", "|>", ">", "<|endoftext|>", "a", " ", "\n", "système"]
    ),
    max_size=8,
).map("".join)


def user(text: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tiny"))


def test_chat_ids_equal_the_reference(folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello wor 🎉\n\n"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": " again "},
    ]
    expected = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert load_tokenizer(folder).encode_chat(messages) == expected


@pytest.mark.parametrize("add_bos", [None, False, True])
def test_the_template_alone_writes_begin_tokens(tmp_path: Path, add_bos: bool | None) -> None:
    config = {} if add_bos is None else {"add_bos_token": add_bos}
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, template="{{ bos_token }}" + TEMPLATE, **config))
    ids = tokenizer.encode_chat(user("hi"))
    assert ids[:2] == [1, 1]  # one from bos_token, one that opens the turn: exactly what the template says
    prompt = tokenizer.encode("hi")
    assert prompt[:1] == ([1] if add_bos else tokenizer.encode("h", add_special_tokens=False))
    assert tokenizer.encode("<|im_start|>hi").count(1) == 1  # a begin token in the text is not doubled


def control_tokens(folder: Path, messages: list[dict[str, Any]]) -> int:
    tokenizer = load_tokenizer(folder)
    return sum(i in tokenizer.special_ids for i in tokenizer.encode_chat(messages))


@settings(max_examples=60, deadline=None)
@given(text=PIECES_OF_MARKERS)
def test_user_text_makes_no_control_tokens(folder: Path, text: str) -> None:
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode_chat(user(text))
    assert sum(i in tokenizer.special_ids for i in ids) == 3
    assert tokenizer.decode(ids) == "user\n" + text + "\nassistant\n"
    assert tokenizer.render_chat(user(text)) == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


@given(left=PIECES_OF_MARKERS, right=PIECES_OF_MARKERS)
def test_neighbouring_strings_do_not_join_to_a_marker(left: str, right: str) -> None:
    joined = DEFUSER.text(left) + DEFUSER.text(right)
    assert not any(token in joined for token in SPECIAL)
    assert joined.replace(BREAK, "") == left + right


@pytest.mark.parametrize("cut", range(1, len(SPECIAL[1])))
def test_a_piece_of_a_marker_does_not_join_with_the_templates_text(cut: int) -> None:
    left, right = SPECIAL[1][:cut], SPECIAL[1][cut:]
    for joined in (DEFUSER.text(left + " ").rstrip() + right, left + DEFUSER.text("\n" + right).lstrip()):
        assert SPECIAL[1] not in joined
        assert joined.replace(BREAK, "") == SPECIAL[1]


def test_markers_in_tools_and_extra_fields_are_text_too(tmp_path: Path) -> None:
    template = "{{ tools | tojson }}{{ tools | tojson(ensure_ascii=True) }}{{ messages[0].name }}{{ note }}"
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, template=template))
    messages = [{"role": "user", "content": "", "name": "<|im_start|>"}]
    tools = [{"<|im_end|>": {"description": "<|im_start|>system"}}]
    ids = tokenizer.encode_chat(messages, tools=tools, variables={"note": "<|endoftext|>"})
    assert not set(ids) & tokenizer.special_ids
    assert tokenizer.decode(ids) == json.dumps(tools) * 2 + "<|im_start|><|endoftext|>"


def test_a_raw_prompt_may_hold_control_tokens(folder: Path) -> None:
    assert load_tokenizer(folder).encode("<|im_start|>user").count(1) == 1


def test_logic_of_templates_on_content_still_works(tmp_path: Path) -> None:
    template = "{{ messages[0].content.split('</think>')[-1] | trim }}|{{ messages[0].content is string }}"
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, template=template))
    assert tokenizer.render_chat(user("<think>no</think>  yes <|im_end|> ")) == "yes <|im_end|>|True"


@pytest.mark.parametrize(
    "content", ["|", "end", "im", "<", "user", "a | b |\n|---|", "well, ", "x <|im_end|> y", " x "]
)
def test_an_answer_goes_on_where_the_last_message_ends(folder: Path, content: str) -> None:
    tokenizer = load_tokenizer(folder)
    messages = [*user("hello"), {"role": "assistant", "content": content}]
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    expected = f"<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n{content}"
    assert tokenizer.render_chat(messages, **options) == expected
    ids = tokenizer.encode_chat(messages, **options)
    assert sum(i in tokenizer.special_ids for i in ids) == 3
    assert tokenizer.decode(ids, skip_special_tokens=False) == expected


def test_an_answer_goes_on_behind_a_trimmed_message(tmp_path: Path) -> None:
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    trims = load_tokenizer(write_tokenizer(tmp_path, template="{{ messages[0].content | trim }} <|im_end|>"))
    assert trims.render_chat(user(" x  "), **options) == "x"
    assert trims.render_chat(user("\ufdd1x"), **options) == "x"  # the mark itself is no text
    silent = load_tokenizer(write_tokenizer(tmp_path, template="<|im_start|>"))
    with pytest.raises(RequestError, match="does not write the text of the last message"):
        silent.render_chat(user("x"), **options)


def test_a_template_of_requests_is_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(folder)
    compiled: list[str] = []
    from_string = tokenizer.chat._environment.from_string
    monkeypatch.setattr(
        tokenizer.chat._environment, "from_string", lambda source: compiled.append(source) or from_string(source)
    )
    for number in range(100):
        assert tokenizer.render_chat(user(str(number)), template="{{ messages[0].content }}!") == f"{number}!"
        tokenizer.render_chat(user(str(number)))
    assert len(compiled) == 2


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "has no chat template"),
        ("{% if %}", "is no valid jinja"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "failed on these messages"),
        ("{{ ''.__class__.__mro__ }}", "failed on these messages"),
        ("{% set _ = messages.append(1) %}", "failed on these messages"),
    ],
)
def test_a_missing_or_raising_template_is_a_400_that_names_model_and_flag(
    tmp_path: Path, template: str | None, words: str
) -> None:
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, template=template), name="my-model")
    with pytest.raises(RequestError) as caught:
        tokenizer.encode_chat(user("hi"))
    assert caught.value.status == 400
    for word in (words, "my-model", "--chat-template"):
        assert word in str(caught.value)


def test_chat_template_file_replaces_the_models_own(tmp_path: Path, folder: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{% generation %}[{{ messages[0].content }}]{% endgeneration %}")
    assert load_tokenizer(folder, chat_template=str(file)).render_chat(user("hi")) == "[hi]"
    with pytest.raises(ConfigError, match="--chat-template"):
        load_tokenizer(folder, chat_template=str(tmp_path / "absent.jinja"))
