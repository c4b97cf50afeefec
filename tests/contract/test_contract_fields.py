"""docs/fields.md is what the parser follows, and the server does what it says: each field of each endpoint is sent."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from live_server import Live, ids_of, live_server
from quire.config import ServeConfig
from quire.request import PoolingFacts
from quire.server import reference
from quire.server.app import create_app
from quire.server.bodies.fields import MOST_NAMED
from quire.server.bodies.reading import IGNORED_HEADER
from quire.server.flight.frontend import Frontend
from quire.server.openai.responses.body import LOGPROBS
from quire.server.reference import IGNORED, REFUSED, REQUIRED, USED, behaviours, bodies
from scripted_engine import ScriptedEngine

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = (
    "{{ tools | length if tools }}{{ x }}{{ reasoning_effort }}{{ enable_thinking }}{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# <tool_call> arguments #}"
)
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
SAID = [{"role": "user", "content": "hello"}]
FUNCTION = {"name": "f", "description": "d"}
TOOLS = [{"type": "function", "function": FUNCTION}]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COUNT = "/v1/messages/count_tokens"

BASE: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello"},
    CHAT: {"messages": SAID},
    RESPONSES: {"input": "hello"},
    MESSAGES: {"messages": SAID, "max_tokens": 400},
    COUNT: {"messages": SAID},
    "/generate": {"prompt": "hello"},
    "/tokenize": {"messages": SAID},
    "/detokenize": {"tokens": [5, 1]},
    "/v1/embeddings": {"input": "hello you"},
    "/v1/score": {"text_1": "hello", "text_2": ["world", "you"]},
    "/v1/rerank": {"query": "hello", "documents": ["world", "you"]},
}
POOLING = ("/v1/embeddings", "/v1/score", "/v1/rerank")
"""What each endpoint takes and answers with 200."""

SAMPLES: dict[str, Any] = {
    "model": "alias", "n": 2, "best_of": 2, "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.5, "typical_p": 0.5,
    "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": {"5": 1.0},
    "allowed_token_ids": [5], "bad_words": "hello", "seed": 7, "stop": "l", "stop_token_ids": [9],
    "include_stop_str_in_output": True, "ignore_eos": True, "max_tokens": 3, "priority": 5, "cache_salt": "s", "min_tokens": 2,
    "skip_special_tokens": False, "spaces_between_special_tokens": False, "truncate_prompt_tokens": 1, "prompt_logprobs": 1,
    "stream": True, "stream_options": {"include_usage": True}, "response_format": {"type": "json_object"},
    "structured_outputs": {"regex": "a"}, "guided_json": {"type": "object"}, "guided_regex": "a", "guided_choice": ["a"],
    "guided_grammar": 'start: "a"', "prompt": "world", "echo": True, "logprobs": 1, "top_logprobs": 2,
    "add_generation_prompt": False, "continue_final_message": True, "chat_template_kwargs": {"x": "y"}, "reasoning_effort": "low",
    "tools": TOOLS, "tool_choice": "none", "parallel_tool_calls": False, "messages": [{"role": "user", "content": "world"}],
    "max_completion_tokens": 3, "input": "world", "instructions": "x", "max_output_tokens": 3,
    "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "low"}, "include": [LOGPROBS], "metadata": {"a": "b"},
    "system": "x", "stop_sequences": ["l"], "thinking": {"type": "enabled"}, "output_config": {"effort": "low"},
    "encoding_format": "base64", "dimensions": 1, "text_1": "you", "text_2": ["hello", "you"], "query": "you",
    "documents": ["hello", {"text": "you"}], "top_n": 1, "return_documents": False,
    "add_special_tokens": False, "return_token_strs": True, "tokens": [6],
}  # fmt: skip
"""A value of each field whose effect can be seen."""

CONTEXT: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "tool_choice": {"tools": TOOLS},
    "parallel_tool_calls": {"tools": TOOLS},
    "continue_final_message": {"add_generation_prompt": False},
    "ignore_eos": {"max_tokens": 5},
}
"""What else is needed for it."""

OWN: dict[tuple[str, str], Any] = {
    (CHAT, "logprobs"): True,
    (RESPONSES, "tools"): [{"type": "function", **FUNCTION}],
    (MESSAGES, "tools"): [FUNCTION],
    (COUNT, "tools"): [FUNCTION],
    (MESSAGES, "tool_choice"): {"type": "none"},
    (COUNT, "tool_choice"): {"type": "none"},
    ("/detokenize", "skip_special_tokens"): True,
}
"""Values of fields that have another form there."""

IN_THE_TOKENIZER = {
    ("/v1/embeddings", "add_special_tokens"), ("/tokenize", "add_special_tokens"), ("/tokenize", "prompt"),
}  # fmt: skip
"""Fields that belong to another prompt than the base's, or of which this tokenizer makes nothing."""

