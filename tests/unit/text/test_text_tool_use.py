"""Tools in conversations: what each kind of chat template gets, and that everything is in the prompt."""

import json
from typing import Any

import pytest

from quire.text.chat import ChatTemplate
from quire.text.tool_use import adapted, habits_of

TOOLS = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}]
ARGUMENTS = '{"where": "Rome", "days": [1, 2]}'
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abcd12345", "type": "function", "function": {"name": "look", "arguments": ARGUMENTS}}],
    },
    {"role": "tool", "tool_call_id": "abcd12345", "name": "look", "content": "sunny"},
    {"role": "user", "content": "And now?"},
]
OFFER = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
SAY = "[{{ m.role }}]{{ m.content }}"


def calls(arguments: str) -> str:
    return "{% for c in m.tool_calls or [] %}<{{ c.function.name }} " + arguments + ">{% endfor %}"


def loop(body: str, offer: str = OFFER) -> str:
    return offer + "{% for m in messages %}" + body + "{% endfor %}"


OBJECTS = loop(SAY + calls("{{ c.function.arguments | tojson }}"))
TEXTS = loop(SAY + calls("{{ 'x' + c.function.arguments }}"))
ALONE = loop(
    "{% if m.content is none %}[calls]"
    + calls("{{ c.function.arguments | tojson }}")
    + "{% else %}"
    + SAY
    + "{% endif %}"
)
OBSERVED = loop(
    "{% if m.role not in ['user', 'assistant', 'observation', 'system'] %}{{ raise_exception('role') }}{% endif %}"
    "[{{ m.role }} {{ m.metadata or '' }}]{{ m.content }}"
)
PLAIN = loop(SAY, "")
STRICT = loop(
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}" + SAY, ""
)
NO_SYSTEM = loop("{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + SAY, "")


def prompt(template: str, tools: list[dict[str, Any]], history: list[dict[str, Any]] = HISTORY) -> str:
    chat = ChatTemplate({"default": template}, name="m", tokens={}, special=())
    messages, offered = adapted(habits_of(chat), history, tools)
    return chat.render(messages, tools=offered)


@pytest.mark.parametrize(
    ("template", "call", "result"),
    [
        (OBJECTS, f"[assistant]<look {ARGUMENTS}>", "[tool]sunny"),
        (TEXTS, f"[assistant]<look x{ARGUMENTS}>", "[tool]sunny"),
        (ALONE, f"[calls]<look {ARGUMENTS}>", "[tool]sunny"),
        (OBSERVED, f"[assistant look]{ARGUMENTS}", "[observation ]sunny"),
    ],
)
def test_templates_that_know_tools_get_them_their_way(template: str, call: str, result: str) -> None:
    text = prompt(template, TOOLS)
    assert text.startswith(json.dumps(TOOLS[0]) + "[user")
    assert f"{call}{result}" in text
    assert "You can call" not in text and "<tool_call>" not in text
    assert call in prompt(template, []), "the past stays when nothing is offered any more"


@pytest.mark.parametrize("template", [PLAIN, STRICT, NO_SYSTEM])
def test_templates_that_know_none_get_words(template: str) -> None:
    text = prompt(template, TOOLS)
    assert json.dumps(TOOLS[0]["function"]) in text
    assert f'[assistant]<tool_call>\n{{"name": "look", "arguments": {ARGUMENTS}}}\n</tool_call>' in text
    assert "[user]<tool_response>\nsunny\n</tool_response>\nAnd now?" in text
    assert text.startswith("[system]" if template == PLAIN else "[user]You can call")
    assert text.count("You can call functions") == 1


def test_a_system_message_stays_in_front() -> None:
    text = prompt(PLAIN, TOOLS, [{"role": "system", "content": "Be brief."}, *HISTORY])
    assert text.startswith("[system]Be brief.\n\nYou can call functions.")


def test_arguments_that_are_no_object_reach_the_template_as_the_text_they_are() -> None:
    """Of an answer that was cut, which a client sends back."""
    call = {"id": "abcd12345", "type": "function", "function": {"name": "look", "arguments": '{"where": "Ro'}}
    text = prompt(OBJECTS, TOOLS, [HISTORY[0], {**HISTORY[1], "tool_calls": [call]}])
    assert text.endswith('<look "{\\"where\\": \\"Ro">')
    empty = {**call, "function": {"name": "look", "arguments": ""}}
    assert prompt(OBJECTS, TOOLS, [HISTORY[0], {**HISTORY[1], "tool_calls": [empty]}]).endswith("<look {}>")


def test_conversations_without_tools_are_left_alone() -> None:
    messages = [{"role": "user", "content": "hi"}]
    chat = ChatTemplate({"default": PLAIN}, name="m", tokens={}, special=())
    assert adapted(habits_of(chat), messages, []) == (messages, None)
