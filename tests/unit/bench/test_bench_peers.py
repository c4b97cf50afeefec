"""The race between engines: ratios of pairs, tables, the plot, lanes that are left out; one real race on a tiny model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from peers import plot
from peers.__main__ import pages, read_earlier
from peers.compare import WORKS, Results, race, work_of
from peers.home import PeerError, output_of, run
from peers.lanes import LANES, Lane, Ready
from peers.table import SHEETS, advantage, markdown, tabulate
from quire.bench.servers import quire_command
from quire.bench.workloads import Encode
from tiny_api import tiny_folder

W2 = {
    "quire": [
        {"decode_tokens_per_s": 100.0, "prompt_tokens_per_s": 900.0},
        {"decode_tokens_per_s": 50.0, "prompt_tokens_per_s": 900.0},
    ],
    "other <1>": [
        {"decode_tokens_per_s": 80.0, "prompt_tokens_per_s": 999.0},
        {"decode_tokens_per_s": 40.0, "prompt_tokens_per_s": 1.0},
    ],
}
START = {"quire": [{"first_token_s": 2.0}, {"first_token_s": 3.0}], "other": [{"first_token_s": 60.0}]}


def encode(words: str) -> list[int]:
    return list(words.encode())


def test_advantage_is_over_pairs_of_rounds_and_above_one_where_ours_is_faster() -> None:
    assert advantage(W2["quire"], W2["other <1>"], SHEETS["w2-inside"]) == pytest.approx(1.25)
    assert advantage(START["quire"], START["other"], SHEETS["start"]) == pytest.approx(30.0)
    assert advantage(START["other"], START["quire"], SHEETS["start"]) == pytest.approx(1 / 30)


def test_the_table() -> None:
    rows = tabulate("start", START)
    assert rows.title == "Start: process to first token over HTTP (rounds differ by up to 40%)"
    assert rows.heads == ["", "seconds", "quire ×"]
    assert rows.cells == [["quire", "2.50", ""], ["other", "60.00", "30.00"]]
    assert markdown(rows).splitlines()[2:] == [
        "|  | seconds | quire × |",
        "|---|---:|---:|",
        "| quire | 2.50 |  |",
        "| other | 60.00 | 30.00 |",
    ]


def test_every_work_has_a_sheet_and_requests() -> None:
    assert list(WORKS) == list(SHEETS)
    for work, requests, clients in (("w1", 64, 64), ("w2", 3, 1), ("w3", 32, 32), ("w4", 64, 16)):
        works, at_once = work_of(work, encode, 0)
        assert (len(works), at_once) == (requests, clients)
    assert work_of("w2", encode, 0) != work_of("w2", encode, 1)  # no round finds the last one's prompts


def test_the_plot_is_xml_and_its_bars_are_to_scale() -> None:
    root = ElementTree.fromstring(plot.svg({"start": START}, "a < b", "c"))
    bars = [bar for bar in root.iter("{http://www.w3.org/2000/svg}rect") if bar.get("fill") in (plot.OURS, plot.PEERS)]
    ours, theirs = (float(bar.get("width", "0")) for bar in bars)
    assert theirs / ours == pytest.approx(60 / 2.5, rel=0.01)
    words = [word.text for word in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b", "quire", "other", "2.50", "60.00"} <= set(words)


def test_results_are_added_to_those_of_the_same_machine_and_software(tmp_path: Path) -> None:
    facts = {"machine": {"cpu": "a"}, "versions": {"commit": "1"}, "environment": {}}
    left = Results(
        {"start": START, "w2-inside": W2}, {"other, w2-inside": "why", "third": "gone"}, {"quire": "1", "other": "2"}
    )
    file = tmp_path / "a.json"
    assert read_earlier(file, facts) == Results()
    file.write_text(pages(left, {**facts, "machine": {"cpu": "a", "threads": 2, "flags": []}}, "smol")["json"])
    facts["machine"] = {"cpu": "a", "threads": 2, "flags": []}
    read = read_earlier(file, facts)
    assert read == left
    again = race([], ["w2-inside"], "smol", 1, encode, kept=lambda results: None, earlier=read)
    assert again == Results({"start": START}, {"third": "gone"}, left.versions)
    mended = Lane("third", lambda _: Ready(lambda work, port: [], "3"))
    assert race([mended], [], "smol", 1, encode, kept=lambda results: None, earlier=again).failures == {}
    with pytest.raises(PeerError, match=r"a\.json is of another version \({'commit': '1'}\)"):
        read_earlier(file, {**facts, "versions": {"commit": "2"}})


def test_commands_that_fail_say_their_last_words(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="ended with status 3: no luck"):
        run([sys.executable, "-c", "import sys; print('no luck'); sys.exit(3)"], tmp_path / "log")
    with pytest.raises(PeerError, match="ended with signal 4"):
        output_of([sys.executable, "-c", "import os; os.kill(os.getpid(), 4)"])
    with pytest.raises(PeerError, match="does not run: No such file"):
        output_of([tmp_path / "absent"])


def test_lanes_have_names_of_their_own_and_the_first_is_the_default_of_quire() -> None:
    assert len({lane.name for lane in LANES}) == len(LANES)
    assert LANES[0].name == "quire"
    assert [lane.name for lane in LANES if lane.ours] == [lane.name for lane in LANES if lane.name.startswith("quire")]


def test_a_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    model = tiny_folder(tmp_path / "model")
    flags = {"model": str(model), "num_blocks": "64", "cpu_threads": "1", "dtype": "float32"}

    def absent(_: str) -> Ready:
        raise PeerError("there is no compiler")

    def broken(_: str) -> Ready:
        return Ready(lambda work, port: [sys.executable, "-c", "import sys; sys.exit('illegal instruction')"], "0")

    real = Ready(lambda work, port: quire_command(flags, port), "9", health="/health/ready")
    lanes = [Lane("quire", lambda _: real), Lane("absent", absent), Lane("broken", broken)]
    kept: list[int] = []
    words: Encode = lambda given: [3 + byte % 200 for byte in given.encode()]
    count = lambda results: kept.append(len(results.figures["start"]))
    results = race(lanes, ["start"], "smol", 1, words, kept=count, quiet_limit_s=0)
    [figures] = results.figures["start"]["quire"]
    assert 0 < figures["ready_s"] < figures["first_token_s"]
    assert results.failures["absent"] == "there is no compiler"
    assert "illegal instruction" in results.failures["broken, start"]
    assert kept == [1]
    facts = {"machine": {"cpu": "A", "threads": 1, "flags": ["avx2"]}, "versions": {"quire": "1"}}
    written = pages(results, facts, "smol")
    assert "there is no compiler" in written["md"]
    assert "| quire |" in written["md"]