in_loop = pytest.mark.asyncio(loop_scope="module")

NO_FIELD = [{"no": [1.5]}]
"""A value that no field takes."""

FOUND = {path: behaviours(model) for path, model in bodies().items()}
FIELDS = [(path, name) for path, fields in FOUND.items() for name in fields]


def kinds(*wanted: str) -> list[tuple[str, str]]:
    return [(path, name) for path, name in FIELDS if FOUND[path][name].kind in wanted]


@dataclass(frozen=True)
class Seen:
    """What a request came to. named: fields in the header. effect: what the engine was asked and what was answered."""

    status: int
    named: str
    param: str
    effect: tuple[Any, ...]


@dataclass(frozen=True)
class Servers:
    """One for each kind of model."""

    generating: Live
    pooling: Live

    def at(self, path: str) -> Live:
        return self.pooling if path in POOLING else self.generating


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    folder = tmp_path_factory.mktemp("tiny")
    says = ScriptedEngine(lambda _: ids_of(f"hello\n{CALL}\n{CALL}"), max_model_len=4096, per_step=1000)
    facts = PoolingFacts(task="embed", size=2, normalised=True)
    pools = ScriptedEngine(pool=lambda one: direction(sum(one.prompt_token_ids)), facts=facts)
    config: dict[str, Any] = {"template": TEMPLATE, "scheduler_policy": "priority"}
    async with live_server(folder, says, **config) as first, live_server(folder, pools, **config) as second:
        yield Servers(first, second)


def direction(angle: float) -> list[float]:
    return [math.cos(angle), math.sin(angle)]


async def send(live: Servers, path: str, body: dict[str, Any]) -> Seen:
    server = live.at(path)
    server.engine.requests.clear()
    response = await server.http.post(path, json=body)
    asked = [
        (one.prompt_token_ids, msgspec.to_builtins(getattr(one, "params", None)), one.priority, one.cache_salt)
        for one in server.engine.requests
    ]
    text = re.sub(r'[0-9a-f]{24,32}|"created(_at)?":\d+', "", response.text)
    error = response.json()["error"] if response.status_code >= 400 else {}
    named = response.headers.get(IGNORED_HEADER, "")
    return Seen(response.status_code, named, error.get("param") or "", (asked, text))


