"""Logits processors of others: found by name, loaded only then, and a faulty one costs its own requests only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
import torch

from quire.engine.results import NO_TOKEN
from quire.engine.sampling import Sampler, plugins
from quire.engine.sampling.plugins import Custom, load_processors
from quire.errors import ConfigError
from quire.request import AddRequest, FinishReason, SamplingParams, Sibling
from quire_testing.cores import make_core
from quire_testing.rows import make_row
from quire_testing.tiny_llama import make_model, save_folder


class Only:
    """Lets a request draw the token that its `extra_args` name, plus the number of tokens it has."""

    def wants(self, params: SamplingParams) -> bool:
        return "only" in (params.extra_args or {})

    def __call__(
        self, logits: torch.Tensor, prompt: Sequence[int], answer: Sequence[int], params: SamplingParams
    ) -> torch.Tensor:
        only = (params.extra_args or {})["only"] + len(prompt) + len(answer)
        return torch.full_like(logits, -torch.inf).index_fill_(0, torch.tensor([only]), 0.0)


class FailsOnce:
    """For the first request that has `extra_args`."""

    def __init__(self) -> None:
        self.called = False

    def wants(self, params: SamplingParams) -> bool:
        return bool(params.extra_args)

    def __call__(self, logits: torch.Tensor, *_: Any) -> torch.Tensor:
        if not self.called:
            self.called = True
            raise RuntimeError("once")
        return logits


class NotCallable:
    def wants(self, params: SamplingParams) -> bool:
        return True


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points as an installed package would have them."""
    points = [
        EntryPoint(name, f"{__name__}_plugin:{name}", plugins.GROUP)
        for name in ("Only", "FailsOnce", "NotCallable", "missing")
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda **given: EntryPoints(points).select(**given))
    module = type(plugins)(f"{__name__}_plugin")
    for one in (Only, FailsOnce, NotCallable):
        setattr(module, one.__name__, one)
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)


@pytest.mark.usefixtures("installed")
def test_names_are_found_or_refused_with_what_there_is() -> None:
    assert [one.name for one in load_processors(["Only"])] == ["Only"]
    assert load_processors([]) == []
    with pytest.raises(
        ConfigError, match=r"--logits-processors other: .* there are FailsOnce, NotCallable, Only, missing"
    ):
        load_processors(["other"])
    with pytest.raises(ConfigError, match=r"missing: .* cannot be loaded"):
        load_processors(["missing"])
    with pytest.raises(ConfigError, match="must be callable and have a method wants"):
        load_processors(["NotCallable"])


@pytest.mark.usefixtures("installed")
def test_requests_that_ask_for_it_pass_through_it(tmp_path: Path) -> None:
    core = make_core(save_folder(make_model(), tmp_path), logits_processors=("Only",))
    params = [
        SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, extra_args=extra)
        for extra in (None, {"only": 50}, {"only": "x"}, {"only": 60})
    ]
    for i, one in enumerate(params):
        core.add(AddRequest(request_id=str(i), prompt_token_ids=[5, 6], params=one, arrival_s=0.0))
    answers: dict[str, list[int]] = {str(i): [] for i in range(4)}
    errors: dict[str, str | None] = {}
    while core.has_work:
        for delta in core.step().deltas:
            answers[delta.request_id] += delta.token_ids
            if delta.finish_reason is FinishReason.ERROR:
                errors[delta.request_id] = delta.error
    assert answers["1"] == [52, 53, 54]
    assert answers["3"] == [62, 63, 64]
    assert len(answers["0"]) == 3
    assert errors.keys() == {"2"}
    assert "the logits processor Only failed: TypeError" in (errors["2"] or "")
    assert core.scheduler.kv.pool.num_used == 0


@pytest.mark.usefixtures("installed")
def test_an_answer_that_fails_first_still_tells_of_the_prompt(tmp_path: Path) -> None:
    """Its siblings go on, and are not asked for it."""
    core = make_core(save_folder(make_model(), tmp_path), logits_processors=("FailsOnce",), block_size=8)
    params = SamplingParams(max_tokens=2, ignore_eos=True, prompt_logprobs=0, extra_args={"fails": True})
    for name in "ab":
        siblings = tuple(Sibling(request_id=f"{name}-{i}", seed=i) for i in (1, 2))
        core.add(
            AddRequest(
                request_id=f"{name}-0", prompt_token_ids=[5] * 20, params=params, arrival_s=0.0, siblings=siblings
            )
        )
    told, reasons = {}, {}
    while core.has_work:
        for delta in core.step().deltas:
            reasons[delta.request_id] = delta.finish_reason
            if delta.prompt_logprobs is not None:
                assert delta.queue_s is not None
                told[delta.request_id] = len(delta.prompt_logprobs)
    assert told == {"a-0": 19, "b-0": 19}
    assert reasons.pop("a-0") is FinishReason.ERROR
    assert set(reasons.values()) == {FinishReason.LENGTH} and len(reasons) == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda logits: logits[:3], "must return a tensor of shape (8,), got a tensor of shape (3,)"),
        (lambda logits: None, "got NoneType"),
        (lambda logits: logits * torch.nan, "not numbers"),
        (lambda logits: logits + torch.inf, "not numbers"),
    ],
)
def test_what_it_returns_is_checked(change: Callable[[torch.Tensor], Any], words: str) -> None:
    class Changes(NotCallable):
        def __call__(self, logits: torch.Tensor, *_: Any) -> Any:
            return change(logits) if _[2].seed == 1 else logits

    rows = [make_row(SamplingParams(temperature=0.0, seed=seed)) for seed in (0, 1)]
    logits = torch.arange(16.0).view(2, 8)
    result = Sampler([Custom("changes", Changes())])(logits, rows)
    assert result.tokens == [7, NO_TOKEN]
    assert words in result.extras.errors[1].message
    assert result.extras.errors[1].param is None
