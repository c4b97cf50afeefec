"""Structured outputs at the server: every spelling of the fields becomes the same parameters, and the engine's refusal a 400."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from live_server import Live, ids_of, live_server
from quire.structured import StructuredOutput
from scripted_engine import ScriptedEngine

SCHEMA = {"type": "object", "properties": {"größe": {"type": "integer"}}}
TEXT = '{"type":"object","properties":{"größe":{"type":"integer"}}}'


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_server(tmp_path, ScriptedEngine(lambda _: ids_of("ok"))) as server:
        yield server


@pytest.mark.parametrize(
    ("fields", "kind", "spec"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
                }
            },
            "json",
            TEXT,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, "json", TEXT),
        ({"structured_outputs": {"json": TEXT}}, "json", TEXT),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["ja", "né"]}}, "choice", '["ja","né"]'),
        ({"structured_outputs": {"grammar": "start: X\nX: /a/"}}, "grammar", "start: X\nX: /a/"),
        ({"structured_outputs": {"json_object": True}}, "json_object", ""),
        ({"guided_json": SCHEMA}, "json", TEXT),
        ({"guided_json": json.dumps(SCHEMA)}, "json", json.dumps(SCHEMA)),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["ja", "né"]}, "choice", '["ja","né"]'),
        ({"guided_grammar": "start: X\nX: /a/"}, "grammar", "start: X\nX: /a/"),
    ],
    ids=str,
)
async def test_every_spelling(live: Live, fields: dict[str, Any], kind: Any, spec: str) -> None:
    assert (await live.chat(**fields)).status_code == 200
    assert (await live.complete(**fields)).status_code == 200
    [param] = fields
    expected = StructuredOutput(kind=kind, spec=spec, param=param)
    assert [request.params.structured_outputs for request in live.engine.requests] == [expected, expected]


@pytest.mark.parametrize(
    "fields", [{"response_format": {"type": "text"}}, {"guided_json": None}, {"guided_choice": []}]
)
async def test_asking_for_nothing(live: Live, fields: dict[str, Any]) -> None:
    assert (await live.chat(**fields)).status_code == 200
    assert live.engine.requests[0].params.structured_outputs is None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_that_cannot_be_built_is_a_400_that_names_the_field(live: Live, stream: bool) -> None:
    """B040. Also of a stream: nothing has been sent yet."""
    live.engine.hold()
    asking = asyncio.ensure_future(live.chat(guided_regex="([", stream=stream))
    await live.engine.until(lambda: live.engine.requests)
    live.engine.fail(live.engine.requests[0].request_id, "guided_regex: unclosed character class", param="guided_regex")
    response = await asking
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "guided_regex", "invalid_value")
    assert error["message"] == "guided_regex: unclosed character class"
    ended = [
        await live.metric(f'quire_requests_finished_total{{finish_reason="{how}"}}') for how in ("refused", "error")
    ]
    assert ended == [1, 0], "who looks for faults of the engine is not told of this one"


async def test_a_grammar_that_fails_in_the_middle_ends_the_stream_with_an_error(live: Live) -> None:
    live.engine.hold()
    asking = asyncio.ensure_future(live.chat(guided_regex="a+", stream=True))
    await live.engine.until(lambda: live.engine.requests)
    live.engine.step()
    live.engine.fail(live.engine.requests[0].request_id, "too complex", param="guided_regex")
    text = (await asking).text
    name, data = text.strip().splitlines()[-2:]
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["param"] == "guided_regex"
    assert "[DONE]" not in text