def with_field(path: str, name: str, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A body, and the same with the field."""
    context = {key: OWN.get((path, key), one) for key, one in CONTEXT.get(name, {}).items()}
    if path == RESPONSES and name == "top_logprobs":
        context = {}
    base = {**BASE[path], **context}
    if name == "prompt" and path == "/tokenize":
        base.pop("messages")
    return base, {**base, name: value}


def test_the_page_is_as_the_code_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main(["--check", str(ROOT / "docs" / "fields.md")]) == 0
    (tmp_path / "old.md").write_text(reference.reference() + "\n")
    assert reference.main(["--check", str(tmp_path / "old.md")]) == 1
    assert "old.md is stale: python -m quire.server.reference >" in capsys.readouterr().err


def test_every_endpoint_and_every_field_has_a_sample() -> None:
    assert set(BASE) == set(FOUND), "say what the endpoint takes"
    lacking = {name for _, name in kinds(USED, REQUIRED)} - set(SAMPLES)
    assert not lacking, "give each field a value whose effect can be seen"
    told = {
        (path, name): one.text for path, fields in FOUND.items() for name, one in fields.items() if one.kind == USED
    }
    assert not [where for where, text in told.items() if not text], "say what it means"


def test_the_openapi_document_is_of_the_same_bodies_and_whole() -> None:
    document = create_app(Frontend(ServeConfig())).openapi()
    for path, model in bodies().items():
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert content["schema"] == {"$ref": f"#/components/schemas/{model.__name__}"}
        schema = document["components"]["schemas"][model.__name__]
        assert set(schema["properties"]) == {field.alias or name for name, field in model.model_fields.items()}
    for at in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)):
        place = document
        for step in at.split("/"):
            place = place[step]


@in_loop
@pytest.mark.parametrize(("path", "name"), kinds(USED, REQUIRED))
async def test_what_is_used_has_an_effect(live: Servers, path: str, name: str) -> None:
    base, body = with_field(path, name, OWN.get((path, name), SAMPLES[name]))
    seen = await send(live, path, body)
    assert (seen.status, seen.named) == (200, ""), seen
    if name == "model":  # not all answers say it, but another one is nowhere
        other = await send(live, path, {**body, name: "nobody"})
        assert (other.status, other.param) == (404, name)
    elif (path, name) not in IN_THE_TOKENIZER:
        plain = await send(live, path, base)
        assert plain.status == 200 and plain.effect != seen.effect
        assert plain.effect == (await send(live, path, base)).effect, "the comparison is of the field alone"
    refused = await send(live, path, {**body, name: NO_FIELD})
    assert refused.status == 400 and re.match(rf"{name}(\.|$)", refused.param), refused


@in_loop
@pytest.mark.parametrize(("path", "name"), kinds(REQUIRED))
async def test_what_is_required_is_missed(live: Servers, path: str, name: str) -> None:
    body = {key: value for key, value in BASE[path].items() if key != name}
    seen = await send(live, path, body)
    assert (seen.status, seen.param) == (400, name)


@in_loop
@pytest.mark.parametrize(("path", "name"), kinds(IGNORED))
async def test_what_is_ignored_changes_nothing(live: Servers, path: str, name: str) -> None:
    typed = name in bodies()[path].model_fields
    seen = await send(live, path, {**BASE[path], name: SAMPLES[name] if typed else NO_FIELD})
    plain = await send(live, path, BASE[path])
    assert (seen.status, seen.named, seen.effect) == (200, "", plain.effect)


@in_loop
@pytest.mark.parametrize(("path", "name"), kinds(REFUSED))
async def test_what_is_refused_is_named_unless_it_asks_for_nothing(live: Servers, path: str, name: str) -> None:
    refused = bodies()[path].REFUSED[name]
    plain = await send(live, path, BASE[path])
    for neutral in refused.neutral:
        seen = await send(live, path, {**BASE[path], name: neutral})
        assert (seen.status, seen.named, seen.effect[1]) == (200, "", plain.effect[1])
    typed = name in bodies()[path].model_fields
    seen = await send(live, path, {**BASE[path], name: SAMPLES[name] if typed else NO_FIELD})
    assert (seen.status, seen.param, seen.effect[0]) == (400, name, []), seen


@in_loop
@pytest.mark.parametrize("path", FOUND)
async def test_what_is_unknown_is_named(live: Servers, path: str) -> None:
    plain = await send(live, path, BASE[path])
    others = {name for _, name in FIELDS} - set(FOUND[path])
    for name in ("no_such_field", *sorted(others)):
        seen = await send(live, path, {**BASE[path], name: NO_FIELD})
        assert (seen.status, seen.named, seen.effect) == (200, name, plain.effect)
    many = {f"x{number}": 1 for number in range(MOST_NAMED + 5)}
    assert (await send(live, path, {**BASE[path], **many})).named.count("x") == MOST_NAMED
    strange = await send(live, path, {**BASE[path], "a\r\nset-cookie: é" + "b" * 100: 1})
    assert re.fullmatch(r"a\?\?set-cookie\?\?\?b+", strange.named) and len(strange.named) == 64


@in_loop
async def test_unknown_fields_of_objects_are_named_with_their_place(live: Servers) -> None:
    schema = {"name": "n", "strict": True, "schema": {"type": "object"}, "other": 1}
    body = {
        **BASE[CHAT],
        "stream": True,
        "stream_options": {"include_usage": True, "include_obfuscation": True, "continuous_usage_stats": True},
        "response_format": {"type": "json_schema", "json_schema": schema},
        "tools": [{**TOOLS[0], "cache_control": {}}],
        "messages": [{**SAID[0], "anything": "reaches the template"}],
    }
    named = set((await send(live, CHAT, body)).named.split(", "))
    assert named == {
        "stream_options.continuous_usage_stats",
        "response_format.json_schema.other",
        "tools.0.cache_control",
    }
    thinking = {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}
    assert (await send(live, MESSAGES, {**BASE[MESSAGES], "thinking": thinking})).named == "thinking.budget_tokens"
    body = {**BASE[RESPONSES], "reasoning": {"effort": "low", "summary": "auto"}, "include": ["file_search"]}
    assert (await send(live, RESPONSES, body)).named == "reasoning.summary, include.file_search"
