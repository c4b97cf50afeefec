"""Engines with a tokenizer for structured outputs, and the answers they give."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

from quire.engine.core import EngineCore
from quire.engine.grammar.client import Grammars
from quire.request import AddRequest, FinishReason, SamplingParams, Sibling
from quire.structured import structured_output
from quire.text import Tokenizer

EXPLOSIVE = {"allOf": [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(10, 40)]}
"""A schema that is never done compiling: the intersection of its patterns has more states than there is memory for."""


AMBIGUOUS = "start: e\ne: e e | e e e | /[ -~]/"
"""Compiles at once; then each token takes longer than the one before it."""


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
    return core.gate._grammars


def workers_of(core: EngineCore) -> list[int]:
    """Process ids of its grammars' workers."""
    nursery = grammars_of(core)._nursery
    children = Path("/dev/null" if nursery is None else f"/proc/{nursery.pid}/task/{nursery.pid}/children")
    return [int(pid) for pid in children.read_text().split()] if children.exists() else []


def add(core: EngineCore, name: str, prompt: list[int], given: SamplingParams, seeds: Iterable[int] = ()) -> None:
    """Hand a request over. seeds: of siblings, which are called name.1 and so on."""
    siblings = tuple(Sibling(request_id=f"{name}.{i}", seed=seed) for i, seed in enumerate(seeds, 1))
    core.add(AddRequest(request_id=name, prompt_token_ids=prompt, params=given, arrival_s=0.0, siblings=siblings))


def step(core: EngineCore, answers: dict[str, Answer]) -> None:
    """One step, recorded."""
    for delta in core.step().deltas:
        answer = answers.setdefault(delta.request_id, Answer())
        assert answer.reason is None, "nothing comes after the end"
        answer.token_ids += delta.token_ids
        answer.reason, answer.stop_token_id = delta.finish_reason, delta.stop_token_id
        answer.error, answer.error_param = delta.error, delta.error_param


def finish(core: EngineCore, answers: dict[str, Answer]) -> None:
    """Steps until nothing is left to do."""
    while core.has_work:
        step(core, answers)


def run(core: EngineCore, requests: dict[str, tuple[list[int], SamplingParams]]) -> dict[str, Answer]:
    """All requests at once, to their ends; nothing is left behind."""
    answers: dict[str, Answer] = {}
    for name, (prompt, given) in requests.items():
        add(core, name, prompt, given)
    finish(core, answers)
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
