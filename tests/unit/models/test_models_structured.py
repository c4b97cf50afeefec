"""The embedded model under structured outputs, through the Python API: what users of vLLM write, with answers that hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from quire import LLM, SamplingParams, StructuredOutputsParams

pytestmark = pytest.mark.model

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "country": {"enum": ["Österreich", "フランス", 'the "rest"']},
        "millions": {"type": "integer", "minimum": 0, "maximum": 40},
    },
    "required": ["name", "country", "millions"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Describe Vienna as JSON."}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm = LLM("smollm2", dtype="float32", num_blocks=256, max_model_len=512, cpu_threads=1)
    yield llm
    llm.llm_engine.core.gate._grammars.close()


def test_schemas_choices_and_expressions_in_one_batch_with_a_free_neighbour(llm: LLM) -> None:
    free = SamplingParams(temperature=0.0, max_tokens=20)
    bound = [
        SamplingParams(temperature=0.0, max_tokens=80, structured_outputs=StructuredOutputsParams(json=CITY)),
        SamplingParams(seed=1, n=3, max_tokens=80, structured_outputs=StructuredOutputsParams(json=CITY)),
        SamplingParams(temperature=0.0, structured_outputs=StructuredOutputsParams(choice=["yes", "no"])),
        SamplingParams(
            temperature=0.0, structured_outputs=StructuredOutputsParams(regex=r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
        ),
    ]
    [alone] = llm.chat(QUESTION, free, use_tqdm=False)
    greedy, several, choice, date, neighbour = llm.chat([QUESTION] * 5, [*bound, free], use_tqdm=False)
    assert neighbour.outputs == alone.outputs
    for output in (*greedy.outputs, *several.outputs):
        assert output.finish_reason == "stop", output
        jsonschema.validate(json.loads(output.text), CITY)
    assert len({output.text for output in several.outputs}) > 1
    assert choice.outputs[0].text in ("yes", "no")
    assert len(date.outputs[0].text) == 10
    [again] = llm.chat(QUESTION, bound[0], use_tqdm=False)
    assert again.outputs == greedy.outputs, "alone, and on a prefix hit"


def test_a_bad_grammar_fails_alone(llm: LLM) -> None:
    bad = SamplingParams(structured_outputs=StructuredOutputsParams(regex="(["))
    good = SamplingParams(temperature=0.0, max_tokens=5)
    failed, fine = llm.chat([QUESTION] * 2, [bad, good], use_tqdm=False)
    assert failed.outputs[0].finish_reason == "error"
    assert "unclosed character class" in str(failed.outputs[0].error)
    assert len(fine.outputs[0].token_ids) == 5
