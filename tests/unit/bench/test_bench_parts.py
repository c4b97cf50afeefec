"""`quire bench`: the figures are measured, the targets decide the status."""

from __future__ import annotations

import dataclasses

import pytest

from quire.bench import kv as bench_kv
from quire.bench import scheduler as bench_scheduler
from quire.entrypoints.cli import main
from quire.errors import ConfigError


def test_kv_utilisation_reaches_the_papers_figure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "kv", "--requests", "200", "--num-blocks", "2048"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "KV utilisation   mean 99." in out
    assert "target 96%: pass" in out


def test_kv_utilisation_depends_on_the_block_size() -> None:
    """With one block for everything, most of it is air: the measure is real."""
    fine, coarse = (bench_kv.run(num_requests=150, num_blocks=n, block_size=b) for n, b in ((2048, 16), (200, 256)))
    assert fine.utilization > 0.99 > coarse.utilization
    assert fine.waste_blocks < 1
    assert coarse.waste_blocks < 1
    assert fine.pool_used > 0.9
    assert (round(fine.prompt_mean, -2), round(fine.answer_mean, -2)) == (1200, 200)
    assert not dataclasses.replace(fine, utilization=0.95).passed


def test_the_scheduler_report_names_targets(capsys: pytest.CaptureFixture[str]) -> None:
    report = bench_scheduler.run(num_seqs=256, steps=40, rounds=1)
    # three times the targets, on this thread's clock: a loaded machine passes, a step that became quadratic does not
    assert 0 < report.step.median < 3.0
    assert 0 < report.lookup_hit.median < 15.0
    assert 0 < report.lookup_miss.median < 15.0
    assert report.step.median <= report.step.p99
    good = dataclasses.replace(report, step=bench_scheduler.Times(0.5, 0.9), lookup_hit=bench_scheduler.Times(1, 2))
    good = dataclasses.replace(good, lookup_miss=bench_scheduler.Times(1, 2), caching_prompt_us=0.1)
    assert good.passed
    assert str(good).count("pass") == 4
    slow = dataclasses.replace(good, step=bench_scheduler.Times(1.5, 3))
    assert not slow.passed
    assert "median  1.500 ms, p99  3.000 ms; target 1 ms: FAIL" in str(slow)


def test_a_pool_that_never_fills_is_no_measure() -> None:
    with pytest.raises(
        ConfigError, match="--requests 30 never fill 4096 blocks of 16; raise --requests or lower --num-blocks"
    ):
        bench_kv.run(num_requests=30)


def test_a_bad_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "kv", "--requests", "5"])
    assert ended.value.code == 2
    assert "--requests" in capsys.readouterr().err
