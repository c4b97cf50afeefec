"""Log probabilities of answers and prompts equal those of transformers, whatever happens to the batch meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from quire.engine.sampling.logprobs import ROWS, token_logprobs
from quire.request import AddRequest, SamplingParams, Sibling, TokenLogprobs
from quire_testing.cores import ask, make_core
from quire_testing.tiny_llama import VOCAB, make_model, save_folder
from scripted_engine import apart


def prompts_for(count: int) -> list[list[int]]:
    rng = random.Random(5)
    shared = [rng.randrange(3, VOCAB) for _ in range(40)]
    return [
        (shared if i % 2 else []) + [rng.randrange(3, VOCAB) for _ in range(rng.randrange(2, 50))] for i in range(count)
    ]


def check(entries: list[TokenLogprobs], tokens: list[int], logprobs: torch.Tensor, top: int) -> None:
    """Entries for tokens at positions whose log probabilities are logprobs [P, V]."""
    assert len(entries) == len(tokens) == len(logprobs)
    for entry, token, row in zip(entries, tokens, logprobs, strict=True):
        assert entry.token_ids[0] == token
        assert len(entry.token_ids) == len(entry.logprobs) == top + 1
        torch.testing.assert_close(torch.tensor(entry.logprobs), row[entry.token_ids], rtol=0, atol=2e-5)
        assert entry.rank == int((row > row[token]).sum()) + 1
        torch.testing.assert_close(torch.tensor(entry.logprobs[1:]), row.topk(top).values, rtol=0, atol=2e-5)


@pytest.fixture(scope="module")
def reference() -> Iterator[Any]:
    yield make_model()


@pytest.fixture(scope="module")
def folder(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(reference, tmp_path_factory.mktemp("tiny"))


@torch.inference_mode()
def test_equal_to_transformers_with_chunks_hits_and_preemption(reference: Any, folder: Path) -> None:
    prompts = prompts_for(10)
    params = [
        SamplingParams(
            temperature=[0.0, 1.0][i % 2],
            seed=i,
            max_tokens=25,
            ignore_eos=True,
            logprobs=[0, 3, 20][i % 3],
            prompt_logprobs=[None, 0, 5][(i // 2) % 3],
            logit_bias={7: 5.0} if i % 5 == 0 else None,
            presence_penalty=0.5 if i % 4 == 0 else 0.0,
        )
        for i in range(len(prompts))
    ]
    core = make_core(folder, num_blocks=26, block_size=8, max_num_batched_tokens=24, max_num_seqs=7)
    told = ask(core, prompts, params, every=1)
    assert core.scheduler.counters.preemptions > 0
    assert core.scheduler.counters.prefix_hits > 0
    for prompt, one, answer in zip(prompts, params, told, strict=True):
        logprobs = reference(torch.tensor([prompt + answer.tokens])).logits[0].log_softmax(-1)
        start = len(prompt) - 1
        check(answer.logprobs, answer.tokens, logprobs[start : start + len(answer.tokens)], one.logprobs or 0)
        if one.prompt_logprobs is None:
            assert answer.prompt_logprobs is None
        else:
            check(answer.prompt_logprobs or [], prompt[1:], logprobs[:start], one.prompt_logprobs)


def test_a_prompt_whose_log_probabilities_are_wanted_is_computed_and_not_found(folder: Path) -> None:
    core = make_core(folder)
    prompt = prompts_for(2)[1]
    plain, wanting = SamplingParams(max_tokens=2), SamplingParams(max_tokens=2, prompt_logprobs=1)
    for params, cached in [(plain, False), (wanting, False), (plain, True)]:
        (told,) = ask(core, [prompt], [params])
        assert (told.num_cached > 0) == cached
        assert (told.prompt_logprobs is not None) == (params is wanting)


def test_a_prompt_of_several_answers_is_computed_and_told_once(folder: Path) -> None:
    core = make_core(folder, num_blocks=64, block_size=8, max_num_seqs=2)
    prompt, params = [5] * 33, SamplingParams(max_tokens=2, prompt_logprobs=2, ignore_eos=True)
    siblings = tuple(Sibling(request_id=f"a-{i}", seed=i) for i in range(1, 4))
    core.add(AddRequest(request_id="a-0", prompt_token_ids=prompt, params=params, arrival_s=0.0, siblings=siblings))
    told: dict[str, int] = {}
    computed = 0
    while core.has_work:
        report = core.step()
        computed += report.stats.num_prompt_tokens
        told |= {d.request_id: len(d.prompt_logprobs) for d in report.deltas if d.prompt_logprobs is not None}
    assert told == {"a-0": 32}
    assert computed == 33 + 1, "the second group finds all but the last token"
    one, *others = apart(
        AddRequest(request_id="b", prompt_token_ids=[1], params=params, arrival_s=0.0, siblings=siblings)
    )
    assert one.params.prompt_logprobs == 2
    assert [(other.params.prompt_logprobs, other.params.seed) for other in others] == [(None, 1), (None, 2), (None, 3)]


def test_a_prompt_of_one_token_has_none(folder: Path) -> None:
    (told,) = ask(make_core(folder), [[5]], [SamplingParams(max_tokens=1, prompt_logprobs=1)])
    assert told.prompt_logprobs == []


@torch.inference_mode()
def test_b026_a_prompt_of_the_whole_window_is_scored(reference: Any, folder: Path) -> None:
    core = make_core(folder, max_model_len=48, block_size=8, num_blocks=6)
    prompt = [random.Random(3).randrange(3, VOCAB) for _ in range(48)]
    scored = SamplingParams(max_tokens=1, prompt_logprobs=2)
    (told,) = ask(core, [prompt], [scored])
    check(told.prompt_logprobs or [], prompt[1:], reference(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1), 2)
    for tokens, params in [
        (prompt, SamplingParams(max_tokens=1)),
        (prompt, SamplingParams(max_tokens=2, prompt_logprobs=2)),
        ([*prompt, 5], scored),
    ]:
        request = AddRequest(request_id="x", prompt_token_ids=tokens, params=params, arrival_s=0.0)
        assert "one must be left" in (core.scheduler.fault(request) or "")


def test_the_head_runs_on_few_rows_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(folder, max_num_batched_tokens=256)
    widths: list[int] = []
    logits = core.runner.executor.logits
    monkeypatch.setattr(core.runner.executor, "logits", lambda hidden: widths.append(len(hidden)) or logits(hidden))
    ask(core, [[5] * 200], [SamplingParams(max_tokens=1, prompt_logprobs=0)])
    assert sum(widths) == 200
    assert max(widths) <= ROWS


def test_numbers_of_a_row_do_not_depend_on_the_others() -> None:
    logits = torch.randn(ROWS + 3, 300).bfloat16()  # with ties
    tokens = [i % 300 for i in range(len(logits))]
    tops = [[0, 5, 20, 200][i % 4] for i in range(len(logits))]
    together = token_logprobs(logits, tokens, tops)
    for i, entry in enumerate(together):
        assert token_logprobs(logits[i : i + 1], tokens[i : i + 1], tops[i : i + 1]) == [entry]
        (more,) = token_logprobs(logits[i : i + 1], tokens[i : i + 1], [max(tops[i], 20)])
        assert more.token_ids[: tops[i] + 1] == entry.token_ids
