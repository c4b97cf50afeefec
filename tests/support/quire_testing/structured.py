"""Engines with a tokenizer for structured outputs, and the answers they give."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

from quire.engine.core import EngineCore
from quire.engine.grammar.client import Grammars
from quire.engine.grammar.protocol import Limits
from quire.request import AddRequest, FinishReason, SamplingParams
from quire.structured import structured_output
from quire.text import Tokenizer

EXPLOSIVE = {"allOf": [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(10, 40)]}
"""A schema that is never done compiling: the intersection of its patterns has more states than there is memory for."""


@dataclass
class Answer:
    """What came of a request."""

    token_ids: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    error_param: str | None = None


def params(seed: int = 0, max_tokens: int = 100, **fields: Any) -> SamplingParams:
    """Sampling parameters with the output that `fields` describe; greedy with temperature=0.0."""
    temperature = fields.pop("temperature", 1.0)
    output = structured_output(**fields) if fields else None
    return SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens, structured_outputs=output)


def grammars_of(core: EngineCore) -> Grammars:
    """The grammars of an engine."""
    assert core.gate is not None
    return core.gate._grammars


def set_limits(core: EngineCore, **changes: Any) -> None:
    """Other limits for this engine's grammars, before the first of them."""
    grammars = grammars_of(core)
    grammars.limits = Limits(**changes)
    grammars.settings = type(grammars.settings)(
        **{name: getattr(grammars.settings, name) for name in grammars.settings.__struct_fields__ if name != "limits"},
        limits=grammars.limits,
    )


def add(core: EngineCore, name: str, prompt: list[int], given: SamplingParams) -> None:
    """Hand a request over."""
    core.add(AddRequest(request_id=name, prompt_token_ids=prompt, params=given, arrival_s=0.0))


def step(core: EngineCore, answers: dict[str, Answer]) -> None:
    """One step, recorded."""
    for delta in core.step().deltas:
        answer = answers.setdefault(delta.request_id, Answer())
        assert answer.reason is None, "nothing comes after the end"
        answer.token_ids += delta.token_ids
        answer.reason, answer.stop_token_id = delta.finish_reason, delta.stop_token_id
        answer.error, answer.error_param = delta.error, delta.error_param


def run(core: EngineCore, requests: dict[str, tuple[list[int], SamplingParams]]) -> dict[str, Answer]:
    """All requests at once, to their ends; nothing is left behind."""
    answers: dict[str, Answer] = {}
    for name, (prompt, given) in requests.items():
        add(core, name, prompt, given)
    while core.has_work:
        step(core, answers)
    assert set(answers) == set(requests)
    assert core.scheduler.kv.pool.num_used == 0
    return answers


def text_of(answer: Answer, tokenizer: Tokenizer) -> str:
    """The text of an answer that ended by itself."""
    assert (answer.error, answer.reason) == (None, FinishReason.STOP), answer
    assert answer.stop_token_id == answer.token_ids[-1]
    assert answer.stop_token_id in tokenizer.eos_ids
    return tokenizer.decode(answer.token_ids[:-1], skip_special_tokens=False)


def assert_valid(text: str, schema: Any) -> Any:
    """The value of a JSON text that a schema accepts."""
    value = json.loads(text)
    jsonschema.validate(value, schema)
    return value


def write_model(folder: Path) -> Path:
    """A tiny random model with a byte-level tokenizer of the same vocabulary."""
    from quire_testing.tiny_llama import make_model, save_folder
    from tiny_text import VOCAB_SIZE, write_tokenizer

    return write_tokenizer(save_folder(make_model(vocab_size=VOCAB_SIZE), folder))
